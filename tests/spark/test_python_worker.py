"""What Spark's Python workers keep between tasks."""

import gc

import pytest

from penstock.spark import python_worker
from penstock.spark.python_worker import freeze


@pytest.fixture
def frozen(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A process that has not frozen anything: the numbers of the calls that do."""
    found: list[int] = []
    monkeypatch.setattr(python_worker, "_calls", 0)
    monkeypatch.setattr(python_worker, "set_up_logging", lambda: None)
    monkeypatch.setattr(gc, "freeze", lambda: found.append(python_worker._calls))
    return found


def test_what_later_tasks_load_is_frozen_too_but_not_at_every_call(frozen: list[int]) -> None:
    for _ in range(100):
        freeze()
    assert frozen == [1, 2, 4, 8, 16, 32, 64]
