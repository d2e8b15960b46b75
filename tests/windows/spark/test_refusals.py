"""Invalid windows are refused when the pipeline is built, with what to write instead."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from penstock import windows
from penstock.core.errors import RequestError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("in_pipeline")]

MINUTE = windows.tumbling("1 minute")


def test_the_result_has_keys_bounds_pane_results_and_time(events: DataFrame) -> None:
    frame = events.selectExpr("*", "cast(1 as decimal(10, 2)) as amount", "array(1) as list")
    result = windows.aggregate(
        frame,
        windows.session("1 minute"),
        keys=["stream", frame["stream_id"].alias("id")],
        n=windows.count(),
        total=windows.sum("amount"),
        mean=windows.avg(frame["stream_id"]),
        last=windows.last("list"),
        names=windows.collect("stream", 3),
        different=windows.approx_distinct("key"),
    )
    assert [kind for kind in result.dtypes if kind[0] != "total"] == [
        ("stream", "string"),
        ("id", "bigint"),
        ("window_start", "timestamp"),
        ("window_end", "timestamp"),
        ("pane", "string"),
        ("revision", "int"),
        ("n", "bigint"),
        ("mean", "double"),
        ("last", "array<int>"),
        ("names", "array<string>"),
        ("different", "bigint"),
        ("replaces", "array<struct<window_start:timestamp,window_end:timestamp>>"),
        ("event_time", "timestamp"),
    ]


@pytest.mark.parametrize(
    ("change", "options", "why", "hint"),
    [
        (["*"], {"keys": ["strem"]}, "'strem' is not a column of the frame", 'Did you mean "stream"?'),
        (["*"], {"n": windows.sum("amount")}, "'amount' is not a column", ", source, "),
        (["value"], {}, "'event_time' is not a column", "It has: value"),
        (["value as event_time"], {}, "`event_time` is binary, not a timestamp", "timestamp_millis"),
        (["cast(event_time as timestamp_ntz) event_time"], {}, "is a timestamp_ntz", "to_utc_timestamp"),
        (["*", "array(1) as list"], {"keys": "list"}, "the key `list` is array<int>", "plain types"),
        (["*", "map('a', 1) as m"], {"keys": "m"}, "cannot be a key", "plain types"),
        (["*", "stream as pane"], {"keys": "pane"}, "`pane` is a column of every result", "Rename"),
        (["*", "stream as n"], {"keys": "n"}, "`n` appears twice", "Rename"),
        (
            ["*"],
            {"late_rule": "strict", "allowed_lateness": "1 s"},
            "leaves nothing for allowed_lateness",
            "Remove one",
        ),
        (["*"], {"allowed_lateness": "-1 s"}, "a lateness of -1000000 µs", "Write it like"),
    ],
)
def test_invalid_arguments_are_refused_with_a_hint(
    events: DataFrame, change: list[str], options: dict[str, Any], why: str, hint: str
) -> None:
    options = {"n": windows.count()} | options
    with pytest.raises(RequestError, match=why) as caught:
        windows.aggregate(events.selectExpr(*change), MINUTE, **options)
    assert hint in caught.value.hint


def test_a_sum_of_strings_is_refused(events: DataFrame) -> None:
    with pytest.raises(RequestError, match="string"):
        windows.aggregate(events, MINUTE, total=windows.sum("stream"))


def test_a_frame_that_is_not_streaming_is_refused(spark: SparkSession) -> None:
    with pytest.raises(RequestError, match="this frame is not one"):
        windows.aggregate(spark.range(1).selectExpr("timestamp_micros(id) as event_time"), MINUTE, n=windows.count())


def test_a_session_without_rocksdb_is_refused(spark: SparkSession, events: DataFrame) -> None:
    name = "spark.sql.streaming.stateStore.providerClass"
    before = spark.conf.get(name)
    assert before is not None
    spark.conf.unset(name)
    try:
        with pytest.raises(RequestError, match="RocksDB") as caught:
            windows.aggregate(events, MINUTE, n=windows.count())
        assert "spark_settings()" in caught.value.hint
    finally:
        spark.conf.set(name, before)


def test_a_user_defined_aggregate_declares_its_columns_or_gets_them_as_arguments(events: DataFrame) -> None:
    class Longest(windows.Aggregate):
        inputs = ("stream",)

        def add(self, columns: Any, groups: windows.Groups, count: int) -> pa.Array:
            found = np.zeros(count, np.int64)
            np.maximum.at(found, groups, pa.compute.binary_length(columns[0]).fill_null(0).to_numpy())
            return pa.array(found)

        def merge(self, partials: pa.Array, groups: windows.Groups, count: int) -> pa.Array:
            found = np.zeros(count, np.int64)
            np.maximum.at(found, groups, partials.to_numpy())
            return pa.array(found)

        def result(self, partials: pa.Array) -> pa.Array:
            return partials

    result = windows.aggregate(events, MINUTE, named=Longest(), given=windows.measure(Longest(), "source"))
    kinds = dict(result.dtypes)
    assert (kinds["named"], kinds["given"]) == ("bigint", "bigint")
    with pytest.raises(RequestError, match="'strem' is not a column"):
        windows.aggregate(events, MINUTE, given=windows.measure(Longest(), "strem"))


@pytest.mark.parametrize(
    ("change", "options", "why", "hint"),
    [
        (["*"], {"keys": ["strem"]}, "'strem' is not a column of the frame", 'Did you mean "stream"?'),
        (["value"], {}, "'event_time' is not a column", "It has: value"),
        (["*", "map('a', 1) as m"], {"keys": "m"}, "cannot be a key", "plain types"),
        (["*", "stream as STREAM"], {}, "two columns of the frame are named `stream`", "Rename or drop"),
        (["*", "interval '1' month as i"], {}, "`i` is interval month, which cannot be kept in state", "cast it"),
        (["*"], {"buckets": 0}, "buckets=0 is not valid", "Choose"),
        (["*"], {"late": "ignore"}, "late='ignore' is not valid", "Write"),
    ],
)
def test_what_cannot_be_ordered_is_said_with_a_hint(
    events: DataFrame, change: list[str], options: dict[str, Any], why: str, hint: str
) -> None:
    with pytest.raises(RequestError, match=why) as caught:
        windows.ordered(events.selectExpr(*change), **options)
    assert hint in caught.value.hint


def test_ordered_rows_have_the_columns_of_the_frame(events: DataFrame) -> None:
    more = ["cast(1 as decimal(10, 2)) d", "array(struct(1 as a, event_time as t)) list", "map('a', 1) m"]
    frame = events.selectExpr("*", *more, "interval '1' second as `an.i`", "parse_json('1') v")
    assert windows.ordered(frame, keys=["stream", frame["key"]]).dtypes == frame.dtypes
