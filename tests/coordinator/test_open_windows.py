"""What an open window waits for, in one sentence."""

from datetime import UTC, datetime
from typing import Any

import pytest

from penstock.coordinator.open_windows import Watermarked, why_open
from penstock.coordinator.settings import SourceTimes
from penstock.coordinator.watermark.source_table import Blocker


def at(text: str) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1e6)


NOW = at("2026-01-31 12:03:15")
END = at("2026-01-31 12:03:20")
LAST = at("2026-01-31 12:03:10")
OF_ARRIVAL = SourceTimes(has_arrival_times=True, last_event_us=LAST)
PLAIN = SourceTimes(last_event_us=LAST, active_streams=1)
BLOCKER = Blocker("orders", 7, LAST)

SENTENCES: dict[str, tuple[dict[str, Any], str]] = {
    "the end is to come": ({"sources": {"orders": OF_ARRIVAL}}, "waiting for the worker's clock to reach 12:03:20"),
    "whatever stream is behind": (
        {"sources": {"orders": OF_ARRIVAL}, "blocker": BLOCKER, "lag_bytes": 8},
        "waiting for the worker's clock to reach 12:03:20",
    ),
    "the end has passed": (
        {"sources": {"orders": OF_ARRIVAL}, "first_end": LAST},
        "waiting for the next epoch: the worker's clock has passed the first of them",
    ),
    "a backlog": (
        {"sources": {"orders": PLAIN}, "blocker": BLOCKER, "lag_bytes": 8},
        "catching up (8 B)",
    ),
    "a backlog of the pipeline whose output it reads": (
        {"sources": {"orders": PLAIN}, "blocker": BLOCKER, "lag_bytes": 1234, "is_upstream": True},
        "waiting for pipeline per-shop, which is catching up (1.2 KiB)",
    ),
    "nobody is left out": (
        {"sources": {"orders": PLAIN}, "blocker": BLOCKER},
        "waiting for the next event of orders: nothing since 12:03:10; idle_timeout is off",
    ),
    "not since the start": (
        {"sources": {"orders": PLAIN._replace(last_event_us=None)}, "blocker": BLOCKER},
        "waiting for the next event of orders: nothing since the worker started; idle_timeout is off",
    ),
    "yesterday": (
        {"sources": {"orders": PLAIN._replace(last_event_us=at("2026-01-30 23:59:59"))}, "blocker": BLOCKER},
        "waiting for the next event of orders: nothing since 2026-01-30 23:59:59; idle_timeout is off",
    ),
    "one of several": (
        {
            "sources": {"orders": PLAIN._replace(active_streams=2, idle_timeout_seconds=60)},
            "blocker": BLOCKER,
            "stream": "a",
        },
        "waiting for stream a of orders, which is at 12:03:10; idle_timeout is 60 s",
    ),
    "one that has sent nothing": (
        {"sources": {"orders": PLAIN._replace(active_streams=2)}, "blocker": Blocker("orders", 7, None)},
        "waiting for stream 7 of orders: it is open, and no event of it has been read yet; idle_timeout is off",
    ),
    "the only one that is open has sent nothing": (
        {"sources": {"orders": PLAIN}, "blocker": Blocker("orders", 7, None), "stream": "day2"},
        "waiting for stream day2 of orders: it is open, and no event of it has been read yet; idle_timeout is off",
    ),
    "all are idle": (
        {"sources": {"orders": SourceTimes(idle_timeout_seconds=5, last_event_us=LAST)}},
        "waiting for the next event of orders: nothing since 12:03:10; when_all_idle is wait",
    ),
    "all are idle and follow the clock": (
        {
            "sources": {
                "orders": SourceTimes(follows_clock_when_idle=True, idle_timeout_seconds=5, disorder_us=7_000_000)
            }
        },
        "waiting for the worker's clock to reach 12:03:27",
    ),
    "one is not idle": (
        {
            "sources": {"orders": PLAIN._replace(follows_clock_when_idle=True, idle_timeout_seconds=5)},
            "blocker": BLOCKER,
        },
        "waiting for the next event of orders: nothing since 12:03:10; idle_timeout is 5 s",
    ),
    "it does not run": ({"state": "STOPPED"}, "waiting for pipeline per-shop, which is STOPPED"),
    "an output of a pipeline that was dropped": (
        {"blocker": Blocker("pipeline:gone/out", None, None)},
        "waiting for the watermark of pipeline:gone/out, which is not known yet",
    ),
}


@pytest.mark.parametrize("case", SENTENCES)
def test_the_reason_for_an_open_window_names_what_must_happen(case: str) -> None:
    given, sentence = SENTENCES[case]
    first_end = given.pop("first_end", END) if "first_end" in given else END
    plain: dict[str, Any] = {"name": "per-shop", "state": "RUNNING", "lag_bytes": 0, "blocker": None, "stream": ""}
    assert why_open(Watermarked(**plain | {"sources": {}} | given), first_end, NOW) == sentence
