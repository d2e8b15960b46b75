"""What all tests share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.running_worker import RunningWorker, running_worker


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Fast tests first: those that start and kill processes come last."""
    items.sort(key=lambda item: item.get_closest_marker("process") is not None)


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[RunningWorker]:
    """A worker with small files, stopped in order afterwards."""
    with running_worker(tmp_path / "data") as running:
        yield running
