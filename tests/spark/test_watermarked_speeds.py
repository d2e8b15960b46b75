"""Sources of different speeds: Spark's own operators lose nothing of the slow ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.feeding import Feed
from tests.spark.following import Following, at, following, in_pipeline, late, load, seconds
from tests.support.running_worker import RunningWorker

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

pytestmark = pytest.mark.spark

EVENTS = 100
"""Events that a stream sends at once."""

HOUR = 3600


def counted(frame: DataFrame) -> DataFrame:
    from pyspark.sql import functions

    return frame.groupBy(functions.window("event_time", "10 minutes"), "stream").count()


def rows_of(query: Following, stream: str) -> int:
    return sum(row["count"] for row in query.rows if row["stream"] == stream)


def burst(hour: float) -> Sequence[tuple[int, bytes]]:
    return [at(hour * HOUR + number) for number in range(EVENTS)]


def test_a_stream_an_hour_behind_nine_others_loses_nothing(
    worker: RunningWorker, spark: SparkSession, tmp_path: Path
) -> None:
    """Spark's own watermark follows the fastest stream, and drops events of the slow one as late."""
    import penstock
    from penstock import windows

    fast = [f"fast {number}" for number in range(9)]
    frames = {"own": counted(load(spark, worker, "own", "fleet").withWatermark("event_time", "10 minutes"))}
    with in_pipeline(spark, worker, "ours", "fleet"):
        frames["ours"] = counted(penstock.watermarked(load(spark, worker, "ours", "fleet")))
    with in_pipeline(spark, worker, "windows", "fleet"):
        rows = load(spark, worker, "windows", "fleet")
        window = windows.tumbling("10 minutes")
        frames["windows"] = windows.aggregate(rows, window, keys=["stream"], count=windows.count(), buckets=2)
    with Feed(worker, "fleet", [*fast, "slow"]) as fleet, following(tmp_path, frames) as queries:
        for said in [
            {"slow": burst(-1)},
            dict.fromkeys(fast, burst(0)),
            {"slow": burst(-0.5)},
            dict.fromkeys(fast, burst(3)),
            {"slow": burst(3)},
        ]:
            fleet.say_all(said)
            for query in queries.values():
                query.step()
        own, ours = queries["own"], queries["ours"]
        assert rows_of(own, "slow") == EVENTS, "its second burst is lost"
        assert (own.dropped, ours.dropped) == (1, 0), "a burst is one row of a window by then"
        for query in (ours, queries["windows"]):
            assert rows_of(query, "slow") == 2 * EVENTS
        fleet.finish()
        for query in (ours, queries["windows"]):
            query.step()
            assert {stream: rows_of(query, stream) for stream in fast} == dict.fromkeys(fast, 2 * EVENTS)
            assert rows_of(query, "slow") == 3 * EVENTS, "at the end of time all windows close"
        assert ours.state_rows == 0
        assert late(worker, "windows") == late(worker, "ours") == [], "nothing was late"


def test_a_join_of_a_fast_and_a_slow_source_finds_every_pair(
    worker: RunningWorker, spark: SparkSession, tmp_path: Path
) -> None:
    """Its state is removed, and an unpaid order is emitted when no payment can arrive any more."""
    import penstock

    def named(source: str, time: str) -> DataFrame:
        with in_pipeline(spark, worker, "paid", "orders"):
            frame = penstock.watermarked(load(spark, worker, "paid", source))
        return frame.selectExpr(f"cast(value as string) as {source}", f"event_time as {time}")

    orders, payments = named("orders", "ordered"), named("payments", "paid")
    soon = "orders = payments and paid >= ordered and paid <= ordered + interval 10 minutes"
    paid = orders.join(payments.where("payments != 'none'"), _expr(soon), "left")
    with (
        Feed(worker, "orders", ["web"]) as web,
        Feed(worker, "payments", ["bank"]) as bank,
        following(tmp_path, {"paid": paid}) as queries,
    ):
        query = queries["paid"]
        web.say("web", *[at(minute * 60, b"%d" % minute) for minute in (0, 30, 60, 120)])
        query.step()
        for minute in (0, 60, 120):
            bank.say("bank", at(minute * 60 + 300, b"%d" % minute))
            query.step()
        assert query.dropped == 0
        assert query.state_rows == 2, "the last order, and its payment"
        web.say("web", at(6 * HOUR, b"last"))
        bank.say("bank", at(6 * HOUR, b"last"))
        query.step()
        pairs = {row["orders"]: row["paid"] and seconds(row["paid"]) for row in query.rows}
        assert pairs == {"0": 300, "30": None, "60": 3900, "120": 7500, "last": 6 * HOUR}
        assert len(query.rows) == 5
        assert query.state_rows == 2, "the last pair"


def test_a_watermarked_frame_can_be_used_twice(worker: RunningWorker, spark: SparkSession, tmp_path: Path) -> None:
    import penstock

    with in_pipeline(spark, worker, "steps", "steps"):
        marked = penstock.watermarked(load(spark, worker, "steps", "steps"))
    steps = marked.selectExpr("event_time as time", "message_id as n")
    after = steps.selectExpr("time as later", "n - 1 as before")
    pairs = steps.join(after, _expr("n = before and later >= time and later <= time + interval 1 minute"))
    with Feed(worker, "steps", ["one"]) as one, following(tmp_path, {"steps": pairs}) as queries:
        for number in range(4):
            one.say("one", at(number * 60))
            queries["steps"].step()
        assert sorted((row["n"], seconds(row["later"])) for row in queries["steps"].rows) == [
            (1, 60),
            (2, 120),
            (3, 180),
        ]
        assert queries["steps"].state_rows <= 6
        one.say("one", at(61, b"late"))
        queries["steps"].step()
        one.say("one", at(241))
        queries["steps"].step()
        assert [event.payload for event in late(worker, "steps")] == [b"late"], "both uses have read it"
        assert queries["steps"].dropped == 0


def test_rows_that_are_late_for_a_join_leave_once_whatever_their_side(
    worker: RunningWorker, spark: SparkSession, tmp_path: Path
) -> None:
    import penstock

    def joined(kind: str) -> DataFrame:
        with in_pipeline(spark, worker, kind, "orders"):
            orders, payments = (
                penstock.watermarked(load(spark, worker, kind, source)).selectExpr(
                    f"cast(value as string) as {source}", f"event_time as {time}"
                )
                for source, time in (("orders", "ordered"), ("payments", "paid"))
            )
        soon = "orders = payments and paid >= ordered and paid <= ordered + interval 10 minutes"
        return orders.join(payments, _expr(soon), kind)

    with (
        Feed(worker, "orders", ["web"]) as web,
        Feed(worker, "payments", ["bank"]) as bank,
        following(tmp_path, {kind: joined(kind) for kind in ("inner", "left")}) as queries,
    ):
        for minute, more in ((0, ()), (60, ()), (61, (10, 20)), (120, ())):
            web.say("web", at(minute * 60, b"%d" % minute), *(at(second, b"order %d" % second) for second in more))
            bank.say("bank", at(minute * 60, b"%d" % minute), *(at(second, b"payment %d" % second) for second in more))
            for query in queries.values():
                query.step()
        for kind, query in queries.items():
            query.step()
            assert sorted(event.payload for event in late(worker, kind)) == [
                b"order 10",
                b"order 20",
                b"payment 10",
                b"payment 20",
            ], kind
            assert query.dropped == 0, kind
            assert sorted(row["orders"] for row in query.rows) == ["0", "120", "60", "61"], kind
            assert {row["payments"] for row in query.rows} == {"0", "60", "61", "120"}, kind


def _expr(text: str) -> Column:
    from pyspark.sql import functions

    return functions.expr(text)
