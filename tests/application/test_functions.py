"""What a user's function may give, and what is said of what it may not: before its query starts."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from penstock import dead_letters
from penstock.application.functions import FUNCTION_COLUMNS, Coded, UserFunction
from penstock.core.errors import RequestError
from penstock.spark.codecs.codec import Coding, Outlet
from penstock.spark.pipelines import Pipeline
from penstock.spark.run.attempt import _left, _pretended_input, plan_of
from tests.spark.conftest import spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["spark"]

pytestmark = pytest.mark.spark

PORTS = ("out", "err", "late", "big")


def planned(session: SparkSession, call: Callable[..., Any], *inputs: str, codec: str = "json") -> tuple[str, ...]:
    outlets = {port: Outlet(port, ((port, codec),)) for port in PORTS}
    codings = {port: {"a": Coding("a", "json", {}, "id int, name string")} for port in inputs}
    sole = "frame" if inputs == ("in",) else None
    made = Coded(UserFunction(call, ModuleType("mine"), sole), codings, outlets)
    read = dict.fromkeys(inputs, ("a",))
    return plan_of(
        session, Pipeline(name="p", function=made, inputs=read, columns=FUNCTION_COLUMNS, outputs=PORTS)
    ).ports


GOOD: dict[str, Callable[[DataFrame], Any]] = {
    "as it came": lambda frame: frame,
    "its columns": lambda frame: frame.drop("value"),
    "a filter that keeps letters": lambda frame: dead_letters.where(frame, "id > 1"),
    "good and bad apart": lambda frame: dict(zip(("out", "err"), dead_letters.split(frame), strict=True)),
    "a window": lambda frame: (
        dead_letters.split(frame)[0].withWatermark("event_time", "1 minute").groupBy("event_time", "id").count()
    ),
    "rows that name their ports": lambda frame: frame.drop("value").selectExpr("*", "'big' AS port"),
}


@pytest.mark.parametrize("what", GOOD)
def test_what_can_leave_is_planned(spark: SparkSession, what: str) -> None:
    def call(frame: DataFrame) -> Any:
        return GOOD[what](frame)

    assert planned(spark, call, "in") == PORTS


BAD: dict[str, tuple[Callable[[DataFrame], Any], str]] = {
    "a filter that loses letters": (
        lambda frame: frame.where("id > 1"),
        r"the filter \(id > 1\) ignores `letter`",
    ),
    "an aggregate above letters": (lambda frame: frame.groupBy("id").count(), "an aggregate above rows"),
    "a value and more": (lambda frame: frame.selectExpr("*", "1 AS one"), "`value` and also `one`"),
    "a port that is not there": (lambda frame: {"none": frame}, "rows for the port 'none'"),
    "two words for its port": (
        lambda frame: {"out": frame.selectExpr("*", "'big' AS port")},
        "rows for the port 'out' have a column `port`",
    ),
    "letters twice": (lambda frame: {"out": frame, "big": frame}, "the same dead letters twice"),
    "nothing": (lambda _: None, "the function returns NoneType"),
    "a list": (lambda frame: [frame], "the function returns list"),
    "a writer": (lambda frame: frame.writeStream, "the function returns a DataStreamWriter"),
    "no stream": (lambda frame: frame.sparkSession.range(3), "is not a stream"),
    "a number as its value": (lambda frame: frame.selectExpr("1 AS value", "letter"), "`value` is int"),
    "a number as metadata": (
        lambda frame: frame.drop("value").selectExpr("* EXCEPT (metadata)", "1 AS metadata"),
        "is int",
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_what_cannot_leave_is_said_with_a_hint(spark: SparkSession, what: str) -> None:
    make, said = BAD[what]

    def call(frame: DataFrame) -> Any:
        return make(frame)

    with pytest.raises(RequestError, match=said) as caught:
        planned(spark, call, "in")
    assert caught.value.hint


@pytest.mark.parametrize("codec", ["json", "msgpack"])
def test_what_the_json_of_each_port_holds_is_known(spark: SparkSession, codec: str) -> None:
    def call(frame: DataFrame) -> Any:
        good = dead_letters.split(frame)[0].drop("value")
        return {"out": good.select("id", "name", "event_time"), "big": good.selectExpr("struct(id, name) AS data")}

    outlets = {port: Outlet(port, ((port, codec),)) for port in PORTS}
    codings = {"in": {"a": Coding("a", "json", {}, "id int, name string")}}
    made = Coded(UserFunction(call, ModuleType("mine"), "frame"), codings, outlets)
    pipeline = Pipeline(name="p", function=made, inputs={"in": ("a",)}, columns=FUNCTION_COLUMNS, outputs=PORTS)
    fields = [("id", "int"), ("name", "string")]
    left = _left(pipeline, {"in": _pretended_input(spark, pipeline, "in")})
    assert left.schemas == ({"out": fields, "big": fields} if codec == "json" else {})


def test_each_parameter_is_an_input(spark: SparkSession) -> None:
    def both(left: DataFrame, right: DataFrame) -> Any:
        return {"out": left.drop("value"), "big": right.drop("value")}

    assert planned(spark, both, "left", "right") == PORTS
