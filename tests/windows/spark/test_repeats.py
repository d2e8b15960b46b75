"""An event of which a stage makes several rows: late, or without a time, it leaves once and not once for each."""

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
"""Enough to be in several buckets, and so in several tasks."""

PLACED, NAMED = ("segment", "offset"), ("stream_id", "message_id", "value")


def exploded(sales: DataFrame, kept: tuple[str, ...]) -> DataFrame:
    """A row for each shop that a sale names; a sale without a time in its payload has none."""
    whole = sales.selectExpr("*", "from_json(cast(value as string), 'at bigint, shops array<string>') v")
    return whole.selectExpr("timestamp_millis(v.at) as event_time", *kept, "explode(v.shops) as shop")


@pipeline(max_rows_per_epoch=1)
def in_minutes(sales: DataFrame) -> DataFrame:
    rows = exploded(sales, PLACED)
    return windows.aggregate(rows, windows.tumbling("10 seconds"), keys="shop", n=windows.count())


@pipeline(max_rows_per_epoch=1)
def in_sessions(sales: DataFrame) -> DataFrame:
    """Shuffled by the user, and judged by the state: no task sees all rows of an event before they are late."""
    rows = exploded(sales, NAMED).repartition("shop")
    return windows.aggregate(rows, windows.session("10 seconds"), keys="shop", n=windows.count())


def test_an_event_with_many_rows_leaves_late_once_and_without_a_time_once(bench: Bench) -> None:
    times = [1_000, 60_000, 2_000, None, 2_000]
    bench.send(*((at or 60_000, {"at": at, "shops": SHOPS, "sale": n}) for n, at in enumerate(times)), (99_000, {}))
    bench.run(in_minutes, in_sessions)
    for name in ("in_minutes", "in_sessions"):
        assert len([pane for pane in bench.panes(name) if pane["n"] == 1]) == 2 * len(SHOPS), name
        late = [json.loads(letter.payload) for letter in bench.out(name, "late")]
        assert [each["sale"] for each in late] == [2, 4], name
        assert [json.loads(letter.payload)["sale"] for letter in bench.out(name, "err")] == [3], name


@pipeline(max_rows_per_epoch=1)
def some_nowhere(sales: DataFrame) -> DataFrame:
    """Of a union with rows that do not say where they come from."""
    placed = sales.select("event_time", "stream", "segment", "offset")
    rows = placed.unionByName(sales.selectExpr("event_time", "'copy' as stream"), allowMissingColumns=True)
    return windows.aggregate(rows, windows.tumbling("10 seconds"), n=windows.count())


def test_rows_that_do_not_say_where_their_event_is_stored_are_late_as_their_json(bench: Bench) -> None:
    bench.send((1_000, "first"), (60_000, "second"), (2_000, "late"), (2_000, "later"), (99_000, "last"))
    bench.run(some_nowhere)
    late = bench.out("some_nowhere", "late")
    copy = {"event_time": "1970-01-01T00:00:02.000Z", "stream": "copy", "segment": None, "offset": None}
    assert sorted((json.loads(letter.payload) for letter in late), key=str) == ["late", "later", copy, copy]
    assert {letter.event_time for letter in late} == {2_000_000}
