"""The pipelines in examples/ compute what their docstrings say."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.spark.run.failures import load_pipelines
from penstock.testing import Event, Result, run_pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

EXAMPLES = Path(__file__).parents[2] / "examples"


def minutes(*given: tuple[float, bytes], stream: str = "test") -> list[Event]:
    """Pairs of a minute since 1970 and a text."""
    return [Event(value=text, event_time=minute * 60, stream=stream) for minute, text in given]


def click(user: str, page: str) -> bytes:
    return json.dumps({"user": user, "page": page}).encode()


DAY = "1970-01-01T0"
WARM, COLD = b'{"celsius": 21}', b'{"celsius": 19}'
SENSORS = [
    *minutes((1, WARM), (1.5, COLD), (2, COLD), stream="roof"),
    *minutes((100, WARM), stream="cellar"),
]
DOUBLE = click("ann", "/")
CLICKS = minutes((1, DOUBLE), (1.2, DOUBLE), (20, click("ann", "/b")), (60, DOUBLE), (61, b"no JSON"))


def ran(spark: SparkSession, name: str, **inputs: Sequence[Any]) -> Result:
    """The pipeline in the example of its name, over sources that end."""
    (pipeline,) = load_pipelines(EXAMPLES / f"{name}.py")
    return run_pipeline(pipeline, inputs, spark=spark)


def columns(result: Result, *names: str) -> list[tuple[object, ...]]:
    return sorted([tuple(row[name] for name in names) for row in result.rows], key=str)


def test_means_per_minute_wait_for_the_slowest_sensor(spark: SparkSession) -> None:
    assert columns(ran(spark, "readings_per_minute", sensors=SENSORS), "stream", "event_time", "celsius") == [
        ("cellar", f"{DAY}1:40:59.999Z", 21.0),
        ("roof", f"{DAY}0:01:59.999Z", 20.0),
        ("roof", f"{DAY}0:02:59.999Z", 19.0),
    ]


def test_sensors_are_silent_from_their_last_reading_on(spark: SparkSession) -> None:
    assert columns(ran(spark, "silent_sensors", sensors=SENSORS), "sensor", "silent_since") == [
        ("cellar", f"{DAY}1:40:00.000Z"),
        ("roof", f"{DAY}0:02:00.000Z"),
    ]


def test_clicks_less_than_half_an_hour_apart_are_one_visit(spark: SparkSession) -> None:
    assert columns(ran(spark, "visits", clicks=CLICKS), "user", "start", "end", "clicks") == [
        ("ann", f"{DAY}0:01:00.000Z", f"{DAY}0:50:00.000Z", 3),
        ("ann", f"{DAY}1:00:00.000Z", f"{DAY}1:30:00.000Z", 1),
    ]


def test_orders_are_matched_with_payments_within_an_hour(spark: SparkSession) -> None:
    orders, payments = minutes((10, b"1"), (11, b"2")), minutes((60, b"1"), (100, b"2"))
    result = ran(spark, "match_payments", orders=orders, payments=payments)
    assert columns(result, "number", "paid") == [("1", f"{DAY}1:00:00.000Z"), ("2", None)]


def test_a_click_that_is_sent_twice_counts_once(spark: SparkSession) -> None:
    values = sorted(row.value for row in ran(spark, "without_duplicates", clicks=CLICKS).rows)
    assert values == sorted([DOUBLE, click("ann", "/b"), b"no JSON"]), "one batch: its state is not given up"


def test_the_bookings_of_an_account_are_in_the_order_in_which_they_were_made(spark: SparkSession) -> None:
    def booked(account: str, amount: int, at: int, till: str) -> Event:
        return Event(data={"account": account, "amount": amount}, event_time=at, stream=till)

    tills = [
        [booked("ann", 1, 10, "north"), booked("bob", 2, 30, "north"), booked("ann", 3, 20, "south")],
        [booked("ann", 4, 50, "north"), booked("bob", 5, 60, "north"), booked("bob", 6, 25, "south")],
        [booked("bob", 7, 5, "south")],
    ]
    result = ran(spark, "account_history", tills=tills)
    per_account = {name: [row["amount"] for row in result.rows if row["account"] == name] for name in ("ann", "bob")}
    assert per_account == {"ann": [1, 3, 4], "bob": [6, 2, 5]}
    assert [[row["amount"] for row in epoch.rows] for epoch in result.epochs[:2]] == [[1], [3]], "as the slower till is"
    assert [json.loads(event.value or b"") for event in result.late] == [{"account": "bob", "amount": 7}]


def test_views_of_a_page_are_counted_per_minute(spark: SparkSession) -> None:
    result = ran(spark, "page_views", clicks=CLICKS)
    assert columns(result, "page", "window_start", "pane", "views", "visitors") == [
        ("/", f"{DAY}0:01:00.000Z", "on_time", 2, 1),
        ("/", f"{DAY}1:00:00.000Z", "on_time", 1, 1),
        ("/b", f"{DAY}0:20:00.000Z", "on_time", 1, 1),
    ]
    assert [event.value for event in result.dead_letters] == [b"no JSON"]
