"""Options and schema of the sink: all errors are reported at once, with what was expected."""

import pytest
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from penstock.core.errors import RequestError
from penstock.spark.sink.schema import check_schema
from penstock.spark.sink.writer import SinkOptions

TYPES: dict[str, DataType] = {
    "binary": BinaryType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "string": StringType(),
    "timestamp": TimestampType(),
    "timestamp_ntz": TimestampNTZType(),
}

FULL = (
    "value binary, key string, event_time timestamp, stream string, port string, "
    "source string, stream_id bigint, message_id bigint"
)


def schema(text: str) -> StructType:
    pairs = (column.split(" ") for column in text.split(", "))
    return StructType([StructField(name, TYPES[kind]) for name, kind in pairs])


def refusal(text: str) -> RequestError:
    with pytest.raises(RequestError) as caught:
        check_schema(schema(text))
    return caught.value


def test_only_the_pipeline_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PENSTOCK_WORKER", raising=False)
    options = SinkOptions.parse({"pipeline": "counts"})
    assert options == SinkOptions(pipeline="counts", worker="127.0.0.1:7102", generation=None, port="out")


def test_without_an_option_the_worker_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_WORKER", "far:9")
    assert SinkOptions.parse({"pipeline": "counts"}).worker == "far:9"
    assert SinkOptions.parse({"pipeline": "counts", "worker": "near:8"}).worker == "near:8"


def test_option_names_are_case_insensitive_and_those_of_spark_are_ignored() -> None:
    given = {"PIPELINE": "counts", "Worker": "far:9", "generation": "4", "port": "late", "tlsCA": "/ca.pem"}
    options = SinkOptions.parse(given | {"checkpointLocation": "/cp", "queryName": "q"})
    assert options == SinkOptions(
        pipeline="counts", worker="far:9", generation=4, port="late", checkpoint="/cp", tls=("/ca.pem", None, None)
    )


def test_an_unknown_option_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(RequestError, match="unknown option 'pipline': is it 'pipeline'") as caught:
        SinkOptions.parse({"pipline": "counts"})
    assert "'pipeline' is missing" in str(caught.value)
    assert "tlsCa" in caught.value.hint


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("pipeline", "a/b", "'a/b' is not a valid pipeline name"),
        ("port", "", "'' is not a valid port name"),
        ("generation", "-1", "'generation' is '-1'"),
        ("generation", "", "'generation' is ''"),
        ("worker", "host:port", "'host:port' is not an address"),
    ],
)
def test_an_invalid_option_value_is_refused(name: str, text: str, problem: str) -> None:
    with pytest.raises(RequestError, match=problem):
        SinkOptions.parse({"pipeline": "counts", name: text})


@pytest.mark.parametrize("text", ["value binary", "value string", FULL, "key binary, value string"])
def test_rows_with_a_value_and_known_columns_are_accepted(text: str) -> None:
    check_schema(schema(text))


def test_the_columns_of_the_source_are_ignored() -> None:
    check_schema(schema(f"{FULL}, segment string, offset bigint, content_type string, metadata_json string"))


def test_a_user_column_named_like_an_ignored_one_is_refused() -> None:
    assert "`offset` (int) is not a column of the sink" in str(refusal("value string, offset int"))


def test_all_problems_of_a_schema_are_reported_at_once() -> None:
    error = refusal("vaule string, key int, event_time timestamp_ntz, count bigint, stream_id int")
    assert str(error) == (
        "these rows cannot be written: column `value` (binary or string) is missing; "
        "`vaule` (string) is not a column of the sink: is it `value`?; "
        "`key` is int, and must be binary or string; "
        "`event_time` is timestamp_ntz, and must be timestamp; "
        "`count` (bigint) is not a column of the sink; "
        "`stream_id` is int, and must be bigint"
    )
    assert "to_json(struct(…))" in error.hint


def test_a_duplicate_column_is_refused() -> None:
    twice = StructType(schema("value string").fields * 2)
    with pytest.raises(RequestError, match="`value` appears 2 times"):
        check_schema(twice)
