"""Any row of a codec's columns is written and read back the same."""

import json
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.core.ddl import parse_ddl
from penstock.core.kinds import arrow_field
from penstock.spark.codecs.codec import CODECS, with_options
from penstock.spark.codecs.registry import codec

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)
"""Without NUL, which YAML cannot have."""
WORD = st.from_regex(r"[a-z]{1,5}", fullmatch=True)
LINE = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), max_size=8)
TIME = st.integers(0, 4_000_000_000).map(lambda seconds: datetime.fromtimestamp(seconds, UTC))
NUMBER = st.integers(-(10**6), 10**6).map(lambda number: number / 4)
INTEGER = st.integers(-(2**31), 2**31 - 1)
MAP = st.dictionaries(WORD, WORD, max_size=3)
ROW = {"id": st.none() | INTEGER, "name": st.none() | TEXT, "price": st.none() | NUMBER}
DDL = "id INT, name STRING, price DOUBLE"
ROWS = {"rows": st.lists(st.fixed_dictionaries(ROW), max_size=4)}
AVRO = {
    "type": "record",
    "name": "Row",
    "fields": [
        {"name": "id", "type": ["null", "int"]},
        {"name": "name", "type": ["null", "string"]},
        {"name": "price", "type": ["null", "double"]},
    ],
}
HEADER = ("version", "vendor", "product", "product_version", "signature", "name", "severity")

CASES: dict[str, tuple[dict[str, Any], str | None, dict[str, st.SearchStrategy[Any]]]] = {
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
        {
            "name": WORD,
            "kind": st.just("g"),
            "number": st.just(2.0),
            "text": st.just("2"),
            "rate": st.none() | st.just(0.25),
        },
    ),
    "dogstatsd": (
        {},
        None,
        {
            "kind": st.sampled_from(["c", "d"]),
            "name": WORD,
            "numbers": st.lists(NUMBER, min_size=1, max_size=3),
            "text": st.none(),
            "rate": st.none() | st.just(0.25),
            "tags": MAP,
            "attributes": st.sampled_from([{}, {"c": "x"}, {"T": "1656581400", "card": "low"}]),
        },
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


@pytest.mark.parametrize("name", CASES)
@given(data=st.data())
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_rows_round_trip(name: str, data: st.DataObject) -> None:
    config, ddl, columns = CASES[name]
    rows = data.draw(st.lists(st.fixed_dictionaries(columns), max_size=4))
    schema = None if ddl is None else parse_ddl(ddl)
    tested = codec(with_options(name, config))
    kinds = pa.schema([arrow_field(field) for field in tested.fields(schema)])
    batch = pa.RecordBatch.from_pylist(rows, schema=kinds)
    values = tested.encoder(kinds)(batch)
    found = tested.decoder(schema)(values)
    assert found.failed == {}
    again = pa.RecordBatch.from_arrays([*found.arrays], schema=kinds).to_pylist(maps_as_pydicts="strict")
    for row in again:
        if name == "syslog":
            row["time_text"] = None
    assert again == batch.to_pylist(maps_as_pydicts="strict")


def test_every_codec_is_in_a_round_trip_or_writes_nothing_of_its_own() -> None:
    """Protocol Buffers are in `test_more_conformance`."""
    assert {*CODECS} - {*CASES} == {"binary", "grok", "null", "protobuf", "regex"}


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
