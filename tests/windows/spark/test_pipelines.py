"""Windows in pipelines as `penstock run` runs them: what goes to which port, with real sources and restarts."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from penstock import windows
from penstock.spark import pipeline
from penstock.windows.stages import NO_EVENT_TIME
from tests.spark.asking import get
from tests.windows.spark.running import Bench

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = pytest.mark.spark


def decoded(sales: DataFrame) -> DataFrame:
    """Without the bytes, but with their position."""
    return sales.selectExpr("event_time", "segment", "offset", "from_json(cast(value as string), 'shop string') v")


@pipeline(max_rows_per_epoch=1)
def per_shop(sales: DataFrame) -> DataFrame:
    return windows.aggregate(decoded(sales), windows.tumbling("10 seconds"), keys="v.shop", n=windows.count())


@pipeline(max_rows_per_epoch=1, inputs={"panes": "pipeline:per_shop/out"})
def per_minute(panes: DataFrame) -> DataFrame:
    """Windows over another pipeline's panes: it inherits their watermark, and none of them is late."""
    counted = panes.selectExpr("event_time", "value", "from_json(cast(value as string), 'n bigint') v")
    return windows.aggregate(
        counted, windows.tumbling("20 seconds"), late="drop", n=windows.sum("v.n"), panes=windows.count()
    )


def test_panes_go_to_out_and_late_events_with_their_original_bytes_to_late(bench: Bench) -> None:
    sold = [(1_000, "a"), (2_000, "b"), (31_000, "a"), (3_000, "late"), (99_000, "a")]
    bench.send(*((time_ms, {"shop": shop, "number": number}) for number, (time_ms, shop) in enumerate(sold)))
    bench.run(per_shop)
    assert sorted(
        (pane["shop"], pane["window_start"], pane["n"], pane["pane"]) for pane in bench.panes("per_shop")
    ) == [
        ("a", "1970-01-01T00:00:00.000Z", 1, "on_time"),
        ("a", "1970-01-01T00:00:30.000Z", 1, "on_time"),
        ("b", "1970-01-01T00:00:00.000Z", 1, "on_time"),
    ]
    (late,) = bench.out("per_shop", "late")
    assert json.loads(late.payload) == {"shop": "late", "number": 3}
    assert (late.key, late.event_time, late.metadata["source"], late.metadata["stream"]) == (
        b"key", 3_000_000, "sales", "till",
    )  # fmt: skip
    assert late.metadata["watermark"] - late.metadata["behind_us"] == 3_000_000
    assert late.metadata["segment"].startswith("connector/sales/")
    assert bench.out("per_shop", "err") == []
    bench.run(per_minute)
    assert [(pane["window_start"], pane["n"], pane["panes"]) for pane in bench.panes("per_minute")] == [
        ("1970-01-01T00:00:00.000Z", 2, 2),
        ("1970-01-01T00:00:20.000Z", 1, 1),
    ]
    bench.run(per_shop, per_minute)
    assert len(bench.out("per_shop")) == 3
    assert len(bench.out("per_shop", "late")) == 1, "a restart brings nothing twice"
    (shown,) = [one for one in get(bench.worker, "/status")["windows"] if one["pipeline"] == "per_minute"]
    assert shown["late_dropped"] == 0


def timed(sales: DataFrame) -> DataFrame:
    """The time is in the payload, and sometimes missing."""
    return sales.selectExpr(
        "timestamp_millis(cast(get_json_object(cast(value as string), '$.at') as bigint)) at", "value"
    )


@pipeline(max_rows_per_epoch=1)
def by_payload(sales: DataFrame) -> DataFrame:
    return windows.aggregate(
        timed(sales), windows.tumbling("10 seconds"), event_time="at", late="drop", name="dropping", n=windows.count()
    )


def test_dropped_late_events_are_counted_and_events_without_a_time_are_dead_letters(bench: Bench) -> None:
    far = 400_000_000_000_000  # in the year 14,645
    times = ((1_000, 1_000), (40_000, 40_000), (50_000, None), (2_000, 2_000), (3_000, 3_000), (50_000, far))
    bench.send(*((sent_at, {"at": at}) for sent_at, at in times))
    bench.run(by_payload)
    assert [pane["n"] for pane in bench.panes("by_payload")] == [1, 1]
    assert bench.out("by_payload", "late") == []
    dead = bench.out("by_payload", "err")
    assert [json.loads(event.payload)["at"] for event in dead] == [None, far]
    assert {event.metadata["reason"] for event in dead} == {NO_EVENT_TIME}
    (shown,) = get(bench.worker, "/status")["windows"]
    assert (shown["operator"], shown["late_dropped"], shown["late_kept"]) == ("dropping", 2, 0)
