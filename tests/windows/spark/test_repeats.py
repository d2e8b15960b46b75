"""An event that a stage turns into several rows: if it is late or has no time, it goes to its side port once."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from penstock import windows
from penstock.spark import pipeline
from tests.windows.spark.running import Bench

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = pytest.mark.spark

SHOPS = [f"shop {number}" for number in range(12)]
"""Enough for several buckets, and thus several tasks."""

PLACED, NAMED = ("segment", "offset"), ("stream_id", "message_id", "value")


def exploded(sales: DataFrame, kept: tuple[str, ...]) -> DataFrame:
    """A row for each shop in a sale; the time is in the payload, and may be missing."""
    whole = sales.selectExpr("*", "from_json(cast(value as string), 'at bigint, shops array<string>') v")
    return whole.selectExpr("timestamp_millis(v.at) as event_time", *kept, "explode(v.shops) as shop")


@pipeline(max_rows_per_epoch=1)
def in_minutes(sales: DataFrame) -> DataFrame:
    rows = exploded(sales, PLACED)
    return windows.aggregate(rows, windows.tumbling("10 seconds"), keys="shop", n=windows.count())


@pipeline(max_rows_per_epoch=1)
def in_sessions(sales: DataFrame) -> DataFrame:
    """Shuffled by the user, and checked in the state: no task sees all rows of an event before they are late."""
    rows = exploded(sales, NAMED).repartition("shop")
    return windows.aggregate(rows, windows.session("10 seconds"), keys="shop", n=windows.count())


def test_an_event_with_many_rows_is_late_once_or_without_a_time_a_dead_letter_once(bench: Bench) -> None:
    times = [1_000, 60_000, 2_000, None, 2_000]
    bench.send(*((at or 60_000, {"at": at, "shops": SHOPS, "sale": n}) for n, at in enumerate(times)), (99_000, {}))
    bench.run(in_minutes, in_sessions)
    for name in ("in_minutes", "in_sessions"):
        assert len([pane for pane in bench.panes(name) if pane["n"] == 1]) == 2 * len(SHOPS), name
        late = [json.loads(event.payload) for event in bench.out(name, "late")]
        assert [each["sale"] for each in late] == [2, 4], name
        assert [json.loads(event.payload)["sale"] for event in bench.out(name, "err")] == [3], name


@pipeline(max_rows_per_epoch=1)
def some_nowhere(sales: DataFrame) -> DataFrame:
    """A union with rows that have lost the position of their event."""
    placed = sales.select("event_time", "stream", "segment", "offset")
    rows = placed.unionByName(sales.selectExpr("event_time", "'copy' as stream"), allowMissingColumns=True)
    return windows.aggregate(rows, windows.tumbling("10 seconds"), n=windows.count())


def test_late_rows_without_the_position_of_their_event_are_stored_as_json(bench: Bench) -> None:
    bench.send((1_000, "first"), (60_000, "second"), (2_000, "late"), (2_000, "later"), (99_000, "last"))
    bench.run(some_nowhere)
    late = bench.out("some_nowhere", "late")
    copy = {"event_time": "1970-01-01T00:00:02.000Z", "stream": "copy", "segment": None, "offset": None}
    assert sorted((json.loads(event.payload) for event in late), key=str) == ["late", "later", copy, copy]
    assert {event.event_time for event in late} == {2_000_000}
