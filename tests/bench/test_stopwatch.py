"""What a stopwatch counts."""

import time

import pytest

from bench.stopwatch import TICK_SECONDS, Stopwatch


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    now = {"clock": 100.0, "cpu": 10.0}
    monkeypatch.setattr(time, "monotonic", lambda: now["clock"])
    monkeypatch.setattr(time, "process_time", lambda: now["cpu"])
    return now


def test_what_is_paused_does_not_count(clock: dict[str, float]) -> None:
    stopwatch = Stopwatch()
    with stopwatch.running():
        clock["clock"] += 2
        with stopwatch.paused():
            clock["clock"] += 50
            clock["cpu"] += 5
        clock["cpu"] += 1
    assert (stopwatch.cpu_s, stopwatch.clock_s) == (1, 2)


def test_each_run_counts_from_zero_and_takes_a_tick_at_least(clock: dict[str, float]) -> None:
    stopwatch = Stopwatch()
    with stopwatch.running():
        clock["clock"] += 2
    with stopwatch.running():
        """Nothing."""
    with stopwatch.paused():
        clock["clock"] += 2
    assert (stopwatch.cpu_s, stopwatch.clock_s) == (TICK_SECONDS, TICK_SECONDS)
