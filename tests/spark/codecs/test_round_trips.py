"""Any row of a codec's columns is written and read back the same, however batches and bytes are cut on the way."""

import json
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.connectors.registry import make_chains
from penstock.core.ddl import parse_ddl
from penstock.core.errors import RequestError
from penstock.core.kinds import arrow_field
from penstock.protocol.api.deployment import InterceptorSpec
from penstock.spark.codecs.codec import CODECS, with_options
from penstock.spark.codecs.registry import codec
from tests.connectors.interceptors.test_split import cut
from tests.spark.codecs.test_more_conformance import descriptor

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)
"""Without NUL, which YAML cannot have."""
WORD = st.from_regex(r"[a-z]{1,5}", fullmatch=True)
LINE = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), max_size=8)
PART = st.text(
    st.characters(codec="utf-8", exclude_categories=["C", "Z"], exclude_characters="|"), min_size=1, max_size=8
)
"""Of a metric."""
LINES = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"], exclude_characters="\\"), max_size=4).map(
    lambda text: text.replace("x", "\n").replace("y", "|")
)
TIME = st.integers(0, 4_000_000_000).map(lambda seconds: datetime.fromtimestamp(seconds, UTC))
MILLIS = st.builds(lambda at, ms: at + timedelta(milliseconds=ms), TIME, st.integers(0, 999))
"""As texts have times, which Spark writes with milliseconds."""
INSTANT = st.builds(lambda at, us: at + timedelta(microseconds=us), TIME, st.integers(0, 999_999))
NUMBER = st.integers(-(10**6), 10**6).map(lambda number: number / 4)
INTEGER = st.integers(-(2**31), 2**31 - 1)
MAP = st.dictionaries(WORD, WORD, max_size=3)
RATE = st.none() | st.just(0.25)
ROW = {"id": st.none() | INTEGER, "name": st.none() | TEXT, "price": st.none() | NUMBER}
DDL = "id INT, name STRING, price DOUBLE"
ROWS = {"rows": st.lists(st.fixed_dictionaries(ROW), max_size=4)}

WIDE = {
    "big": st.none() | st.integers(-(2**63), 2**63 - 1),
    "amount": st.none() | st.integers(-(10**12), 10**12).map(lambda number: Decimal(number).scaleb(-3)),
    "at": st.none() | INSTANT,
    "day": st.none() | st.dates(date(1900, 1, 1), date(2200, 1, 1)),
    "raw": st.none() | st.binary(max_size=8),
    "ok": st.none() | st.booleans(),
    "tags": st.none() | st.lists(TEXT, max_size=3),
    "counts": st.none() | st.dictionaries(WORD, INTEGER, max_size=2),
    "inner": st.none()
    | st.fixed_dictionaries(
        {"a": st.none() | INTEGER, "b": st.none() | st.fixed_dictionaries({"c": st.none() | TEXT})}
    ),
}
WIDE_DDL = (
    "big BIGINT, amount DECIMAL(15,3), at TIMESTAMP, day DATE, raw BINARY, ok BOOLEAN, tags ARRAY<STRING>, "
    "counts MAP<STRING, INT>, inner STRUCT<a: INT, b: STRUCT<c: STRING>>"
)
IN_TEXTS = WIDE | {"at": st.none() | MILLIS}
FLAT = ("big", "amount", "at", "day", "ok")
"""What a cell of CSV can have."""
WIDE_ROWS = {"rows": st.lists(st.fixed_dictionaries(WIDE), max_size=3)}
AVRO = {
    "type": "record",
    "name": "Row",
    "fields": [
        {"name": "id", "type": ["null", "int"]},
        {"name": "name", "type": ["null", "string"]},
        {"name": "price", "type": ["null", "double"]},
    ],
}
WIDE_AVRO = {
    "type": "record",
    "name": "Wide",
    "fields": [
        {"name": name, "type": ["null", kind]}
        for name, kind in (
            ("big", "long"),
            ("amount", {"type": "bytes", "logicalType": "decimal", "precision": 15, "scale": 3}),
            ("at", {"type": "long", "logicalType": "timestamp-micros"}),
            ("day", {"type": "int", "logicalType": "date"}),
            ("raw", "bytes"),
            ("ok", "boolean"),
            ("tags", {"type": "array", "items": "string"}),
            ("counts", {"type": "map", "values": "int"}),
            (
                "inner",
                {
                    "type": "record",
                    "name": "Inner",
                    "fields": [
                        {"name": "a", "type": ["null", "int"]},
                        {
                            "name": "b",
                            "type": [
                                "null",
                                {
                                    "type": "record",
                                    "name": "Innermost",
                                    "fields": [{"name": "c", "type": ["null", "string"]}],
                                },
                            ],
                        },
                    ],
                },
            ),
        )
    ],
}
HEADER = ("version", "vendor", "product", "product_version", "signature", "name", "severity")

Columns = dict[str, st.SearchStrategy[Any]]


def _with_its_text(row: dict[str, Any]) -> dict[str, Any]:
    """As the metric has it: with a sign, a gauge is a difference."""
    sign = row.pop("sign") if row["number"] >= 0 else ""
    return {"text": f"{sign}{row['number']}", **{name: row[name] for name in ("name", "kind", "number", "rate")}}


CASES: dict[str, tuple[dict[str, Any], str | None, Columns | st.SearchStrategy[Any]]] = {
    "json": ({}, DDL, ROW),
    "msgpack": ({}, DDL, ROW),
    "yaml": ({}, DDL, ROW),
    "csv": ({"delimiter": "|", "quote": "'", "null": "-"}, DDL, ROW),
    "string": ({}, None, {"text": TEXT}),
    "json-lines": ({}, DDL, ROWS),
    "arrow": ({"form": "file"}, DDL, ROWS),
    "parquet": ({}, DDL, ROWS),
    "avro": ({"avro_schema": json.dumps(AVRO)}, None, ROW),
    "logfmt": ({}, None, {"data": st.dictionaries(WORD, TEXT, max_size=3)}),
    "influx": (
        {"precision": "us"},
        None,
        {
            "measurement": LINE.filter(lambda text: text and text[0] != "#"),
            "tags": st.dictionaries(LINE.filter(bool), LINE.filter(bool), max_size=2),
            "fields": st.dictionaries(
                LINE.filter(bool), INTEGER | NUMBER | LINE | st.booleans(), min_size=1, max_size=2
            ).map(lambda fields: json.dumps(fields, ensure_ascii=False, separators=(",", ":"))),
            "time": st.none() | TIME,
        },
    ),
    "graphite": ({}, None, {"path": WORD, "number": NUMBER, "time": st.none() | TIME, "tags": MAP}),
    "statsd": (
        {},
        None,
        st.fixed_dictionaries(
            {
                "name": WORD,
                "kind": st.sampled_from(["c", "g", "ms", "h", "m"]),
                "number": NUMBER,
                "sign": st.sampled_from(["", "+"]),
                "rate": RATE,
            }
        ).map(_with_its_text)
        | st.fixed_dictionaries(
            {"name": WORD, "kind": st.just("s"), "number": st.none(), "text": PART, "rate": RATE},
        ),
    ),
    "dogstatsd": (
        {},
        None,
        st.fixed_dictionaries(
            {
                "kind": st.sampled_from(["c", "g", "ms", "h", "d", "m"]),
                "name": WORD,
                "numbers": st.lists(NUMBER, min_size=1, max_size=3),
                "text": st.none(),
                "rate": RATE,
                "tags": MAP,
                "attributes": st.sampled_from([{}, {"c": "x"}, {"T": "1656581400", "card": "low"}]),
            }
        )
        | st.fixed_dictionaries(
            {
                "kind": st.just("s"),
                "name": WORD,
                "numbers": st.none(),
                "text": PART,
                "rate": RATE,
                "tags": MAP,
                "attributes": st.just({}),
            }
        )
        | st.fixed_dictionaries(
            {
                "kind": st.just("event"),
                "name": LINES,
                "numbers": st.none(),
                "text": LINES,
                "rate": st.none(),
                "tags": MAP,
                "attributes": st.dictionaries(st.sampled_from("dhkpst"), PART, max_size=3),
            }
        )
        | st.fixed_dictionaries(
            {
                "kind": st.just("check"),
                "name": WORD,
                "numbers": st.none(),
                "text": st.sampled_from("0123"),
                "rate": st.none(),
                "tags": MAP,
                "attributes": st.dictionaries(st.sampled_from("dhm"), PART, max_size=3),
            }
        ),
    ),
    "gelf": (
        {},
        None,
        {
            "version": st.just("1.1"),
            "host": TEXT,
            "short_message": TEXT,
            "full_message": st.none() | TEXT,
            "time": st.none() | TIME,
            "level": st.none() | INTEGER,
            "extra": MAP,
        },
    ),
    "cef": (
        {},
        None,
        {
            "header": st.none(),
            **dict.fromkeys(HEADER, LINE),
            "version": st.just("1"),
            "extension": st.dictionaries(WORD, LINE, max_size=3),
        },
    ),
    "syslog": (
        {},
        None,
        {
            "facility": st.integers(0, 23),
            "severity": st.integers(0, 7),
            "time": TIME,
            "time_text": st.none(),
            **dict.fromkeys(("host", "app", "procid", "msgid"), st.none() | WORD),
            "structured": st.dictionaries(WORD, st.dictionaries(WORD, LINE, max_size=2), max_size=2),
            "message": LINE,
        },
    ),
}

PROTOBUF = {
    "id": st.integers(-(2**63), 2**63 - 1),
    "note": TEXT,
    "counts": st.lists(INTEGER, max_size=3),
    "prices": st.dictionaries(WORD, NUMBER, max_size=2),
    "state": st.sampled_from(["NEW", "PAID"]),
    "raw": st.binary(max_size=8),
    "ok": st.none() | st.booleans(),
    "parent": st.none() | st.fixed_dictionaries({"id": st.integers(-(2**63), 2**63 - 1)}),
    "at": st.none() | INSTANT,
}
PROTOBUF_DDL = (
    "id BIGINT, note STRING, counts ARRAY<INT>, prices MAP<STRING, DOUBLE>, state STRING, raw BINARY, ok BOOLEAN, "
    "parent STRUCT<id: BIGINT>, at TIMESTAMP"
)
"""Without what is absent and what has its default value: these are the same for Protocol Buffers."""

WIDE_CASES: dict[str, tuple[dict[str, Any], str | None, Columns | st.SearchStrategy[Any]]] = {
    "json": ({}, WIDE_DDL, IN_TEXTS),
    "msgpack": ({}, WIDE_DDL, WIDE),
    "yaml": ({}, WIDE_DDL, IN_TEXTS),
    "csv": (
        {"null": "-"},
        ", ".join(part for part in WIDE_DDL.split(", ") if part.split()[0] in FLAT),
        {name: IN_TEXTS[name] for name in FLAT},
    ),
    "json-lines": ({}, WIDE_DDL, {"rows": st.lists(st.fixed_dictionaries(IN_TEXTS), max_size=3)}),
    "arrow": ({}, WIDE_DDL, WIDE_ROWS),
    "parquet": ({}, WIDE_DDL, WIDE_ROWS),
    "avro": ({"avro_schema": json.dumps(WIDE_AVRO)}, None, WIDE),
    "protobuf": ({"message": "shop.Order"}, PROTOBUF_DDL, PROTOBUF),
}


@pytest.fixture(scope="module")
def descriptors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("protobuf") / "shop.desc"
    path.write_bytes(descriptor().SerializeToString())
    return path


def slices(data: st.DataObject, whole: Any, count: int) -> list[Any]:
    """Consecutive parts of a batch or an array, which share its buffers, some of them empty."""
    places = sorted(data.draw(st.lists(st.integers(0, count), max_size=3)))
    return [whole.slice(start, end - start) for start, end in pairwise([0, *places, count])]


FRAMES = make_chains([InterceptorSpec(type="length-prefixed")], [InterceptorSpec(type="length-prefixed")])


def carried(data: st.DataObject, values: Sequence[bytes]) -> list[bytes]:
    """Through a stream of bytes, in pieces."""
    sending, receiving = FRAMES.outgoing(), FRAMES.incoming()
    raw = b"".join(sending.feed([*values]) + sending.flush())
    pieces = cut(raw, data.draw(st.lists(st.integers(0, max(1, len(raw))), max_size=6)))
    return [record for piece in pieces for record in receiving.feed(piece)] + receiving.finish()


def check(name: str, config: dict[str, Any], ddl: str | None, rows: list[dict[str, Any]], data: st.DataObject) -> None:
    schema = None if ddl is None else parse_ddl(ddl)
    tested = codec(with_options(name, config))
    kinds = pa.schema([arrow_field(field) for field in tested.fields(schema)])
    batch = pa.RecordBatch.from_pylist(rows, schema=kinds)
    encode, decode = tested.encoder(kinds), tested.decoder(schema)
    values = [value for part in slices(data, batch, len(batch)) for value in encode(part).to_pylist()]
    received = carried(data, values)
    assert received == values
    again: list[dict[str, Any]] = []
    for part in slices(data, pa.array(received, pa.binary()), len(received)):
        found = decode(part)
        assert found.failed == {}
        again += pa.RecordBatch.from_arrays([*found.arrays], schema=kinds).to_pylist(maps_as_pydicts="strict")
    for row in again:
        if name == "syslog":
            row["time_text"] = None
    assert again == batch.to_pylist(maps_as_pydicts="strict")


def rows_of(columns: Columns | st.SearchStrategy[Any]) -> st.SearchStrategy[list[dict[str, Any]]]:
    return st.lists(st.fixed_dictionaries(columns) if isinstance(columns, dict) else columns, max_size=5)


@pytest.mark.parametrize("name", CASES)
@given(data=st.data())
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_rows_round_trip(name: str, data: st.DataObject) -> None:
    config, ddl, columns = CASES[name]
    check(name, config, ddl, data.draw(rows_of(columns)), data)


@pytest.mark.parametrize("name", WIDE_CASES)
@given(data=st.data())
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_rows_of_all_types_round_trip(name: str, descriptors: Path, data: st.DataObject) -> None:
    config, ddl, columns = WIDE_CASES[name]
    if name == "protobuf":
        config = {**config, "descriptor": str(descriptors)}
    check(name, config, ddl, data.draw(rows_of(columns)), data)


def test_every_codec_is_in_a_round_trip_or_writes_nothing_of_its_own() -> None:
    assert {*CODECS} - {*CASES, *WIDE_CASES} == {"binary", "grok", "null", "regex"}


# Formats of lines, with what they separate parts by inside of these parts.

ODD = (
    st.text(st.sampled_from('ab1 \t\n\r\\,;:|=@#!-_.[]{}"\x1c\u00a0\u2028\ufeffé'), max_size=5)
    | st.text(max_size=5)
    | st.sampled_from(["_e{1,1}:a", "_sc", "CEF:0|", "foo[1]: x", "b: x", " k=v", "a|@0.1", '1"][x y="', "\\n", "nan"])
    | st.integers(1, 300).map(lambda count: "x" * count)
)
ODD_MAP = st.dictionaries(ODD | WORD, ODD | WORD, max_size=2)
WORD_OR_ODD = WORD | ODD
ODD_NUMBER = st.floats(allow_nan=False) | NUMBER
ODD_TIME = (
    st.none()
    | TIME
    | st.datetimes(datetime(1900, 1, 1), timezones=st.just(UTC)).map(lambda at: at.replace(microsecond=0))
)
ODD_CASES: dict[str, tuple[dict[str, Any], Columns]] = {
    "graphite": ({}, {"path": WORD_OR_ODD, "number": ODD_NUMBER, "time": ODD_TIME, "tags": ODD_MAP}),
    "statsd": (
        {},
        {
            "name": WORD_OR_ODD,
            "kind": st.sampled_from(["c", "g", "s"]) | ODD,
            "number": st.none() | ODD_NUMBER,
            "text": st.none() | st.sampled_from(["1", "+2.5"]) | ODD,
            "rate": st.none() | ODD_NUMBER,
        },
    ),
    "dogstatsd": (
        {},
        {
            "kind": st.sampled_from(["c", "s", "event", "check"]) | ODD,
            "name": WORD_OR_ODD,
            "numbers": st.none() | st.lists(ODD_NUMBER, max_size=2),
            "text": st.none() | st.sampled_from("0123") | ODD,
            "rate": st.none() | ODD_NUMBER,
            "tags": ODD_MAP,
            "attributes": st.dictionaries(st.sampled_from(["T", "m", "c"]) | ODD, st.just("12") | ODD, max_size=2),
        },
    ),
    "influx": (
        {},
        {
            "measurement": WORD_OR_ODD,
            "tags": ODD_MAP,
            "fields": st.dictionaries(
                WORD_OR_ODD, st.integers(-(2**65), 2**65) | st.floats(allow_nan=False, allow_infinity=False) | ODD
            ).map(json.dumps),
            "time": ODD_TIME,
        },
    ),
    "logfmt": ({}, {"data": ODD_MAP}),
    "gelf": (
        {},
        {
            "version": st.just("1.1"),
            **dict.fromkeys(("host", "short_message", "full_message"), ODD),
            "time": ODD_TIME,
            "level": st.none() | INTEGER,
            "extra": ODD_MAP,
        },
    ),
    "cef": ({}, {"header": ODD, **dict.fromkeys(HEADER, ODD), "version": st.just("1") | ODD, "extension": ODD_MAP}),
    "syslog": (
        {},
        {
            "facility": st.integers(0, 23),
            "severity": st.integers(0, 7),
            "time": ODD_TIME,
            "time_text": st.none(),
            **dict.fromkeys(("host", "app", "procid", "msgid"), st.none() | WORD_OR_ODD),
            "structured": st.dictionaries(WORD_OR_ODD, ODD_MAP, max_size=2),
            "message": ODD,
        },
    ),
    "syslog of RFC 3164": (
        {"write": "3164"},
        {
            "facility": st.integers(0, 23),
            "severity": st.integers(0, 7),
            "time": st.none(),
            "time_text": st.sampled_from(["Jan  2 12:00:00", "Dec 31 00:00:00"]) | ODD,
            **dict.fromkeys(("host", "app", "procid"), st.none() | WORD_OR_ODD),
            "msgid": st.none() | WORD_OR_ODD,
            "structured": st.just({}) | st.dictionaries(WORD, MAP, max_size=1),
            "message": ODD,
        },
    ),
}


def meant(name: str, row: dict[str, Any]) -> dict[str, Any]:
    """With what the format has for nothing."""
    match name.split():
        case ["cef"]:
            extension = {key: value.rstrip(" ") for key, value in row["extension"].items()}
            return row | {"header": row["header"] or None, "version": row["version"] or "0", "extension": extension}
        case ["dogstatsd"]:
            text = row["text"] or ("" if row["kind"] == "event" else None)
            return row | {"text": text, "numbers": row["numbers"] or None}
        case ["syslog", *old]:
            names = {key: row[key] if row[key] not in ("", "-") else None for key in ("host", "app", "procid", "msgid")}
            if not old:
                return row | names | {"time_text": None}
            app, procid = names["app"], names["procid"]
            names["app"] = None if app and {*app} & {*":[]"} else app
            names["procid"] = None if procid and "]" in procid else procid
            return row | names | {"msgid": None, "structured": {}}
        case ["statsd"] if row["kind"] != "s":
            text = row["text"] or str(pa.array([row["number"]]).cast(pa.string())[0])
            return row | {"number": float(text), "text": text}
    return row


@pytest.mark.parametrize("name", ODD_CASES)
@given(data=st.data())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_row_with_delimiters_round_trips_or_is_refused(name: str, data: st.DataObject) -> None:
    config, columns = ODD_CASES[name]
    tested = codec(with_options(name.split()[0], config))
    kinds = pa.schema([arrow_field(field) for field in tested.fields(None)])
    row = data.draw(st.fixed_dictionaries(columns))
    batch = pa.RecordBatch.from_pylist([row], schema=kinds)
    try:
        written = tested.encoder(kinds)(batch)
    except RequestError:
        return
    found = tested.decoder(None)(written)
    assert found.failed == {}, written
    (again,) = pa.RecordBatch.from_arrays([*found.arrays], schema=kinds).to_pylist(maps_as_pydicts="strict")
    if name == "syslog":
        again["time_text"] = None
    if name == "influx":
        again["fields"], row["fields"] = json.loads(again["fields"]), json.loads(row["fields"])
    assert again == meant(name, row), written


FORGED = [
    ("dogstatsd", {"kind": "c", "name": "n", "numbers": [1.0], "tags": {"k": "a,b"}}, "'a,b'"),
    ("dogstatsd", {"kind": "c", "name": "n", "numbers": [1.0], "tags": {"k": "a|@0.1"}}, "0.1"),
    ("dogstatsd", {"kind": "c", "name": "a:b", "numbers": [1.0]}, "'a:b'"),
    ("dogstatsd", {"kind": "x", "name": "a", "numbers": [1.0]}, "'x'"),
    ("dogstatsd", {"kind": "c", "name": "a", "numbers": [1.0], "attributes": {"T": "now"}}, "T:now"),
    ("statsd", {"name": "a:b", "kind": "c", "number": 1.0}, "'a:b'"),
    ("statsd", {"name": "a", "kind": "counter", "number": 1.0}, "'counter'"),
    ("statsd", {"name": "a", "kind": "c", "number": 1.0, "text": "2"}, "'2'"),
    ("statsd", {"name": "a", "kind": "c", "number": float("inf")}, "'inf'"),
    ("statsd", {"name": "a", "kind": "c", "number": float("nan")}, "'nan'"),
    ("graphite", {"path": "a;b=c", "number": 1.0}, "a;b=c"),
    ("graphite", {"path": "a", "number": 1.0, "tags": {"x": "y;z=w"}}, "y;z=w"),
    ("syslog", {"facility": 1, "severity": 1, "structured": {"x": {'k="1"][evil x': "2"}}}, "evil"),
    ("syslog", {"facility": 1, "severity": 1, "structured": {"a b": {}}}, "a b"),
    ("syslog", {"facility": 1, "severity": 1, "host": "h" * 300}, "hhh"),
    ("cef", {"extension": {"b=c": "v"}}, "b=c"),
    ("cef", {"header": "CEF:0|x"}, "CEF:0|x"),
    ("statsd", {"name": "a", "kind": "g", "number": -5.0}, "'-5'"),
    ("statsd", {"name": "a", "kind": "c", "text": "1e999"}, "1e999"),
    ("statsd", {"name": "a", "kind": "s", "text": ""}, "without `text`"),
    ("statsd", {"name": "a", "kind": "c", "text": ""}, "without `number`"),
    ("dogstatsd", {"kind": "event", "name": "a", "text": "C:\\new"}, "new"),
    ("influx", {"measurement": "#a", "fields": '{"x": 1}'}, "#a"),
]


@pytest.mark.parametrize(("name", "row", "shown"), FORGED, ids=str)
def test_what_would_be_read_as_something_else_is_refused(name: str, row: dict[str, Any], shown: str) -> None:
    tested = codec(name)
    kinds = pa.schema([arrow_field(field) for field in tested.fields(None)])
    with pytest.raises(RequestError) as refused:
        tested.encoder(kinds)(pa.RecordBatch.from_pylist([row], schema=kinds))
    assert shown in str(refused.value)


SPECIAL = st.text(st.sampled_from("a\\^\"',|\t é\r\n"), max_size=8)
UNQUOTED = st.text(st.sampled_from("a\\^\"',| é"), max_size=8)


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({}, SPECIAL),
        ({"escape": "\\"}, SPECIAL),
        ({"escape": "^", "quote": "'", "delimiter": "|", "null": "a"}, SPECIAL),
        ({"quote": "", "delimiter": "\t", "null": "NULL"}, UNQUOTED),
        ({"quote": "", "escape": "\\", "delimiter": "|", "null": "NULL"}, UNQUOTED),
        ({"quote": "", "escape": "^", "null": "NULL"}, UNQUOTED),
    ],
    ids=str,
)
@given(data=st.data())
@settings(max_examples=200, deadline=None)
def test_any_text_round_trips_in_every_dialect_of_csv(
    config: dict[str, str], text: st.SearchStrategy[str], data: st.DataObject
) -> None:
    names = ["a", "b"][: data.draw(st.integers(1, 2))]
    rows = data.draw(st.lists(st.fixed_dictionaries(dict.fromkeys(names, st.none() | text)), max_size=4))
    tested, ddl = codec(with_options("csv", config)), parse_ddl(", ".join(f"{name} STRING" for name in names))
    batch = pa.RecordBatch.from_pylist(rows, schema=pa.schema([(name, pa.string()) for name in names]))
    found = tested.decoder(ddl)(tested.encoder(batch.schema)(batch))
    assert found.failed == {}
    assert pa.RecordBatch.from_arrays([*found.arrays], names).to_pylist() == rows
