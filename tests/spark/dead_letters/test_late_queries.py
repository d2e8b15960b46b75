"""Whatever is done with a frame: an event that is late goes to `late` once, and Spark's own operators drop nothing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

import penstock
from penstock import dead_letters, windows
from penstock.testing import Event, run_pipeline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

SALES = "shop STRING, amount INT"
SHOPS = [f"shop {number}" for number in range(12)]
"""Enough to be in several buckets, and in several partitions after a shuffle."""


def sale(second: float, shop: str = "north", amount: int = 1) -> dict[str, Any]:
    return {"shop": shop, "amount": amount, "event_time": second}


def values(events: Any) -> list[bytes]:
    return sorted(event.value for event in events)


def values_of(sales: Any) -> list[bytes]:
    return sorted(b'{"shop":"%s","amount":%d}' % (one["shop"].encode(), one["amount"]) for one in sales)


def coalesced_windows(sales: DataFrame) -> DataFrame:
    """What leaves the state, of several buckets in one task."""
    panes = windows.aggregate(sales, windows.tumbling("10 seconds"), keys=["shop"], total=windows.sum("amount"))
    return panes.select("shop", "total").coalesce(1)


def coalesced_rows(sales: DataFrame) -> DataFrame:
    return penstock.watermarked(sales.repartition(3, "shop")).select("shop", "amount").coalesce(1)


def six_rows_each(sales: DataFrame) -> DataFrame:
    exploded = sales.selectExpr("shop", "event_time", "segment", "offset", "explode(sequence(1, 6)) as k")
    return exploded.repartition(4, "k")


def exploded(sales: DataFrame) -> DataFrame:
    return penstock.watermarked(six_rows_each(sales)).select("shop", "k")


def exploded_windows(sales: DataFrame) -> DataFrame:
    panes = windows.aggregate(six_rows_each(sales), windows.tumbling("10 seconds"), keys=["shop"], n=windows.count())
    return panes.select("shop", "n")


def united(sales: DataFrame) -> DataFrame:
    few = penstock.watermarked(sales).select("shop", "amount")
    return few.union(few.repartition(3))


@pytest.mark.parametrize("function", [exploded, exploded_windows, united])
def test_a_late_event_leaves_once_however_many_rows_were_made_of_it(spark: SparkSession, function: Any) -> None:
    late = [sale(5, shop, number) for number, shop in enumerate(SHOPS)]
    result = run_pipeline(function, {"sales": [[sale(100)], [*late, sale(101)]]}, schema=SALES, spark=spark)
    assert values(result.late) == values_of(late)
    assert result.dead_letters == []


def decoded(sales: DataFrame) -> DataFrame:
    """Its columns have the names of a position, and are none."""
    rows = dead_letters.decode_json(sales, "segment STRING, offset BIGINT", into="data")
    return rows.select("data.*", "event_time")


def sold(sales: DataFrame) -> DataFrame:
    return penstock.watermarked(decoded(sales)).selectExpr("offset as n")


def counted(sales: DataFrame) -> DataFrame:
    return windows.aggregate(decoded(sales), windows.tumbling("10 seconds"), sold=windows.count())


@pytest.mark.parametrize("function", [sold, counted])
def test_a_late_row_with_columns_of_the_names_of_a_position_keeps_its_values(
    spark: SparkSession, function: Any
) -> None:
    late = Event(value=b'{"segment": "gold", "offset": 5}', event_time=5)
    epochs = [[Event(value=b"{}", event_time=100)], [late, Event(value=b"{}", event_time=101)]]
    result = run_pipeline(function, {"sales": epochs}, spark=spark)
    (left,) = result.late
    assert json.loads(left.value or b"").items() >= {"segment": "gold", "offset": 5}.items()
    assert left.segment is None


def test_the_position_of_an_event_is_known_without_its_value(spark: SparkSession) -> None:
    """The value is carried only where the columns may be others."""
    from penstock.spark.dead_letters.columns import carried

    frame = spark.readStream.format("penstock").options(source="clicks").load()
    assert "CASE WHEN" in str(carried(frame.withColumnRenamed("key", "k").where("k is null"))["value"])
    assert "CASE WHEN" not in str(carried(frame.selectExpr("lower(segment) segment", "offset", "value"))["value"])


@pytest.mark.parametrize("function", [coalesced_windows, coalesced_rows])
def test_a_task_may_stage_late_events_of_several_partitions(spark: SparkSession, function: Any) -> None:
    late = [sale(5, shop, number) for number, shop in enumerate(SHOPS)]
    result = run_pipeline(function, {"sales": [[sale(100)], [*late, sale(101)]]}, schema=SALES, spark=spark)
    assert values(result.late) == values_of(late)
    assert all(event.segment is not None for event in result.late)
