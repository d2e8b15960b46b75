"""Metadata of events as columns."""

import json

import msgpack
import pyarrow as pa

from penstock.spark.source.arrow import content_types, metadata_json


def array(*maps: object) -> object:
    return pa.array(
        [b"" if one is None else one if isinstance(one, bytes) else msgpack.packb(one) for one in maps], pa.binary()
    )


def test_the_content_type_is_null_if_there_is_none() -> None:
    given = array({"content_type": "text/plain", "peer": "x"}, None, {"content_type": 5}, b"\xc1", [1], {"peer": "x"})
    assert content_types(given).to_pylist() == ["text/plain", None, None, None, None, None]


def test_metadata_are_json_without_the_origin() -> None:
    first = {"source": "s", "stream": "t", "headers": {"a": "b"}, "raw": b"\x00\xff", 5: 1}
    found = metadata_json(array(first, {"source": "s"}, None)).to_pylist()
    assert json.loads(found[0]) == {"headers": {"a": "b"}, "raw": "AP8=", "5": 1}
    assert found[1:] == [None, None]


def test_whatever_a_connector_has_put_into_metadata_is_json() -> None:
    nested = {"headers": {b"k": "v", 7: [float("nan"), {b"\xff": float("-inf")}]}, "at": msgpack.Timestamp(1, 0)}
    listed = b"\x82\x91\x01\xa1x\xaccontent_type\xaatext/plain"  # a list is a key
    deep = b"\x81\xa1a" * 900 + b"\x01"
    found = metadata_json(array(nested, listed, deep, {"a": b"\xff", "b": "x"})).to_pylist()
    headers = {"k": "v", "7": ["NaN", {"\N{REPLACEMENT CHARACTER}": "-Infinity"}]}
    assert json.loads(found[0])["headers"] == headers
    assert json.loads(found[1]) == {"[1]": "x", "content_type": "text/plain"}
    assert found[2] is None, "nothing reads JSON that is so deep"
    assert json.loads(found[3]) == {"a": "/w==", "b": "x"}
    assert content_types(array(listed)).to_pylist() == ["text/plain"]


def test_events_without_metadata_have_no_content_type() -> None:
    assert content_types(pa.nulls(3, pa.binary())).to_pylist() == [None] * 3
