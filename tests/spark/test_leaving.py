"""The result of a function is written as rows of the sink, all of it by one query."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.core.errors import RequestError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.spark.outputs import Leaving
    from penstock.spark.sink.plan import Plan

pytestmark = pytest.mark.spark

COLUMNS = "source string, stream string, stream_id bigint, message_id bigint, event_time timestamp, key binary, "
COLUMNS += "value binary, segment string, offset bigint"


@pytest.fixture
def events(spark: SparkSession, tmp_path: Path) -> DataFrame:
    """A stream with the source's columns, and one event in it."""
    folder = tmp_path / "events"
    row = ("roofs", "roof", 7, 1, None, bytearray(b"k"), bytearray(b"v"), "connector/roofs/0", 0)
    spark.createDataFrame([row], COLUMNS).write.parquet(str(folder))
    return spark.readStream.schema(COLUMNS).parquet(str(folder))


def left(given: object, declared: tuple[str, ...] | None = None) -> Leaving:
    from penstock.spark.outputs import leaving

    return leaving(given, declared)


def rows(leaving: Leaving, folder: Path) -> list[dict[str, Any]]:
    """What the sink stores, with `port` if rows have one, from one batch."""
    found: list[dict[str, Any]] = []

    def keep(frame: DataFrame, batch: int) -> None:
        table = frame.toArrow().combine_chunks()
        found.extend(_stored(table, leaving.plan) if leaving.plan else table.to_pylist())

    assert leaving.frame is not None
    writer = leaving.frame.writeStream.foreachBatch(keep).trigger(availableNow=True)
    writer.option("checkpointLocation", str(folder / "checkpoint")).start().awaitTermination()
    return found


def _stored(table: Any, plan: Plan) -> list[dict[str, Any]]:
    from penstock.spark.sink.encoding import encoded
    from penstock.spark.sink.rows import by_port

    found = []
    for batch in table.to_batches():
        for port, given in by_port(batch, "out"):
            for target, values in encoded(given, port, plan):
                found += [{**row, "port": target} for row in values.to_pylist()]
    return found


def test_events_can_be_written_unchanged(events: DataFrame, tmp_path: Path) -> None:
    given = left(events)
    assert given.ports == ("out",)
    (row,) = rows(given, tmp_path)
    assert row == {
        "source": "roofs",
        "stream": "roof",
        "stream_id": 7,
        "message_id": 1,
        "event_time": None,
        "key": b"k",
        "value": b"v",
    }


def test_rows_without_a_value_are_written_as_json_of_their_columns(events: DataFrame, tmp_path: Path) -> None:
    counted = events.selectExpr("cast(key as string) key", "1 as `the count`", "event_time", "'x' as offset")
    (row,) = rows(left(counted), tmp_path)
    assert json.loads(row["value"]) == {"key": "k", "the count": 1, "event_time": None, "offset": "x"}
    assert row["key"] == b"k"
    assert set(row) == {"value", "key", "event_time", "metadata", "port"}


def test_several_ports_are_written_by_one_query(events: DataFrame, tmp_path: Path) -> None:
    given = left({"good": events.select("value", "key"), "bad": events.selectExpr("'why' as reason")})
    assert given.ports == ("good", "bad")
    found = {row["port"]: row for row in rows(given, tmp_path)}
    assert found["good"] == {"value": b"v", "key": b"k", "port": "good", "metadata": None}
    assert found["bad"] == {"value": b'{"reason":"why"}', "key": None, "port": "bad", "metadata": None}


def test_a_column_port_is_not_lost_beside_a_port_that_the_function_names(events: DataFrame) -> None:
    with pytest.raises(RequestError, match="the rows for the port 'hosts' have a column `port` of their own"):
        left({"hosts": events.selectExpr("'a' as host", "80 as port")})


def test_columns_may_have_any_name(events: DataFrame, tmp_path: Path) -> None:
    (row,) = rows(left(events.selectExpr("1 as `a.b`", "2 as `c``d`")), tmp_path)
    assert json.loads(row["value"]) == {"a.b": 1, "c`d": 2}


def test_a_frame_is_written_to_the_declared_port(events: DataFrame, tmp_path: Path) -> None:
    (row,) = rows(left(events.select("value"), ("results",)), tmp_path)
    assert row["port"] == "results"


def test_rows_may_name_their_ports(events: DataFrame, tmp_path: Path) -> None:
    (row,) = rows(left(events.selectExpr("1 as a", "'bad' as port"), ("good", "bad")), tmp_path)
    assert (row["value"], row["port"]) == (b'{"a":1}', "bad")


def test_a_query_with_sparks_own_sink_is_not_changed(events: DataFrame) -> None:
    writer = events.writeStream.format("noop")
    given = left(writer)
    assert given.ports == ()
    assert given.writer is writer


def test_a_result_that_cannot_be_written_is_refused_with_what_to_do(events: DataFrame, spark: SparkSession) -> None:
    mistakes: list[tuple[Any, tuple[str, ...] | None, str]] = [
        (None, None, "returns NoneType"),
        ([events], None, "returns list"),
        ({}, None, "returns dict"),
        (spark.range(1), None, "not a stream"),
        (events.selectExpr("value", "1 as amount"), None, "amount"),
        (events.selectExpr("1 as value"), None, "value"),
        (events.selectExpr("1 as a", "'bad' as port"), None, "name their ports"),
        (events, ("a", "b"), "one DataFrame for the ports a, b"),
        ({"c": events}, ("a", "b"), "'c' is not declared"),
    ]
    for given, declared, said in mistakes:
        with pytest.raises(RequestError, match=said) as caught:
            left(given, declared)
        assert caught.value.hint


def test_the_schema_of_the_json_of_each_port_is_known(events: DataFrame) -> None:
    counts = events.selectExpr("stream", "message_id AS count", "array('a') AS tags", "event_time")
    fields = [("stream", "string"), ("count", "bigint"), ("tags", "array<string>"), ("event_time", "timestamp")]
    assert left(counts).schemas == {"out": fields}
    assert left({"out": counts, "raw": events}).schemas == {"out": fields}
    assert left(events).schemas == {}
    several = left(counts.selectExpr("*", "'b' AS port"), ("a", "b"))
    assert several.schemas == {"a": fields, "b": fields}
