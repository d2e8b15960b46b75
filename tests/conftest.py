"""What all tests share."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.running_worker import RunningWorker, running_worker

SLOW_MARKERS = ("process", "spark")
"""In the order in which they run, after the fast tests."""


def pytest_configure() -> None:
    """Where the tests run in the background Ctrl-C is ignored, and so it is in all processes that they start."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Fast tests first, then those that start and kill processes, those on a Spark session last."""
    items.sort(key=_slowness)


def _slowness(item: pytest.Item) -> int:
    return max((SLOW_MARKERS.index(m.name) + 1 for m in item.iter_markers() if m.name in SLOW_MARKERS), default=0)


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[RunningWorker]:
    """A worker with small files, stopped in order afterwards."""
    with running_worker(tmp_path / "data") as running:
        yield running
