"""Bytes to columns on Arrow batches, without Spark. What cannot be decoded keeps its bytes and has a reason."""

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import msgpack
import pyarrow as pa
import pytest

from penstock.core.errors import RequestError
from penstock.spark.codecs.batch_decoder import Decoder
from penstock.spark.codecs.codec import Branch, Coding, branches
from tests.spark.codecs.batches import decode, decode_values, events

SCHEMA = "id int, name string"


def test_json_without_a_schema_is_the_text_that_spark_parses() -> None:
    documents = [b'{"a": [1, {"b": null}]}', b'"text"', b"null", b"12.5", b"1e400", b"9" * 400, b'"\\u00e4"']
    found = decode_values("json", None, *documents)
    assert [row["data"].encode() for row in found.rows] == documents
    assert found.failed == []


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
    b'{"other": "\xff"}',
    b"{'id': 1}",
    b"NaN",
    b'{"id": NaN}',
    b'{"id": 1}]} {"id": 2}',
    b"\xef\xbb\xbf{}",
    b'"\\ud800"',
    b'{"other": "\\ud800"}',
    b'{"name": "a\nb"}',
    b"[" * 600 + b"]" * 600,
    b"[" * 5000 + b"]" * 5000,
    b'{"other": ' + b"[" * 600 + b"]" * 600 + b"}",
)


@pytest.mark.parametrize("schema", [None, SCHEMA])
def test_a_value_that_is_not_one_whole_json_document_is_a_dead_letter_with_its_bytes(schema: str | None) -> None:
    found = decode_values("json", schema, *BAD_JSON, b'{"id": 1}')
    assert [value for value, _ in found.failed] == list(BAD_JSON)
    assert found.values == [b'{"id": 1}']


def test_a_schemas_fields_are_columns_and_a_missing_field_is_null() -> None:
    found = decode_values("json", SCHEMA, b'{"id": 1, "name": "x", "more": 2}', b'{"name": null}', b'{"ID": 1}')
    nothing = {"id": None, "name": None}
    assert found.rows == [{"id": 1, "name": "x"}, nothing, nothing]


def test_a_value_that_does_not_match_the_schema_is_a_dead_letter_that_names_the_field_and_what_was_found() -> None:
    bad = {
        b'{"id": "one"}': "has the wrong type at `id`: expected int, found string one",
        b'{"name": "x", "id": 1.5}': "has the wrong type at `id`: expected int, found number 1.5",
        b'{"id": 2147483648}': "has the wrong type at `id`: expected int, found number 2147483648",
        b'{"at": {"x": true}}': "has the wrong type at `at.x`: expected double, found boolean true",
        b'{"at": {"x": 1e400}}': "has the wrong type at `at.x`: expected double, found number 1e400",
        b'{"tags": "a"}': "has the wrong type at `tags`: expected array<int>, found string a",
        b'{"tags": [1, "a"]}': "has the wrong type at `tags[1]`: expected int, found string a",
        b"[]": "is not an object, but array",
        b"null": "is not an object, but null",
        b'{"id": 1': "is not valid JSON",
        b"\xff": "is not valid JSON",
        b'{"id": 1} {"id": 2}': "is not valid JSON",
        b'{"id": 2, "need": null}': "has the wrong type at `need`: expected int, found nothing",
        b'{"need": 1, "at": {}}': "has the wrong type at `at.y`: expected int, found nothing",
        b'{"id": 1, "id": "x"}': "has the wrong type at `id`: expected int, found string x",
    }
    schema = "id int, name string, at struct<x: double, y: int not null>, tags array<int>, need int not null"
    found = decode_values("json", schema, *bad)
    assert dict(found.failed) == {value: f"`value` {reason}" for value, reason in bad.items()}
    (packed,) = decode_values("msgpack", "id int", msgpack.packb({"id": "one"})).failed
    assert packed[1] == "`value` has the wrong type at `id`: expected int, found string one"


def test_a_long_value_is_shortened_in_the_reason() -> None:
    ((_, reason),) = decode_values("json", SCHEMA, b'{"id": "%s"}' % (b"x" * 1000)).failed
    assert reason.endswith("found string " + "x" * 60)


GOOD_VALUES: dict[str, list[tuple[bytes, Any]]] = {
    "tinyint": [(b"-128", -128), (b"127", 127)],
    "bigint": [(b"9223372036854775807", 2**63 - 1), (b"-0", 0)],
    "double": [(b"1", 1.0), (b"1e10", 1e10), (b'"Infinity"', float("inf")), (b'"-INF"', float("-inf"))],
    "float": [(b"1.5", 1.5)],
    "string": [(b"12.50", "12.50"), (b"true", "true"), (b'{"a" : [1]}', '{"a" : [1]}'), (b'"a\\n"', "a\n")],
    "binary": [(b'"aGk="', b"hi"), (b'""', b"")],
    "boolean": [(b"true", True)],
    "decimal(5,2)": [(b"1.555", Decimal("1.56")), (b'"7"', Decimal("7.00")), (b"-999.99", Decimal("-999.99"))],
    "date": [(b'"2026-01-02"', date(2026, 1, 2)), (b'"2026-1-2"', date(2026, 1, 2))],
    "timestamp": [
        (b'"2026-01-02T03:04:05Z"', datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
        (b'"2026-01-02 03:04"', datetime(2026, 1, 2, 3, 4, tzinfo=UTC)),
        (b'"2026-01-02T03:04:05.1234567+01:00"', datetime(2026, 1, 2, 2, 4, 5, 123456, tzinfo=UTC)),
        (b'"2026-01-02"', datetime(2026, 1, 2, tzinfo=UTC)),
        (b"1", datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)),
    ],
    "timestamp_ntz": [(b'"2026-01-02T03:04:05.5"', datetime(2026, 1, 2, 3, 4, 5, 500000))],
    "map<string,date>": [(b'{"a": "2026-01-02", "b": null}', {"a": date(2026, 1, 2), "b": None})],
    "array<struct<a:int,t:timestamp>>": [
        (b'[{"t": 0}, null]', [{"a": None, "t": datetime.fromtimestamp(0, UTC)}, None])
    ],
    "variant": [(b'{"a": 1}', '{"a": 1}'), (b"null", "null")],
}

BAD_VALUES: dict[str, list[bytes]] = {
    "tinyint": [b"128", b"-129", b"1.0", b'"1"', b"true"],
    "bigint": [b"9223372036854775808", b"1e2"],
    "double": [b'"1.5"', b'""', b'"nan"', b"true", b"1e400"],
    "float": [b"1e39", b"-1e39"],
    "binary": [b'"a"', b'"a b="', b"1"],
    "boolean": [b"1", b'"true"'],
    "decimal(5,2)": [b"1000", b'"x"', b'"NaN"', b"999.995"],
    "date": [b'"2026-02-30"', b"1", b'"2026-01-02T03:04:05Z"', b'"2026"'],
    "timestamp": [
        b'"2026-02-30"',
        b"1.5",
        b'"soon"',
        b'"12:00"',
        b"999999999999999",
        b'"2026-01-02T03:04:05 Europe/Paris"',
    ],
    "timestamp_ntz": [b'"2026-01-02T03:04:05Z"', b"1"],
    "map<string,date>": [b'{"a": 1}', b"[]"],
    "variant": [b'{"a": 1, "a": 2}'],
}


@pytest.mark.parametrize("kind", GOOD_VALUES)
def test_values_of_a_type_are_decoded(kind: str) -> None:
    found = decode_values("json", f"x {kind}", *(b'{"x": %s}' % value for value, _ in GOOD_VALUES[kind]))
    assert ([row["x"] for row in found.rows], found.failed) == ([value for _, value in GOOD_VALUES[kind]], [])


@pytest.mark.parametrize("kind", BAD_VALUES)
def test_values_of_another_type_are_dead_letters(kind: str) -> None:
    documents = [b'{"x": %s}' % value for value in BAD_VALUES[kind]]
    found = decode_values("json", f"x {kind}", *documents)
    assert [value for value, _ in found.failed] == documents
    assert all("`x" in reason for _, reason in found.failed)


@pytest.mark.parametrize("kind", GOOD_VALUES)
def test_an_event_is_decoded_the_same_whatever_else_is_in_its_batch(kind: str) -> None:
    documents = [b'{"x": %s}' % value for value, _ in GOOD_VALUES[kind]]
    alone = [decode_values("json", f"x {kind}", one).rows[0] for one in documents]
    mixed = decode_values("json", f"x {kind}", b"bad", *documents, b'{"x": [{"y": {}}, {}, 1]}', b"{}")
    assert mixed.rows[: len(alone)] == alone


def test_fields_named_like_event_columns_are_inside_data() -> None:
    found = decode_values("json", "sensor string, value double", b'{"sensor": "a", "value": 2.5}', b"{")
    assert found.rows == [{"data": {"sensor": "a", "value": 2.5}}]
    assert len(found.failed) == 1
    assert decode_values("json", "Port int", b'{"Port": 1}').rows == [{"data": {"Port": 1}}]


def test_of_a_repeated_name_a_schema_takes_the_last_and_a_variant_refuses_both() -> None:
    twice = (b'{"id": 1, "id": 2}', b'{"id": 1, "\\u0069d": 2}')
    assert decode_values("json", "id int", *twice).rows == [{"id": 2}, {"id": 2}]
    assert decode_values("json", None, *twice).failed == [(one, "`value` has the name `id` twice") for one in twice]
    assert decode_values("json", None, b'{"a:b": ":", "c": {"a:b": 1}}').failed == []


def test_a_field_that_may_not_be_null_is_required() -> None:
    schema = "id int NOT NULL, name string"
    found = decode_values("json", schema, b'{"id": 1}', b'{"name": "x"}', b'{"id": null}')
    assert [value for value, _ in found.failed] == [b'{"name": "x"}', b'{"id": null}']
    assert [value for value, _ in decode_values("csv", schema, b"1,x", b",x", b"y,").failed] == [b",x", b"y,"]


def test_messagepack_is_decoded_like_json() -> None:
    values = [{"a": [1, None]}, "text", 2**63, 1.5, {1: b"bytes"}, datetime(2026, 1, 2, tzinfo=UTC)]
    found = decode_values("msgpack", None, *(msgpack.packb(one, datetime=True) for one in values))
    texts = [
        '{"a": [1, null]}',
        '"text"',
        "9223372036854775808",
        "1.5",
        '{"1": "Ynl0ZXM="}',
        '"2026-01-02T00:00:00+00:00"',
    ]
    assert [row["data"] for row in found.rows] == texts


def test_messagepack_with_a_schema_has_bytes_times_and_numbers() -> None:
    at = datetime(2026, 1, 2, 3, tzinfo=UTC)
    values = [
        {"raw": b"\x00\xff", "at": at},
        {"raw": "AP8=", "at": at.isoformat()},
        {"at": 0, 1: 2},
        {"x": float("inf")},
    ]
    schema = "raw binary, at timestamp, x double"
    found = decode_values("msgpack", schema, *(msgpack.packb(one, datetime=True) for one in values))
    assert [tuple(row.values()) for row in found.rows] == [
        (b"\x00\xff", at, None),
        (b"\x00\xff", at, None),
        (None, datetime.fromtimestamp(0, UTC), None),
        (None, None, float("inf")),
    ]


def test_invalid_messagepack_or_a_value_that_json_cannot_represent_is_a_dead_letter() -> None:
    bad = [b"", b"\xc1", b"\x81", b"\x01\x02", msgpack.packb(msgpack.ExtType(5, b"x"))]
    bad += [msgpack.packb({b"key": 1}), b"\x91" * 2000 + b"\xc0"]
    found = decode_values("msgpack", None, *bad)
    assert found.failed == [(one, "`value` is not valid MessagePack") for one in bad]
    found = decode_values("msgpack", "v variant", msgpack.packb({"v": [1]}), *bad)
    assert [row["v"] for row in found.rows] == ["[1]"]
    assert len(found.failed) == len(bad)


def test_a_string_is_text_and_invalid_utf_8_is_a_dead_letter() -> None:
    found = decode_values("string", None, "grün".encode(), b"", b"\xff")
    assert found.rows == [{"text": "grün"}, {"text": ""}]
    assert found.failed == [(b"\xff", "`value` is not valid UTF-8")]


def test_csv_is_decoded_into_the_columns_of_its_schema() -> None:
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
        b"+10,+10": (10, "+10"),
    }
    found = decode_values("csv", SCHEMA, *values)
    assert [(row["id"], row["name"]) for row in found.rows] == [*values.values()]
    assert decode_values("csv", "s string", b"", b'""', b"a").rows == [{"s": None}, {"s": ""}, {"s": "a"}]


def test_csv_values_of_each_type_are_decoded() -> None:
    schema = "b boolean, d double, f float, p decimal(5,2), t timestamp, n timestamp_ntz, day date, i bigint"
    good = b"TRUE,1e3,-Inf,1.555,2026-01-02T03:04:05Z,2026-01-02 03:04:05,2026-01-02,007"
    ((row),) = decode_values("csv", schema, good).rows
    assert [*row.values()] == [
        True,
        1000.0,
        float("-inf"),
        Decimal("1.56"),
        datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        datetime(2026, 1, 2, 3, 4, 5),
        date(2026, 1, 2),
        7,
    ]
    mixed = decode_values("csv", "t timestamp, d date", b"2026-01-02,", b"2026-01-02T00:00:00Z,2026-1-2", b",soon")
    assert [row["t"] for row in mixed.rows] == [datetime(2026, 1, 2, tzinfo=UTC)] * 2
    assert [row["d"] for row in mixed.rows] == [None, date(2026, 1, 2)]
    bad = [b"1,,,,,,,", b",1d,,,,,,", b",1e400,,,,,,", b",,1e39,,,,,", b",,,1000,,,,", b",,,,12,,,", b",,,,,,,0x1"]
    assert [value for value, _ in decode_values("csv", schema, *bad, good).failed] == bad


def test_a_csv_value_that_does_not_match_its_type_is_a_dead_letter_that_names_the_column() -> None:
    bad = {
        b"one,x": "has the wrong type at `id`: expected int, found one",
        b",x": "has the wrong type at `id`: expected int, found nothing",
        b"1,x,y": "is not one CSV record of 2 columns",
        b'"1,x': "is not one CSV record of 2 columns",
        b'1,"x"y': "is not one CSV record of 2 columns",
        b"\xff": "is not valid CSV",
    }
    found = decode_values("csv", "id int not null, name string", *bad)
    assert dict(found.failed) == {value: f"`value` {reason}" for value, reason in bad.items()}


def test_csv_that_is_not_one_record_of_the_schema_is_a_dead_letter() -> None:
    bad = [
        *(b"x,abc", b"1", b"1,a,b", b"\xff,a", b"", b"\n", b'1,"open', b'1,a"b', b"1,a\n2", b"\n1,a", b"1,a\n\n"),
        *(b"#1,a", b"1,a\r", b" 1,a"),
    ]
    found = decode_values("csv", SCHEMA, *bad)
    assert [value for value, _ in found.failed] == bad
    assert [value for value, _ in decode_values("csv", "s string", b"a\nb", b"").failed] == [b"a\nb"]


@pytest.mark.parametrize(
    ("branch", "error"),
    [
        (Branch("csv"), "csv cannot be decoded without a schema"),
        (Branch("csv", "a array<int>"), "csv cannot decode `a`, which is array<int>"),
        (Branch("json", "i interval"), "codecs cannot decode interval"),
        (Branch("json", "m map<int, int>"), "keys of documents are strings"),
        (Branch("jsn"), "unknown codec 'jsn'"),
    ],
)
def test_a_codec_or_type_that_cannot_be_decoded_is_refused(branch: Branch, error: str) -> None:
    with pytest.raises(RequestError, match=error):
        Decoder([branch], ())


def test_the_content_type_chooses_the_codec() -> None:
    coding = Coding("tills", None, {"text/*": "string", "text/csv": "csv", "application/json": "json"}, SCHEMA)
    types = ["text/csv; charset=utf-8", "TEXT/plain", "application/json", "image/png", None]
    found = decode(
        events(b"1,x", b"hello", b'{"id": 2}', b"png", b"none", content_types=types), branches({"tills": coding})
    )
    assert found.rows == [
        {"id": 1, "name": "x", "text": None},
        {"id": None, "name": None, "text": "hello"},
        {"id": 2, "name": None, "text": None},
    ]
    assert found.failed == [
        (b"png", "no codec for its content type (image/png)"),
        (b"none", "no codec for its content type (none given)"),
    ]


def test_each_source_has_its_own_codec_and_others_are_not_decoded() -> None:
    codings = {"a": Coding("a", "json", {}, SCHEMA), "b": Coding("b", "csv", {}, SCHEMA)}
    segments = ["connector/b/12", "connector/a/0", "pipeline/p/out", "connector/b/0"]
    found = decode(events(b"2,y", b'{"id": 1}', b"\xff", b"x", segments=segments), branches(codings))
    assert [row["id"] for row in found.rows] == [2, 1, None]
    assert found.values == [b"2,y", b'{"id": 1}', b"\xff"]
    assert [value for value, _ in found.failed] == [b"x"]


def test_a_replayed_dead_letter_is_decoded_like_its_original_source() -> None:
    codings = {"a": Coding("a", "json", {}, SCHEMA), "b": Coding("b", "csv", {}, SCHEMA)}
    found = decode(events(b"2,y", segments=["pipeline/p/replay.in"], source="b"), branches(codings))
    assert found.rows == [{"id": 2, "name": "y"}]


def test_incompatible_schemas_are_refused() -> None:
    codings = {"a": Coding("a", "json", {}, "id int"), "b": Coding("b", "csv", {}, "id string")}
    with pytest.raises(RequestError, match="`id` would be int and string"):
        Decoder(branches(codings), ())


def test_a_decoder_lists_the_columns_that_it_reads_and_adds() -> None:
    codings = {
        "a": Coding("a", "json"),
        "b": Coding("b", "json", {"text/x": "msgpack"}, "id int, o struct<v: variant>"),
    }
    decoder = Decoder(branches(codings), ())
    assert decoder.needs == ("value", "content_type", "segment", "source")
    assert decoder.ddl() == "data STRING, id INT, o STRUCT<v:STRING>"
    assert Decoder([Branch("json")], ()).needs == ("value",)


def test_an_empty_batch_has_all_columns() -> None:
    decoder = Decoder([Branch("json", SCHEMA)], ())
    assert decoder.decode(events()).batch.schema.names[-2:] == ["id", "name"]
    assert decoder.decode(events(b"bad")).batch.num_rows == 0
    assert decoder.decode(events()).batch.schema.field("id").type == pa.int32()
