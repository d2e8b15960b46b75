"""What happens to windows that a pipeline leaves open: `source end` is suggested only where no clock closes them."""

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
    ],
)
def test_it_reports_what_closes_them(given: dict[str, Any], sentence: str) -> None:
    assert [*staying_open([stopped(**given), stopped(open_windows=0)])] == [sentence]
