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
from penstock.spark.codecs.packing import packed, packed_json, packed_metadata, unpacked

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=20,
)


def one(array: Any) -> Any:
    (value,) = array.to_pylist()
    return value


@given(JSON)
def test_what_json_has_comes_back_the_same(value: Any) -> None:
    text = one(unpacked(pa.array([msgpack.packb(value)], pa.binary())))
    assert json.loads(text) == value
    assert msgpack.unpackb(one(packed_json(pa.array([text], pa.string())))) == value


@given(st.binary(max_size=40))
def test_any_bytes_are_json_or_null(data: bytes) -> None:
    text = one(unpacked(pa.array([data], pa.binary())))
    assert text is None or json.loads(text) is not NotImplemented


def test_integers_that_messagepack_does_not_have_become_floats() -> None:
    assert msgpack.unpackb(one(packed_json(pa.array([str(2**70)])))) == float(2**70)


def test_null_is_nil() -> None:
    assert one(packed_json(pa.array([None], pa.string()))) == b"\xc0"
    assert one(unpacked(pa.array([None], pa.binary()))) is None


def test_a_row_keeps_bytes_and_instants() -> None:
    row = {"raw": b"\xff", "at": datetime(2026, 1, 2, tzinfo=UTC), "no": None}
    kinds = pa.struct([("raw", pa.binary()), ("at", pa.timestamp("us", "UTC")), ("no", pa.int32())])
    assert msgpack.unpackb(one(packed(pa.array([row], kinds))), timestamp=3) == row


def metadata(given: Any, content_type: str | None, kind: Any = None) -> Any:
    kinds = pa.struct([("metadata", kind or pa.struct([("status", pa.int32())])), ("content_type", pa.string())])
    return one(packed_metadata(pa.array([{"metadata": given, "content_type": content_type}], kinds)))


def test_metadata_have_the_content_type_unless_they_have_their_own() -> None:
    assert msgpack.unpackb(metadata({"status": 404}, "a/b")) == {"content_type": "a/b", "status": 404}
    own = metadata('{"content_type": "x/y"}', "a/b", pa.string())
    assert msgpack.unpackb(own) == {"content_type": "x/y"}
    assert metadata(None, None) is None
    assert metadata({"status": None}, None) is None


def test_metadata_that_are_no_map_are_refused() -> None:
    with pytest.raises(RequestError, match="not a map"):
        metadata("[1]", None, pa.string())
