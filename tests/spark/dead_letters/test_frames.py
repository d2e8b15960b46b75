"""What functions over frames accept and refuse, before anything runs. What they do is in test_queries.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

import penstock
from penstock import dead_letters
from penstock.core.errors import RequestError
from penstock.spark import pipeline
from penstock.spark.run.attempt import plan_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

SCHEMA = "user string, amount int"


def planned(spark: SparkSession, make: Callable[[DataFrame], Any]) -> tuple[str, ...]:
    """The ports of a pipeline that returns this."""

    @pipeline(name="p")
    def function(events: DataFrame) -> Any:
        return make(events)

    return plan_of(spark, function).ports


def test_frames_are_plain_and_dead_letters_have_their_own_ports(spark: SparkSession) -> None:
    found: dict[str, DataFrame] = {}

    def decoded(events: DataFrame) -> DataFrame:
        found["decoded"] = dead_letters.decode_json(events, SCHEMA)
        found["into"] = dead_letters.decode_json(events, SCHEMA, into="data")
        found["applied"] = dead_letters.apply(found["decoded"], dict, "n int", per="row", keep=["offset"])
        return found["applied"].where("n > 1").groupBy("n").count()

    assert planned(spark, decoded) == ("out", "err", "late")
    columns = ["source", "stream", "stream_id", "message_id", "event_time", "key", "value", "segment", "offset"]
    assert found["decoded"].columns == [*columns, "user", "amount"]
    assert found["into"].columns == [*columns, "data"]
    assert found["applied"].columns == ["n", "offset"]
    assert planned(spark, lambda events: dead_letters.apply(events, dict, "n int", on_error="fail")) == ("out",)


def test_columns_made_ambiguous_by_a_join_are_not_used(spark: SparkSession) -> None:
    def joined(events: DataFrame) -> DataFrame:
        other = events.withColumnRenamed("event_time", "before")
        return penstock.watermarked(events.join(other, "key")).select("event_time", "key", "before")

    assert planned(spark, joined) == ("out", "err", "late")


BAD: list[tuple[Callable[[Any], Any], str]] = [
    (lambda events: dead_letters.decode_json(events, "Key string"), "has a column `Key` already"),
    (lambda events: dead_letters.decode_json(events, SCHEMA, column="nothing"), "no column `nothing`"),
    (lambda events: dead_letters.decode_json(events, SCHEMA, on_error="drop"), "on_error='drop' is not valid"),  # type: ignore[arg-type]
    (lambda events: dead_letters.apply(events, print, "x int", per="table"), "per='table' is not valid"),  # type: ignore[arg-type]
    (lambda events: dead_letters.apply(events, print, "x int", keep=["y"]), "keep names `y`"),
    (lambda events: dead_letters.apply(events, print, "key int", keep=["key"]), "`key` would appear twice"),
]


@pytest.mark.parametrize(("make", "said"), BAD)
def test_invalid_arguments_of_apply_are_refused_with_a_hint(
    spark: SparkSession, make: Callable[[DataFrame], Any], said: str
) -> None:
    with pytest.raises(RequestError, match=said) as caught:
        planned(spark, make)
    assert caught.value.hint


def test_outside_a_pipeline_there_is_no_port_for_dead_letters(spark: SparkSession) -> None:
    events = spark.readStream.format("rate").load()
    with pytest.raises(RequestError, match=r"dead_letters.apply does not know its pipeline"):
        dead_letters.apply(events, dict, "x int", per="row")
