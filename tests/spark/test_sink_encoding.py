"""Rows to values in the writer's tasks, by the driver's plan: without Spark."""

from typing import Any

import msgpack
import pyarrow as pa
import pytest

from penstock.core.errors import RequestError
from penstock.spark.sink.encoding import encoded
from penstock.spark.sink.plan import CONTENT_TYPE, PART, RECEIVED, Part, Plan, PortEncoding, parse_plan, plan_text

FIELDS = "__fields."


def stored(rows: dict[str, Any], port: PortEncoding) -> dict[str, list[dict[str, Any]]]:
    plan = parse_plan(plan_text({"out": port}))
    batch = pa.RecordBatch.from_pydict(rows)
    return {target: values.to_pylist() for target, values in encoded(batch, "out", plan)}


def fields(*rows: dict[str, Any] | None) -> pa.StructArray:
    return pa.array(rows, pa.struct([("id", pa.int32()), ("name", pa.string())]))


def test_each_target_gets_the_rows_in_its_codec() -> None:
    port = PortEncoding((("out", "json"), ("out.csv", "csv")), (Part(FIELDS),))
    found = stored({FIELDS: fields({"id": 1, "name": "x"}, {"id": 2}), "key": [b"a", b"b"]}, port)
    assert {target: [row["value"] for row in rows] for target, rows in found.items()} == {
        "out": [b'{"id":1,"name":"x"}', b'{"id":2,"name":null}'],
        "out.csv": [b"1,x", b"2,"],
    }
    assert [row["key"] for row in found["out.csv"]] == [b"a", b"b"]
    assert [row["metadata"] for row in found["out"]] == [None, None]


def test_rows_with_a_value_are_written_unchanged() -> None:
    port = PortEncoding((("out", "json"), ("out.csv", "csv")), (Part(),))
    found = stored({"value": ["text"], CONTENT_TYPE: ["a/b"]}, port)
    assert [(row["value"], row["metadata"]) for rows in found.values() for row in rows] == [
        (b"text", msgpack.packb({"content_type": "a/b"}))
    ] * 2


def test_a_reply_has_the_codec_of_its_request_and_rows_keep_their_order() -> None:
    maps = {"out": (("text/csv", "csv"), ("text/*", "msgpack"))}
    port = PortEncoding((("out", "json"),), (Part(FIELDS),), adds_content_type=True, codec_maps=maps)
    given = fields(*({"id": number} for number in range(4)))
    rows = stored({FIELDS: given, RECEIVED: ["text/csv;q=1", None, "text/x", "TEXT/CSV"]}, port)["out"]
    packed = msgpack.packb({"id": 2, "name": None})
    assert [row["value"] for row in rows] == [b"0,", b'{"id":1,"name":null}', packed, b"3,"]
    types = [msgpack.unpackb(row["metadata"])["content_type"] for row in rows]
    assert types == ["text/csv", "application/json", "application/msgpack", "text/csv"]


def test_events_that_pass_through_keep_their_bytes_if_the_codec_is_the_same() -> None:
    parts = (Part(codec="json"), Part(FIELDS, codec="csv"))
    rows = {
        "value": [b'{"id": 0}', b"1,x", b'{"id": 2}'],
        PART: pa.array([0, 1, 0], pa.int32()),
        FIELDS: fields(None, {"id": 1, "name": "x"}, None),
        CONTENT_TYPE: ["a/json", "text/csv", None],
    }
    found = stored(rows, PortEncoding((("out", "json"),), parts, adds_content_type=True))["out"]
    assert [row["value"] for row in found] == [b'{"id": 0}', b'{"id":1,"name":"x"}', b'{"id": 2}']
    types = [row["metadata"] and msgpack.unpackb(row["metadata"])["content_type"] for row in found]
    assert types == ["a/json", "application/json", None]


@pytest.mark.parametrize(
    "metadata",
    [
        pa.array([{"status": 404}], pa.struct([("status", pa.int32())])),
        pa.array([[("status", 404)]], pa.map_(pa.string(), pa.int32())),
        pa.array(['{"status": 404}'], pa.string()),
    ],
)
def test_metadata_set_by_a_row_get_the_content_type_too(metadata: Any) -> None:
    port = PortEncoding((("out", "json"),), (Part(FIELDS),), "own", adds_content_type=True)
    (row,) = stored({FIELDS: fields({"id": 1}), "own": metadata}, port)["out"]
    assert msgpack.unpackb(row["metadata"]) == {"content_type": "application/json", "status": 404}


def test_json_written_by_spark_is_not_quoted_again() -> None:
    rows = {FIELDS: pa.array([{"v": '{"a":[1]}', "s": "{}"}], pa.struct([("v", pa.string()), ("s", pa.string())]))}
    (row,) = stored(rows, PortEncoding((("out", "json"),), (Part(FIELDS, ("v",)),)))["out"]
    assert row["value"] == b'{"v":{"a":[1]},"s":"{}"}'


def test_a_port_that_does_not_exist_is_an_error() -> None:
    plan: Plan = {"out": PortEncoding((("out", "json"),), (Part(),))}
    with pytest.raises(RequestError, match="unknown port 'uot'") as caught:
        next(encoded(pa.RecordBatch.from_pydict({"value": [b"x"]}), "uot", plan))
    assert "out" in caught.value.hint
