"""`windows.ordered` on a real session: in order for each key, to the output segment, over a restart in the middle."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from penstock import windows
from penstock.spark import Pipeline, pipeline
from tests.spark.asking import get
from tests.windows.order_reference import Event, OrderReference
from tests.windows.spark.running import Bench
from tests.windows.spark.scene import Scene, Sent

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

SECOND = 1_000_000
KEYS = ["a", "b", "c", None]
SPAN = "cast(json.n as interval second) span"


def ingest_epochs(scene: Scene, chance: random.Random, start: int, count: int) -> None:
    """Two streams whose times wander forward, with equal times, much that comes late, before and after 1970."""
    for epoch in range(start, start + count):
        now = (epoch * 4 - 12) * SECOND
        events = []
        for number in range(25):
            time = now + chance.randrange(-6, 9) * SECOND // 2
            events.append((chance.randrange(1, 3), time, {"k": chance.choice(KEYS), "n": number}))
        scene.ingest(*events, (1, now, {"k": "a", "n": -1}), (2, now, {"k": "b", "n": -1}))


def decoded(events: DataFrame) -> DataFrame:
    """All of an event that is used, with a value of nested types."""
    json_kind = "k string, n bigint"
    rows = events.selectExpr("*", f"from_json(cast(value as string), '{json_kind}') json")
    value = "named_struct('k', json.k, 'n', json.n, 'at', array(event_time)) v"
    kinds = ["cast(json.n as decimal(20, 3)) as `a.decimal`", "parse_json(cast(value as string)) json", SPAN]
    return rows.selectExpr(
        *kinds,
        "event_time",
        "segment",
        "offset",
        "stream_id",
        "message_id",
        "json.k",
        value,
        "1 as fixed",
        "map('n', json.n) m",
    )


def build(events: DataFrame) -> DataFrame:
    rows = windows.ordered(decoded(events).repartition(3), keys="k", buckets=5, name="in order")
    seen = ["spark_partition_id() part", "unix_micros(event_time) us", "unix_micros(v.at[0]) at"]
    return rows.selectExpr("*", *seen, "to_json(json) text").drop("json")


def referred(sent: Sent) -> Event:
    return Event(sent.time_us, json.loads(sent.payload)["k"], sent.stream, sent.number, sent.number)


@pytest.fixture
def elsewhere(spark: SparkSession) -> Iterator[None]:
    """A session whose clock is not UTC: no result may depend on it."""
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Kathmandu")
    yield
    spark.conf.set("spark.sql.session.timeZone", before or "UTC")


@pytest.mark.usefixtures("elsewhere")
def test_every_key_is_in_the_order_of_the_reference_with_all_columns_across_a_restart(scene: Scene) -> None:
    chance = random.Random(20261116)
    ingest_epochs(scene, chance, 0, 4)
    rows = scene.run(build)
    (shown,) = scene.numbers()
    assert (shown["operator"], shown["buckets"], shown["open_windows"]) == ("in order", 5, 0)
    assert shown["buffered"] > 0, "the restart is in the middle"
    ingest_epochs(scene, chance, 4, 4)
    rows += scene.run(build)
    reference, expected, late = OrderReference(), list[list[Event]](), list[Event]()
    for events, before, after in scene.epochs():
        ready, missed = reference.epoch([*map(referred, events)], before, after)
        expected.append(ready)
        late += missed
    found = [row.asDict(recursive=True) for row in rows]
    everything = [event for epoch in expected for event in epoch]
    assert len(scene.epochs()) == 8
    assert sum(map(bool, expected)) >= 5
    for key in KEYS:
        assert [row["message_id"] for row in found if row["k"] == key] == [
            event.number for event in everything if event.key == key
        ], key
    starts = [0]
    for epoch in expected:
        starts.append(starts[-1] + len(epoch))
        batch = found[starts[-2] : starts[-1]]
        assert {row["message_id"] for row in batch} == {event.number for event in epoch}, "each in its epoch"
        parts = {(row["k"], row["part"]) for row in batch}
        assert len(parts) == len({key for key, _ in parts}), "a key is in one partition"
    by_number = {one.number: one for one in scene.sent}
    for row in found:
        sent = by_number[row["message_id"]]
        value = json.loads(sent.payload)
        assert (row["us"], row["at"], row["offset"], row["stream_id"]) == (
            sent.time_us,
            sent.time_us,
            sent.offset,
            sent.stream,
        )
        assert (row["v"]["k"], row["v"]["n"], row["fixed"], row["m"]) == (value["k"], value["n"], 1, {"n": value["n"]})
        assert (row["a.decimal"], row["span"]) == (value["n"], timedelta(seconds=value["n"]))
        assert json.loads(row["text"]) == value
    left = scene.left()
    assert sorted(event.event_id for event in left) == sorted(event.number for event in late)
    assert all(event.payload == by_number[event.event_id].payload for event in left)
    assert {event.metadata["reason"] for event in left} == {"event time is behind the watermark"}
    (shown,) = scene.numbers()
    assert (shown["late_kept"], shown["buffered"]) == (len(late), len(reference.held))


SHOPS = [f"shop {number}" for number in range(8)]
FAST, SLOW = 1, 2
"""Streams: the slow one keeps the watermark back, as the fast one is far ahead."""
FAR = 1000


def sorting(*more: str, **options: Any) -> Pipeline:
    """Sales of a shop, as they happened; what is ingested at once is an epoch."""

    def sort_sales(given: DataFrame) -> DataFrame:
        rows = given.selectExpr("*", "from_json(cast(value as string), 'shop string, n bigint, timeless boolean') v")
        time = "if(v.timeless, null, event_time) event_time"
        rows = rows.selectExpr("v.shop", "v.n", time, "segment", "offset", *more)
        held = windows.ordered(rows, keys=["shop"], buckets=4, **options)
        return held.where("n >= 0").drop("segment", "offset")

    return pipeline(name="sort_sales", inputs={"given": "sensors"}, max_rows_per_epoch=1)(sort_sales)


def ingest_sales(scene: Scene, times: list[int], watermark: int, first: int = 0) -> None:
    """One epoch: sales of the shops in turn, at these times in seconds, and where the watermark is then."""
    given = [(FAST, at * SECOND, {"shop": SHOPS[n % len(SHOPS)], "n": n}) for n, at in enumerate(times, first)]
    marks = [(FAST, FAR * SECOND, {"shop": "far", "n": -1}), (SLOW, watermark * SECOND, {"shop": "slow", "n": -1})]
    scene.ingest(*given, *marks)


def per_shop(rows: list[dict[str, Any]]) -> dict[str, list[int]]:
    """The numbers of each shop's sales, as they stand in the output."""
    return {shop: [row["n"] for row in rows if row["shop"] == shop] for shop in SHOPS}


def test_the_output_segment_has_each_key_in_order_across_epochs_and_a_restart(scene: Scene, bench: Bench) -> None:
    chance = random.Random(7)
    times = [chance.randrange(50, 150) for _ in range(90)]
    ingest_sales(scene, times[:30], 10)
    ingest_sales(scene, times[30:60], 70, 30)
    bench.run(sorting())
    before = bench.panes("sort_sales")
    passed = [at for at in times[:60] if at < 70]
    assert len(before) == len(passed) > 0
    status = get(bench.worker, "/status")
    (text,) = [one["text"] for one in status["blockages"] if one["kind"] == "windows"]
    held = 60 - len(passed) + 3  # those that are far ahead, and the one at the watermark
    assert text.startswith(f"sort_sales: {held} events buffered, waiting for")

    ingest_sales(scene, [at + 20 for at in times[60:]], 200, 60)
    bench.run(sorting())
    rows = bench.panes("sort_sales")
    happened = dict(enumerate([*times[:60], *(at + 20 for at in times[60:])]))
    assert rows[: len(before)] == before
    assert sorted(row["n"] for row in rows) == [*range(90)]
    expected = sorted(happened, key=lambda n: (happened[n], n))
    assert per_shop(rows) == {shop: [n for n in expected if SHOPS[n % len(SHOPS)] == shop] for shop in SHOPS}
    assert not bench.out("sort_sales", "late")


def test_late_events_and_events_without_a_time_are_emitted_once_and_dropped_ones_are_counted(
    scene: Scene, bench: Bench
) -> None:
    ingest_sales(scene, [60, 50], 40)
    ingest_sales(scene, [70, 39, 40], 80, 2)
    scene.ingest((FAST, FAR * SECOND, {"shop": SHOPS[0], "n": 5, "timeless": True}))
    bench.run(sorting())
    assert sorted(row["n"] for row in bench.panes("sort_sales")) == [0, 1, 2, 4]
    (late,) = bench.out("sort_sales", "late")
    assert json.loads(late.payload) == {"shop": SHOPS[3], "n": 3}
    assert (late.metadata["watermark"], late.metadata["behind_us"]) == (40 * SECOND, SECOND)
    (timeless,) = bench.out("sort_sales", "err")
    assert json.loads(timeless.payload)["n"] == 5
    ingest_sales(scene, [10, 85], 95, 6)
    bench.run(sorting(late="drop"))
    assert [row["n"] for row in bench.panes("sort_sales")][-1] == 7
    assert len(bench.out("sort_sales", "late")) == 1
    (shown,) = scene.numbers()
    assert (shown["operator"], shown["late_kept"], shown["late_dropped"]) == ("ordered by shop", 1, 1)


def test_columns_may_be_added_and_removed_while_events_are_buffered(scene: Scene, bench: Bench) -> None:
    ingest_sales(scene, [60, 50], 40)
    bench.run(sorting("stream"))
    ingest_sales(scene, [70], 55, 2)
    bench.run(sorting("n * 2 as twice"))
    (row,) = bench.panes("sort_sales")
    assert (row["n"], row["twice"], "stream" in row) == (1, None, False)
    ingest_sales(scene, [], 99)
    bench.run(sorting("n * 2 as twice"))
    assert [(row["n"], row["twice"]) for row in bench.panes("sort_sales")[1:]] == [(0, None), (2, 4)]
