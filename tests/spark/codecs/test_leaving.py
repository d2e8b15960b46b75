"""Rows to bytes, on Spark: each port's rows once for every codec that its sinks want."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgpack
import pytest

from penstock.core.errors import RequestError
from penstock.spark.codecs.codec import Branch, Coding, Outlet, branches
from penstock.spark.codecs.outputs import Left, leave, passed, received
from tests.spark.codecs.frames import dead_letters, decode, events, values, written

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

JSON = Outlet("out", (("out", "json"),))
ALL = Outlet("out", (("out", "json"), ("out.csv", "csv"), ("out.msgpack", "msgpack")))
SCHEMA = "id int, name string"


def decoded(spark: SparkSession, *events_: bytes, schema: str | None = SCHEMA) -> DataFrame:
    return received(decode(events(spark, *events_), [Branch("json", schema)]).public(), "in")


def leaving(frame: DataFrame, outlet: Outlet = JSON) -> Left:
    return leave(frame, {outlet.port: outlet, "err": Outlet("err", (("err", "json"),))}, outlet.port)


def encoded(frame: DataFrame, codec: str) -> list[bytes]:
    return [value for _, value in values(leaving(frame, Outlet("out", (("out", codec),))))]


def test_rows_without_a_value_are_written_by_the_codec(spark: SparkSession) -> None:
    frame = decoded(spark, b'{"id": 1, "name": "a, \\"b\\""}', b'{"id": null}').drop("value")
    assert encoded(frame, "json") == [b'{"id":1,"name":"a, \\"b\\""}', b'{"id":null,"name":null}']
    assert encoded(frame, "csv") == [b'1,"a, ""b"""', b","]
    assert [msgpack.unpackb(value) for value in encoded(frame, "msgpack")] == [
        {"id": 1, "name": 'a, "b"'},
        {"id": None, "name": None},
    ]


def test_texts_round_trip_through_csv(spark: SparkSession) -> None:
    texts = ["", None, " s ", "a\nb", 'q"q', "a,b", "\\", '\\"', '"', "#", "null", "\t"]
    frame = spark.createDataFrame([(1, text) for text in texts], "id int, name string")
    made = decode(events(spark, *encoded(frame, "csv")), [Branch("csv", "id int, name string")])
    assert [row["name"] for row in made.public().collect()] == texts


def test_the_columns_of_the_event_are_written_beside_the_value(spark: SparkSession) -> None:
    (row,) = written(leaving(decoded(spark, b'{"id": 1}').drop("value"))).to_pylist()
    assert (row["source"], row["stream"], row["stream_id"], row["message_id"]) == ("tills", "till", 7, 1)
    assert bytes(row["key"]) == b"k"
    assert not {"segment", "offset", "id", "content_type"} & row.keys()


def test_a_data_column_alone_is_written_as_the_value(spark: SparkSession) -> None:
    frame = decoded(spark, b'{"a": [1, 2.5]}', b"[null]", schema=None).drop("value")
    assert encoded(frame, "json") == [b'{"a":[1,2.5]}', b"[null]"]
    assert [msgpack.unpackb(value) for value in encoded(frame, "msgpack")] == [{"a": [1, 2.5]}, [None]]


def test_messagepack_keeps_bytes_instants_and_maps(spark: SparkSession) -> None:
    frame = events(spark, b"x").selectExpr(
        "X'00FF' AS raw",
        "timestamp'2026-01-02 03:04:05.5' AS at",
        "map('a', 1) AS counts",
        "array(struct(1 AS n)) AS list",
        "date'2026-01-02' AS day",
        "1.50 AS price",
    )
    (value,) = encoded(frame, "msgpack")
    found = msgpack.unpackb(value, timestamp=3)
    assert found.pop("at").isoformat() == "2026-01-02T03:04:05.500000+00:00"
    assert found == {"raw": b"\x00\xff", "counts": {"a": 1}, "list": [{"n": 1}], "day": "2026-01-02", "price": "1.50"}


def test_a_string_is_the_one_text_of_the_row(spark: SparkSession) -> None:
    frame = decode(events(spark, b"hello", b"\xff"), [Branch("string")]).public()
    shouted = frame.selectExpr("upper(text) AS text", "source")
    assert values(leaving(shouted, Outlet("out", (("out.string", "string"),)))) == [("out.string", b"HELLO")]
    with pytest.raises(RequestError, match="string writes one text column, but the rows have: text, more"):
        encoded(frame.selectExpr("text", "1 AS more"), "string")


@pytest.mark.parametrize(
    ("columns", "codec", "error"),
    [
        (["id", "name"], "binary", "binary writes bytes only"),
        (["array(id) AS ids"], "csv", "csv cannot write `ids`, which is list<"),
        (["key", "stream_id"], "json", "have no columns of their own"),
        (["value", "id + 1 AS id"], "json", "have `value` and also `id`, which it does not contain"),
        (["value", "1 AS more"], "json", "have `value` and also `more`"),
        (["1 AS metadata", "id"], "json", "`metadata` is int"),
    ],
)
def test_rows_that_cannot_be_encoded_are_refused(
    spark: SparkSession, columns: list[str], codec: str, error: str
) -> None:
    given = decoded(spark, b'{"id": 1}')
    with pytest.raises(RequestError, match=error):
        leaving(given.selectExpr(*columns), Outlet("out", (("out", codec),)))


def test_a_value_column_beside_decoded_columns_is_written_unchanged(spark: SparkSession) -> None:
    given = decoded(spark, b'{"id":  1, "more": 2}', b'{"id": 2}')
    assert values(leaving(given.where("id = 1"))) == [("out", b'{"id":  1, "more": 2}')]


def test_one_pass_encodes_the_rows_with_every_codec(spark: SparkSession) -> None:
    frame = decoded(spark, b'{"id": 1, "name": "x"}', b"bad").drop("value")
    found = values(leaving(frame, ALL))
    assert found == [
        ("out", b'{"id":1,"name":"x"}'),
        ("out.csv", b"1,x"),
        ("out.msgpack", msgpack.packb({"id": 1, "name": "x"})),
    ]


def test_rows_may_name_their_ports(spark: SparkSession) -> None:
    outlets = {"out": ALL, "big": Outlet("big", (("big", "json"),))}
    frame = decoded(spark, b'{"id": 1}', b'{"id": 2}').drop("value")
    named = frame.selectExpr("*", "if(id > 1, 'big', 'out') AS port")
    assert [port for port, _ in values(leave(named, outlets, None))] == [
        "out",
        "out.csv",
        "out.msgpack",
        "big",
    ]


@pytest.mark.parametrize("port", ["'none'", "cast(NULL AS string)"])
def test_an_unknown_port_is_reported(spark: SparkSession, port: str) -> None:
    named = decoded(spark, b'{"id": 1}').drop("value").selectExpr("*", f"{port} AS port")
    with pytest.raises(RequestError, match=r"unknown port '(none|null)'"):
        written(leave(named, {"out": ALL}, None))


def metadata(left: Left) -> Any:
    (row,) = written(left).to_pylist()
    return None if row["metadata"] is None else msgpack.unpackb(row["metadata"])


def test_unchanged_bytes_keep_their_content_type(spark: SparkSession) -> None:
    given = decode(events(spark, b"{}", content_types=["text/x-json"]), [Branch("json")]).public()
    assert metadata(leaving(received(given, "in"))) == {"content_type": "text/x-json"}


def test_a_reply_has_the_content_type_of_its_codec_unless_it_has_its_own(spark: SparkSession) -> None:
    made = decode(events(spark, b"{}", content_types=["text/x-json"]), [Branch("json")]).public()
    given = received(made, "in")
    replies = Outlet("out", (("out.msgpack", "msgpack"),), adds_content_type=True)
    assert metadata(leaving(given.drop("value"), replies)) == {"content_type": "application/msgpack"}
    assert metadata(leaving(given.drop("value"))) is None
    own = given.drop("value").selectExpr("* EXCEPT (content_type)", "'x/y' AS content_type")
    assert metadata(leaving(own, replies)) == {"content_type": "x/y"}


def test_a_reply_has_the_codec_configured_for_the_content_type_of_its_request(spark: SparkSession) -> None:
    content_types = ["text/csv; charset=utf-8", None, "application/msgpack", "image/png"]
    made = decode(events(spark, *[b'{"id": 1}'] * 4, content_types=content_types), [Branch("json", "id int")])
    maps = {"out": (("text/csv", "csv"), ("application/msgpack", "msgpack"))}
    left = leaving(received(made.public(), "in").drop("value"), Outlet("out", (("out", "json"),), True, maps))
    rows = written(left).sort_by("message_id").to_pylist()
    packed = msgpack.packb({"id": 1})
    assert [row["value"] for row in rows] == [b"1", b'{"id":1}', packed, b'{"id":1}']
    assert [msgpack.unpackb(row["metadata"])["content_type"] for row in rows] == [
        "text/csv",
        "application/json",
        "application/msgpack",
        "application/json",
    ]


def test_a_column_of_another_input_is_not_in_the_value(spark: SparkSession) -> None:
    one, other = decoded(spark, b'{"id": 1}'), received(decoded(spark, b'{"id": 2}').select("id"), "other")
    with pytest.raises(RequestError, match="have `value` and also `id`"):
        leaving(one.drop("id").crossJoin(other))
    assert values(leaving(one.withColumnRenamed("id", "n").withColumnRenamed("n", "id")))


def test_metadata_of_a_row_may_be_a_struct_or_a_map(spark: SparkSession) -> None:
    given = decoded(spark, b'{"id": 1}').drop("value")
    assert metadata(leaving(given.selectExpr("id", "struct(404 AS status) AS metadata"))) == {"status": 404}
    assert metadata(leaving(given.selectExpr("id", "map('a', 'b') AS metadata"))) == {"a": "b"}
    assert metadata(leaving(given.selectExpr("id", "cast(null AS struct<a: int>) AS metadata"))) is None
    assert metadata(leaving(given.selectExpr("id", "parse_json('{\"a\": [1]}') AS metadata"))) == {"a": [1]}
    replies = Outlet("out", (("out", "json"),), adds_content_type=True)
    found = metadata(leaving(given.selectExpr("id", "struct(404 AS status) AS metadata"), replies))
    assert found == {"status": 404, "content_type": "application/json"}


@pytest.mark.parametrize("codec", ["json", "msgpack", "csv", "string"])
def test_events_that_pass_through_with_the_same_codec_keep_their_bytes(spark: SparkSession, codec: str) -> None:
    good = {"json": b' {"id" : 1}', "msgpack": msgpack.packb({"id": 1}), "csv": b'"1",x', "string": b"text"}[codec]
    bad = b"\xff\xff,"
    made = decode(events(spark, good, bad), [Branch(codec, SCHEMA)])
    frame = passed(made.decoded, {"out": Outlet("out", (("out", codec),))}, "out")
    assert values(frame) == [("out", good)]
    assert [value for value, _ in dead_letters(made)] == [bad]


def test_events_that_pass_through_to_another_codec_are_encoded_again(spark: SparkSession) -> None:
    made = decode(events(spark, b'{"id": 1, "name": "x"}'), [Branch("json", SCHEMA)])
    frame = passed(
        made.decoded,
        {
            "out": Outlet(
                "out", (("out", "binary"), ("out.csv", "csv"), ("out.msgpack", "msgpack"), ("out.string", "string"))
            )
        },
        "out",
    )
    assert values(frame) == [
        ("out", b'{"id": 1, "name": "x"}'),
        ("out.csv", b"1,x"),
        ("out.msgpack", msgpack.packb({"id": 1, "name": "x"})),
        ("out.string", b'{"id": 1, "name": "x"}'),
    ]


def test_events_that_pass_through_are_decoded_with_the_codec_of_their_source(spark: SparkSession) -> None:
    codings = {"a": Coding("a", "json"), "b": Coding("b", "msgpack"), "c": Coding("c", "string")}
    given = [b'{"id":  1}', msgpack.packb({"id": 2}), b"three"]
    frame = events(spark, *given, segments=["connector/a/0", "connector/b/0", "connector/c/0"])
    found = values(passed(decode(frame, branches(codings)).decoded, {"out": JSON}, "out"))
    assert found == [("out", b'{"id":  1}'), ("out", b'{"id":2}'), ("out", b'{"text":"three"}')]
