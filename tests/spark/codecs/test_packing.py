"""MessagePack in the Python workers, value by value."""

import json
from datetime import UTC, datetime
from typing import Any

import msgpack
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import RequestError
from penstock.spark.codecs.json_writer import IS_JSON
from penstock.spark.codecs.packing import Packing, as_json, packed_metadata

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=20,
)


DATA = pa.schema([pa.field("data", pa.string(), metadata=IS_JSON)])


def one(array: Any) -> Any:
    (value,) = array.to_pylist()
    return value


def packed(text: str | None) -> Any:
    """JSON of a VARIANT as MessagePack."""
    return msgpack.unpackb(one(Packing(DATA).encode(pa.RecordBatch.from_pylist([{"data": text}], schema=DATA))))


@given(JSON)
def test_json_values_round_trip_through_messagepack(value: Any) -> None:
    text = as_json(msgpack.packb(value))
    assert text is not None
    assert json.loads(text) == value
    assert packed(text) == value


@given(st.binary(max_size=40))
def test_any_bytes_become_json_or_none(data: bytes) -> None:
    text = as_json(data)
    assert text is None or json.loads(text) is not NotImplemented


def test_integers_beyond_the_range_of_messagepack_become_floats() -> None:
    assert packed(str(2**70)) == float(2**70)


def test_null_is_nil() -> None:
    assert packed(None) is None


def test_a_row_keeps_bytes_and_instants() -> None:
    row = {"raw": b"\xff", "at": datetime(2026, 1, 2, tzinfo=UTC), "no": None}
    kinds = pa.schema([("raw", pa.binary()), ("at", pa.timestamp("us", "UTC")), ("no", pa.int32())])
    found = one(Packing(kinds).encode(pa.RecordBatch.from_pylist([row], schema=kinds)))
    assert msgpack.unpackb(found, timestamp=3) == row


def metadata(given: Any, content_type: str | None, kind: Any = None) -> Any:
    kinds = pa.struct([("metadata", kind or pa.struct([("status", pa.int32())])), ("content_type", pa.string())])
    return one(packed_metadata(pa.array([{"metadata": given, "content_type": content_type}], kinds)))


def test_metadata_get_the_content_type_unless_they_have_one() -> None:
    assert msgpack.unpackb(metadata({"status": 404}, "a/b")) == {"content_type": "a/b", "status": 404}
    own = metadata('{"content_type": "x/y"}', "a/b", pa.string())
    assert msgpack.unpackb(own) == {"content_type": "x/y"}
    assert metadata(None, None) is None
    assert metadata({"status": None}, None) is None


def test_metadata_that_are_not_a_map_are_refused() -> None:
    with pytest.raises(RequestError, match="not a map"):
        metadata("[1]", None, pa.string())
