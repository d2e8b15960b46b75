"""What happens to windows that a pipeline leaves open, and to events that it leaves buffered: `source end` is suggested
only where no clock closes them.
"""

from typing import Any

import pytest

from penstock.cli.open_windows import staying_open
from penstock.client.coordinator import PipelineStatus


def stopped(**more: Any) -> PipelineStatus:
    epochs = dict.fromkeys(("incarnation", "generation", "planned", "merged", "delivered", "complete", "proved"), 1)
    plain: dict[str, Any] = {"name": "per-shop", "state": "STOPPED", "lag_bytes": 0, "undelivered_bytes": 0, **epochs}
    return PipelineStatus(**plain, watermark=None, blocked=None, heartbeat_age_seconds=None, **more)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            {"open_windows": 1, "open_windows_by_clock": True},
            "per-shop: 1 window stays open; the next run closes it, by the worker's clock",
        ),
        (
            {"open_windows": 2, "open_windows_sources": ["orders"]},
            (
                "per-shop: 2 windows stay open until the next run; "
                "to close them for good, run this while it runs: penstock source end orders"
            ),
        ),
        ({"open_windows": 1}, "per-shop: 1 window stays open until the next run"),
        (
            {"buffered_events": 1000, "open_windows_sources": ["orders"]},
            (
                "per-shop: 1,000 events stay buffered until the next run; "
                "to emit them for good, run this while it runs: penstock source end orders"
            ),
        ),
        (
            {"buffered_events": 1, "open_windows_by_clock": True},
            "per-shop: 1 event stays buffered; the next run emits it, by the worker's clock",
        ),
    ],
)
def test_it_reports_what_closes_them(given: dict[str, Any], sentence: str) -> None:
    assert [*staying_open([stopped(**given), stopped(open_windows=0)])] == [sentence]


@pytest.mark.parametrize(
    ("windows", "events", "held"),
    [
        (1, 0, "1 window open"),
        (0, 1, "1 event buffered"),
        (2000, 3000, "2,000 windows open and 3,000 events buffered"),
        (None, None, "windows may be open"),
    ],
)
def test_one_sentence_counts_windows_and_events_that_wait(windows: int | None, events: int | None, held: str) -> None:
    status = stopped(open_windows=windows, buffered_events=events, open_windows_wait="waiting for it")
    assert status.open_windows_text() == f"per-shop: {held}, waiting for it"
