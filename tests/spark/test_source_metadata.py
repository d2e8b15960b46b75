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


def test_events_without_metadata_have_no_content_type() -> None:
    assert content_types(pa.nulls(3, pa.binary())).to_pylist() == [None] * 3
