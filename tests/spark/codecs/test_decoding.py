"""Bytes to columns, on Spark; what cannot be decoded is a letter with the original bytes."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgpack
import pytest

from penstock.core.errors import RequestError
from penstock.spark.codecs.codec import Branch, Coding, branches
from penstock.spark.codecs.decoder import decode
from tests.spark.codecs.frames import columns, events, letters

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SCHEMA = "id int, name string"


def test_json_without_a_schema_is_a_variant(spark: SparkSession) -> None:
    made = decode(events(spark, b'{"a": [1, {"b": null}]}', b'"text"', b"null", b"12.5"), [Branch("json")])
    assert columns(made) == [{"data": value} for value in ({"a": [1, {"b": None}]}, "text", None, 12.5)]
    assert letters(made) == []


BAD_JSON = (
    b"",
    b"{",
    b"nonsense",
    b'{"id": 1} {"id": 2}',
    b'{"id": 1} rest',
    b'{"id": 1}, 2',
    b'{"id": 1}]',
    b'{"id": 1}], [2',
    b"\xff\xfe",
    b'{"name": "\xff"}',
    b"{'id': 1}",
    b"NaN",
    b'{"id": 1}]} {"id": 2}',
    b"\xef\xbb\xbf{}",
    b'"\\ud800"',
)


@pytest.mark.parametrize("schema", [None, SCHEMA])
def test_what_is_not_one_whole_json_document_is_a_dead_letter_with_its_bytes(
    spark: SparkSession, schema: str | None
) -> None:
    made = decode(events(spark, *BAD_JSON, b'{"id": 1}'), [Branch("json", schema)])
    assert [value for value, _ in letters(made)] == list(BAD_JSON)
    assert len([one for one in columns(made) if one]) == 1


def test_a_schemas_fields_are_columns(spark: SparkSession) -> None:
    made = decode(events(spark, b'{"id": 1, "name": "x", "more": 2}', b'{"name": null}'), [Branch("json", SCHEMA)])
    assert columns(made) == [{"id": 1, "name": "x"}, {"id": None, "name": None}]


def test_what_does_not_fit_a_schema_is_a_dead_letter_that_names_the_field_and_what_was_found(
    spark: SparkSession,
) -> None:
    bad = {
        b'{"id": "one"}': "has the wrong type at `id`: expected int, found string one",
        b'{"name": "x", "id": 1.5}': "has the wrong type at `id`: expected int, found decimal(2,1) 1.5",
        b'{"at": {"x": true}}': "has the wrong type at `at.x`: expected double, found boolean true",
        b'{"tags": "a"}': "has the wrong type at `tags`: expected array<string>, found string a",
        b"[]": "is not an object, but array<void>",
        b"null": "is not an object, but void",
        b'{"id": 1': "is not valid JSON",
        b"\xff": "is not valid JSON",
        b'{"id": 1} {"id": 2}': "is more than one JSON document, or none of struct<"
        "id:int,name:string,at:struct<x:double>,tags:array<string>,need:int>",
        b'{"id": 2, "need": null}': "has the wrong type at `need`: expected int, found nothing",
    }
    schema = "id int, name string, at struct<x: double>, tags array<string>, need int not null"
    found = letters(decode(events(spark, *bad), [Branch("json", schema)]))
    assert dict(found) == {value: f"`value` {reason}" for value, reason in bad.items()}
    packed = msgpack.packb({"id": "one"})
    (reason,) = (reason for _, reason in letters(decode(events(spark, packed), [Branch("msgpack", "id int")])))
    assert reason == "`value` has the wrong type at `id`: expected int, found string one"


def test_a_csv_record_that_does_not_fit_names_the_column(spark: SparkSession) -> None:
    bad = {
        b"one,x": "has the wrong type at `id`: expected int, found one",
        b",x": "has the wrong type at `id`: expected int, found nothing",
        b"1,x,y": "is not one CSV record of 2 columns",
        b'"1,x': "is not one CSV record of 2 columns",
    }
    found = letters(decode(events(spark, *bad), [Branch("csv", "id int not null, name string")]))
    assert dict(found) == {value: f"`value` {reason}" for value, reason in bad.items()}


def test_fields_with_names_of_the_events_own_columns_are_inside_of_data(spark: SparkSession) -> None:
    made = decode(events(spark, b'{"sensor": "a", "value": 2.5}'), [Branch("json", "sensor string, Value double")])
    assert columns(made) == [{"data": {"sensor": "a", "Value": None}}]
    made = decode(
        events(spark, b'{"sensor": "a", "value": 2.5}', b"{"), [Branch("json", "sensor string, value double")]
    )
    assert columns(made) == [{"data": {"sensor": "a", "value": 2.5}}, {}]


def test_of_a_name_that_stands_twice_a_schema_takes_the_last_and_a_variant_can_hold_none(spark: SparkSession) -> None:
    twice = b'{"id": 1, "id": 2}'
    assert columns(decode(events(spark, twice), [Branch("json", "id int")])) == [{"id": 2}]
    assert letters(decode(events(spark, twice), [Branch("json")])) == [(twice, "`value` is not valid JSON")]


def test_a_field_that_may_not_be_null_is_needed(spark: SparkSession) -> None:
    schema = "id int NOT NULL, name string"
    made = decode(events(spark, b'{"id": 1}', b'{"name": "x"}', b'{"id": null}'), [Branch("json", schema)])
    assert [value for value, _ in letters(made)] == [b'{"name": "x"}', b'{"id": null}']
    made = decode(events(spark, b"1,x", b",x"), [Branch("csv", schema)])
    assert [value for value, _ in letters(made)] == [b",x"]


def test_numbers_and_depths_beyond_measure_stop_nothing(spark: SparkSession) -> None:
    odd = [b"1e400", b"9" * 400, b"-0", b"[" * 600 + b"]" * 600, b"[" * 5000 + b"]" * 5000]
    made = decode(events(spark, *odd, b'"well"'), [Branch("json")])
    assert columns(made)[-1] == {"data": "well"}
    assert [value for value, _ in letters(made)] == [odd[-1]], "1,000 levels are the most"
    made = decode(events(spark, *(b'{"id": %s}' % one for one in odd), b'{"id": 7}'), [Branch("json", "id int")])
    assert columns(made)[-1] == {"id": 7}
    assert len(letters(made)) == len(odd) - 1, "-0 is a number"


def test_messagepack_is_decoded_as_json_is(spark: SparkSession) -> None:
    values = [{"a": [1, None]}, "text", 2**63, 1.5, {1: b"bytes"}, datetime(2026, 1, 2, tzinfo=UTC)]
    made = decode(events(spark, *(msgpack.packb(one, datetime=True) for one in values)), [Branch("msgpack")])
    told = [{"a": [1, None]}, "text", 2**63, 1.5, {"1": "Ynl0ZXM="}, "2026-01-02T00:00:00+00:00"]
    assert columns(made) == [{"data": value} for value in told]


def test_messagepack_with_a_schema_gives_bytes_and_times(spark: SparkSession) -> None:
    value = msgpack.packb({"raw": b"\x00\xff", "at": datetime(2026, 1, 2, 3, tzinfo=UTC)}, datetime=True)
    made = decode(events(spark, value), [Branch("msgpack", "raw binary, at timestamp")])
    (row,) = made.frame.select("raw", made.frame["at"].cast("string")).collect()
    assert (bytes(row[0]), row[1]) == (b"\x00\xff", "2026-01-02 03:00:00")


def test_what_is_no_messagepack_or_has_no_place_in_json_is_a_dead_letter(spark: SparkSession) -> None:
    bad = [b"", b"\xc1", b"\x81", b"\x01\x02", msgpack.packb(float("nan")), msgpack.packb(msgpack.ExtType(5, b"x"))]
    bad += [msgpack.packb({b"key": 1}), b"\x91" * 2000 + b"\xc0"]
    made = decode(events(spark, *bad), [Branch("msgpack")])
    assert [value for value, _ in letters(made)] == bad
    assert {reason for _, reason in letters(made)} == {"`value` is not valid MessagePack"}


def test_a_string_is_text_and_bad_utf_8_a_dead_letter(spark: SparkSession) -> None:
    made = decode(events(spark, "grün".encode(), b"", b"\xff"), [Branch("string")])
    assert columns(made) == [{"text": "grün"}, {"text": ""}, {}]
    assert letters(made) == [(b"\xff", "`value` is not valid UTF-8")]


def test_csv_gives_the_columns_of_its_schema(spark: SparkSession) -> None:
    values = {
        b"1,abc": (1, "abc"),
        b'2,"a, ""b"""': (2, 'a, "b"'),
        b"3,": (3, None),
        b'4,""': (4, ""),
        b"5, x ": (5, " x "),
        b'6,"a\r\nb"': (6, "a\r\nb"),
        b"7,end\n": (7, "end"),
        b'"8","end"\r\n': (8, "end"),
        b"9,\\": (9, "\\"),
    }
    made = decode(events(spark, *values), [Branch("csv", SCHEMA)])
    assert columns(made) == [{"id": number, "name": name} for number, name in values.values()]


def test_csv_with_other_fields_is_a_dead_letter(spark: SparkSession) -> None:
    bad = [
        b"x,abc",
        b"1",
        b"1,a,b",
        b"\xff,a",
        b"",
        b"\n",
        b'1,"open',
        b'1,a"b',
        b"1,a\n2",
        b"\n1,a",
        b"1,a\n\n",
        b"#1,a",
    ]
    made = decode(events(spark, *bad), [Branch("csv", SCHEMA)])
    assert [value for value, _ in letters(made)] == bad
    assert letters(decode(events(spark, b"a\nb", b""), [Branch("csv", "s string")]))[0][0] == b"a\nb"


def test_csv_without_a_schema_is_refused(spark: SparkSession) -> None:
    with pytest.raises(RequestError, match="csv cannot be decoded without a schema"):
        decode(events(spark, b"1"), [Branch("csv")])


def test_binary_leaves_the_frame_alone(spark: SparkSession) -> None:
    frame = events(spark, b"\xff")
    assert decode(frame, [Branch("binary")]).public().columns == frame.columns


def test_the_content_type_says_which_codec_it_is(spark: SparkSession) -> None:
    coding = Coding("tills", None, {"application/json": "json", "Text/*": "string", "application/x-msgpack": "msgpack"})
    types = ["application/json; charset=utf-8", "TEXT/plain", "application/x-msgpack", "image/png", None, "text/html"]
    values = [b'{"a": 1}', b"hello", msgpack.packb([1]), b"png", b"none", b"\xff"]
    made = decode(events(spark, *values, content_types=types), branches({"tills": coding}))
    assert columns(made) == [
        {"data": {"a": 1}, "text": None},
        {"data": None, "text": "hello"},
        {"data": [1], "text": None},
        {},
        {},
        {},
    ]
    assert letters(made) == [
        (b"png", "no codec for its content type (image/png)"),
        (b"none", "no codec for its content type (none given)"),
        (b"\xff", "`value` is not valid UTF-8"),
    ]


def test_what_the_map_does_not_have_is_for_the_connectors_codec(spark: SparkSession) -> None:
    coding = Coding("tills", "json", {"text/csv": "csv"}, SCHEMA)
    values, types = [b'{"id": 1, "name": "x"}', b"2,y", b'{"id": 3}'], ["application/json", "text/csv", None]
    made = decode(events(spark, *values, content_types=types), branches({"tills": coding}))
    assert columns(made) == [{"id": 1, "name": "x"}, {"id": 2, "name": "y"}, {"id": 3, "name": None}]


def test_each_source_of_an_input_has_its_own_codec(spark: SparkSession) -> None:
    codings = {
        "a": Coding("a", "json", {}, SCHEMA),
        "b": Coding("b", "csv", {}, SCHEMA),
        "pipeline:p/out": Coding("pipeline:p/out", "binary"),
    }
    segments = ["connector/a/0", "connector/b/12", "pipeline/p/out"]
    made = decode(events(spark, b'{"id": 1}', b"2,y", b"\xff", segments=segments), branches(codings))
    assert columns(made) == [{"id": 1, "name": None}, {"id": 2, "name": "y"}, {"id": None, "name": None}]
    assert letters(made) == []


def test_a_replayed_dead_letter_is_decoded_as_its_first_source_is(spark: SparkSession) -> None:
    codings = {"a": Coding("a", "json", {}, SCHEMA), "b": Coding("b", "csv", {}, SCHEMA)}
    made = decode(events(spark, b"2,y", segments=["pipeline/p/replay.in"], source="b"), branches(codings))
    assert columns(made) == [{"id": 2, "name": "y"}]


def test_schemas_that_do_not_go_together_are_refused(spark: SparkSession) -> None:
    codings = {"a": Coding("a", "json", {}, "id int"), "b": Coding("b", "csv", {}, "id string")}
    with pytest.raises(RequestError, match="`id` would be int and string"):
        decode(events(spark, b"1"), branches(codings))
