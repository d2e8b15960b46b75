"""Events become batches with exactly the columns and types that Spark expects."""

from collections.abc import Sequence
from typing import Any

import msgpack
import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock.core.errors import RequestError
from penstock.protocol.stored import NO_TIME
from penstock.protocol.stored.bulk import decode
from penstock.spark.source.arrow import SegmentBatches, StreamNames
from penstock.spark.source.schema import COLUMNS, arrow_schema, columns_of, spark_schema
from tests.protocol.stored.events import raw, stored

SPARK_TYPES = {"string": StringType(), "bigint": LongType(), "timestamp": TimestampType(), "binary": BinaryType()}
SCHEMA = StructType([StructField(name, SPARK_TYPES[kind]) for name, kind in COLUMNS.items()])


def batch_of(segment: str, data: bytes, columns: Sequence[str] = tuple(COLUMNS), offset: int = 0) -> Any:
    names = StreamNames(lambda ids: [f"stream {number}" if number else "" for number in ids])
    batches = SegmentBatches(segment, tuple(columns), lambda _: names)
    batch = batches.batch(decode(data, offset, batches.kind, batches.wanted))
    batch.validate(full=True)
    return batch


def test_the_arrow_types_are_those_that_spark_expects() -> None:
    assert arrow_schema(tuple(COLUMNS)).equals(to_arrow_schema(SCHEMA, timezone="UTC"))
    assert spark_schema(("key", "offset")) == "`key` binary, `offset` bigint"


def test_a_user_schema_may_have_fewer_columns_but_no_others() -> None:
    assert columns_of(StructType([SCHEMA["value"], SCHEMA["key"]])) == ("value", "key")
    with pytest.raises(RequestError, match="column 'other' not found"):
        columns_of(StructType([StructField("other", StringType())]))
    with pytest.raises(RequestError, match="the column 'value' is binary, not string"):
        columns_of(StructType([StructField("value", StringType())]))


def test_the_events_of_a_connector_have_all_columns() -> None:
    data = stored(7, 1, 1_700_000_000_000_001, b"key", b"value") + stored(2**64 - 1, 2, NO_TIME, b"", b"")
    batch = batch_of("connector/sensors/1", data, offset=50)
    assert batch.schema.equals(arrow_schema(tuple(COLUMNS)))
    first, second = batch.to_pylist()
    assert first["event_time"].isoformat() == "2023-11-14T22:13:20.000001+00:00"
    del first["event_time"]
    assert first == {
        "source": "sensors",
        "stream": "stream 7",
        "stream_id": 7,
        "message_id": 1,
        "key": b"key",
        "value": b"value",
        "segment": "connector/sensors/1",
        "offset": 50,
    }
    assert second == {
        "source": "sensors",
        "stream": f"stream {2**64 - 1}",
        "stream_id": -1,
        "message_id": 2,
        "event_time": None,
        "key": b"",
        "value": b"",
        "segment": "connector/sensors/1",
        "offset": 50 + 44,
    }


def test_the_events_of_an_output_show_their_origin() -> None:
    data = (
        stored(7, 1, 0, b"", b"a", {"source": "sensors", "stream": "door"})
        + stored(0, 0, 0, b"", b"b")
        + stored(0, 0, 0, b"", b"c", {"stream": "x"})
    )
    batch = batch_of("pipeline/counts/out", data, ("source", "stream", "stream_id", "value"))
    assert [tuple(row.values()) for row in batch.to_pylist()] == [
        ("sensors", "door", 7, b"a"),
        (None, None, 0, b"b"),
        (None, "x", 0, b"c"),
    ]
    assert batch_of("pipeline/counts/out", stored(1)).to_pylist()[0]["source"] is None


def test_raw_events_have_a_value_and_a_position() -> None:
    batch = batch_of("numbers", raw(b"one") + raw(b""), offset=100)
    assert batch.schema.equals(arrow_schema(tuple(COLUMNS)))
    rows = batch.to_pylist()
    nothing = dict.fromkeys(("stream", "stream_id", "message_id", "event_time", "key"))
    assert rows[0] == nothing | {"source": "segment:numbers", "value": b"one", "segment": "numbers", "offset": 100}
    assert (rows[1]["value"], rows[1]["offset"]) == (b"", 111)


@pytest.mark.parametrize("name", COLUMNS)
def test_each_column_can_be_read_alone(name: str) -> None:
    whole = batch_of("connector/sensors/0", stored(7, 1, 5, b"key", b"value"))
    alone = batch_of("connector/sensors/0", stored(7, 1, 5, b"key", b"value"), (name,))
    assert alone.column(0).equals(whole.column(name))
    assert alone.schema.names == [name]


def test_metadata_are_returned_unchanged_if_requested() -> None:
    metadata = {"source": "s", "reason": "why"}
    columns = ("value", "metadata")
    batch = batch_of("pipeline/p/err", stored(payload=b"a", metadata=metadata) + stored(payload=b"b"), columns)
    assert batch.schema.equals(arrow_schema(columns))
    assert batch.to_pylist() == [
        {"value": b"a", "metadata": msgpack.packb(metadata)},
        {"value": b"b", "metadata": b""},
    ]
    assert batch_of("x", raw(b"a"), columns).to_pylist() == [{"value": b"a", "metadata": None}]
    assert "metadata" not in COLUMNS
    assert columns_of(StructType([StructField("metadata", BinaryType())])) == ("metadata",)


def test_an_unknown_stream_name_is_null() -> None:
    assert batch_of("connector/sensors/0", stored(0), ("stream",)).to_pylist() == [{"stream": None}]


def test_batches_of_different_lengths_repeat_the_same_texts() -> None:
    batches = SegmentBatches("connector/a/0", ("segment", "source"), lambda _: pytest.fail("not asked for"))
    for count in (3, 1, 5, 2):
        found = batches.batch(decode(stored() * count, 0, batches.kind, batches.wanted))
        found.validate(full=True)
        assert found.to_pylist() == [{"segment": "connector/a/0", "source": "a"}] * count


def test_an_origin_that_is_not_a_string_is_refused() -> None:
    metadata = b"\x81\xa6source\xa2\xff\xfe"
    with pytest.raises(pa.ArrowInvalid, match="UTF8"):
        batch_of("pipeline/counts/out", stored(metadata=metadata))
