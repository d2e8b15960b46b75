"""Whatever is done with a frame: an event that is late goes to `late` once, and Spark's own operators drop nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import penstock
from penstock import windows
from penstock.testing import run_pipeline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

SALES = "shop STRING, amount INT"
SHOPS = [f"shop {number}" for number in range(12)]
"""Enough to be in several buckets, and in several partitions after a shuffle."""


def sale(second: float, shop: str = "north", amount: int = 1) -> dict[str, Any]:
    return {"shop": shop, "amount": amount, "event_time": second}


def amounts(events: Any) -> list[bytes]:
    return sorted(event.value for event in events)


def coalesced_windows(sales: DataFrame) -> DataFrame:
    """What leaves the state, of several buckets in one task."""
    panes = windows.aggregate(sales, windows.tumbling("10 seconds"), keys=["shop"], total=windows.sum("amount"))
    return panes.select("shop", "total").coalesce(1)


def coalesced_rows(sales: DataFrame) -> DataFrame:
    return penstock.watermarked(sales.repartition(3, "shop")).select("shop", "amount").coalesce(1)


@pytest.mark.parametrize("function", [coalesced_windows, coalesced_rows])
def test_a_task_may_stage_late_events_of_several_partitions(spark: SparkSession, function: Any) -> None:
    late = [sale(5, shop, number) for number, shop in enumerate(SHOPS)]
    result = run_pipeline(function, {"sales": [[sale(100)], [*late, sale(101)]]}, schema=SALES, spark=spark)
    expected = sorted(b'{"shop":"%s","amount":%d}' % (shop.encode(), number) for number, shop in enumerate(SHOPS))
    assert amounts(result.late) == expected
    assert all(event.segment is not None for event in result.late)
