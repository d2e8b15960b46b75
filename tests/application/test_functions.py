"""What a user's function may return; anything else is reported before its query starts."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from penstock.application.functions import FUNCTION_COLUMNS, Coded, UserFunction
from penstock.core.errors import RequestError
from penstock.spark.codecs.codec import Branch, Outlet
from penstock.spark.pipeline_context import PipelineContext
from penstock.spark.pipelines import Pipeline
from penstock.spark.run.attempt import _pretended_input, built, plan_of
from tests.spark.conftest import spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["spark"]

pytestmark = pytest.mark.spark

PORTS = ("out", "err", "late", "big")


def planned(session: SparkSession, call: Callable[..., Any], *inputs: str, codec: str = "json") -> tuple[str, ...]:
    outlets = {port: Outlet(port, ((port, codec),)) for port in PORTS}
    sole = "frame" if inputs == ("in",) else None
    return plan_of(session, reading(Coded(UserFunction(call, ModuleType("mine"), sole), outlets), *inputs)).ports


def reading(function: Coded, *inputs: str) -> Pipeline:
    """A pipeline whose inputs are decoded."""
    return Pipeline(
        name="p",
        function=function,
        inputs=dict.fromkeys(inputs, ("a",)),
        decoding=dict.fromkeys(inputs, (Branch("json", "id int, name string"),)),
        columns=FUNCTION_COLUMNS,
        outputs=PORTS,
    )


GOOD: dict[str, Callable[[DataFrame], Any]] = {
    "as it came": lambda frame: frame,
    "its columns": lambda frame: frame.drop("value"),
    "a filter": lambda frame: frame.where("id > 1"),
    "a window": lambda frame: frame.withWatermark("event_time", "1 minute").groupBy("event_time", "id").count(),
    "the same frame twice": lambda frame: {"out": frame, "big": frame.where("id > 1")},
    "a join with itself": lambda frame: frame.select("id", "name").join(frame.selectExpr("id", "name AS other"), "id"),
    "no duplicates": lambda frame: frame.dropDuplicates(["id"]).drop("value"),
    "rows that name their ports": lambda frame: frame.drop("value").selectExpr("*", "'big' AS port"),
}


@pytest.mark.parametrize("what", GOOD)
def test_what_can_leave_is_planned(spark: SparkSession, what: str) -> None:
    def call(frame: DataFrame) -> Any:
        return GOOD[what](frame)

    assert planned(spark, call, "in") == PORTS


BAD: dict[str, tuple[Callable[[DataFrame], Any], str]] = {
    "a value and more": (lambda frame: frame.selectExpr("*", "1 AS one"), "`value` and also `one`"),
    "a port that is not there": (lambda frame: {"none": frame}, "rows for the port 'none'"),
    "two words for its port": (
        lambda frame: {"out": frame.selectExpr("*", "'big' AS port")},
        "rows for the port 'out' have a column `port`",
    ),
    "nothing": (lambda _: None, "the function returns NoneType"),
    "a list": (lambda frame: [frame], "the function returns list"),
    "a writer": (lambda frame: frame.writeStream, "the function returns a DataStreamWriter"),
    "no stream": (lambda frame: frame.sparkSession.range(3), "is not a stream"),
    "a number as its value": (lambda frame: frame.selectExpr("1 AS value"), "`value` is int"),
    "a number as metadata": (
        lambda frame: frame.drop("value").selectExpr("* EXCEPT (metadata)", "1 AS metadata"),
        "is int",
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_a_result_that_cannot_be_used_is_reported_with_a_hint(spark: SparkSession, what: str) -> None:
    make, said = BAD[what]

    def call(frame: DataFrame) -> Any:
        return make(frame)

    with pytest.raises(RequestError, match=said) as caught:
        planned(spark, call, "in")
    assert caught.value.hint


@pytest.mark.parametrize("codec", ["json", "msgpack"])
def test_the_schema_of_the_json_of_each_port_is_known(spark: SparkSession, codec: str) -> None:
    def call(frame: DataFrame) -> Any:
        good = frame.drop("value")
        return {"out": good.select("id", "name", "event_time"), "big": good.selectExpr("struct(id, name) AS data")}

    outlets = {port: Outlet(port, ((port, codec),)) for port in PORTS}
    pipeline = reading(Coded(UserFunction(call, ModuleType("mine"), "frame"), outlets), "in")
    fields = [("id", "int"), ("name", "string")]
    context = PipelineContext({"pipeline": "p", "source": "a"}, is_pretended=True)
    left = built(pipeline, {"in": _pretended_input(spark, pipeline, "in")}, context)
    assert left.schemas == ({"out": fields, "big": fields} if codec == "json" else {})


def test_each_parameter_is_an_input(spark: SparkSession) -> None:
    def both(left: DataFrame, right: DataFrame) -> Any:
        return {"out": left.drop("value"), "big": right.drop("value")}

    assert planned(spark, both, "left", "right") == PORTS
