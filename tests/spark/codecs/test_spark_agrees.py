"""Codecs decode and encode like Spark's own functions, except where Spark guesses."""

from __future__ import annotations

import json
import math
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from penstock.core.ddl import parse_ddl
from penstock.spark.codecs.registry import codec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def plain(value: Any) -> Any:
    """Comparable: NaN is equal to itself, and a map is a dict."""
    match value:
        case float():
            return "NaN" if math.isnan(value) else value
        case list() if value and all(isinstance(one, tuple) for one in value):
            return {key: plain(one) for key, one in value}
        case list():
            return [plain(one) for one in value]
        case dict():
            return {key: plain(one) for key, one in value.items()}
        case bytearray():
            return bytes(value)
        case datetime():
            return value.replace(tzinfo=None)
    return value


CSV_SCHEMA = "i int, d double, b boolean, s string, p decimal(10,2), t timestamp, day date"
FIELD = st.sampled_from(
    (
        *("", "1", "-5", "+7", "007", "2147483648", "1.5", "1e3", "NaN", "true", "FALSE", "x", "grün", '""', '"a,b"'),
        *('"q""q"', "12.345", "123456789", "2026-01-02", "2026-1-2", "2026-01-02T03:04:05Z", "soon", " x "),
    )
)
FITTING_CSV = (
    st.sampled_from(("", "1", "+7", "x")),
    st.sampled_from(("", "1", "1.5", "1e3", "NaN", "x")),
    st.sampled_from(("", "true", "FALSE", "1")),
    FIELD,
    st.sampled_from(("", "1", "12.345", "123456789")),
    st.sampled_from(("", "2026-01-02T03:04:05Z", "2026-01-02 03:04:05.5", "2026-01-02", "soon")),
    st.sampled_from(("", "2026-01-02", "2026-1-2", "2026-02-30")),
)
RECORD = st.tuples(*FITTING_CSV).map(",".join) | st.lists(FIELD, min_size=6, max_size=8).map(",".join)


@settings(max_examples=2, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(st.lists(RECORD, min_size=200, max_size=400))
def test_csv_of_a_schema_is_read_as_spark_reads_it(spark: SparkSession, records: list[str]) -> None:
    from pyspark.sql import functions

    options = {"escape": '"', "quote": '"', "columnNameOfCorruptRecord": "__bad", "nullValue": "never"}
    frame = spark.createDataFrame([(one,) for one in records], "text string")
    read = functions.from_csv("text", f"{CSV_SCHEMA}, __bad string", options).alias("row")
    rows = [row["row"].asDict(recursive=True) for row in frame.select(read).collect()]
    expected = [None if row.pop("__bad") is not None else plain(row) for row in rows]
    found = codec("csv").decoder(parse_ddl(CSV_SCHEMA))(pa.array([one.encode() for one in records], pa.binary()))
    names = [field.name for field in parse_ddl(CSV_SCHEMA)]
    good = iter(pa.RecordBatch.from_arrays(list(found.arrays), names).to_pylist())
    mine = [None if number in found.failed else plain(next(good)) for number in range(len(records))]
    assert [(r, e, m) for r, e, m in zip(records, expected, mine, strict=True) if e != m] == []


ROWS = """
    SELECT * FROM VALUES
        (1, 'a, "b"\\n', 1.0D, float(1.5), 12.50BD, timestamp'2026-01-02 03:04:05.678901', date'2026-01-02', X'00FF',
         array(1, null), map('k', 1.5D, 'j', null), struct(1 AS a, array(date'2026-01-02') AS b), true),
        (-1, '', 1e300D, float('-Infinity'), -0.01BD, timestamp'1960-01-01 00:00:00.0009', date'1960-01-01', X'',
         array(), map(), struct(null AS a, null AS b), false),
        (null, null, double('NaN'), null, null, null, null, null, null, null, null, null)
    AS t(i, s, d, f, p, at, day, raw, l, m, o, b)
"""


def test_rows_are_encoded_as_spark_encodes_them(spark: SparkSession) -> None:
    from pyspark.sql import functions

    frame = spark.sql(ROWS)
    whole = functions.to_json(functions.struct("*"), {"ignoreNullFields": "false"})
    table = frame.toArrow().combine_chunks().to_batches()[0]
    mine = codec("json").encoder(table.schema)(table).to_pylist()
    for expected, found in zip((row[0] for row in frame.select(whole).collect()), mine, strict=True):
        assert json.loads(found, parse_float=Decimal) == json.loads(expected, parse_float=Decimal)
        assert [*json.loads(found)] == [*json.loads(expected)], "in the same order"
    flat = frame.select("i", "s", "p", "at", "day", "b")
    options = {"escape": '"', "ignoreLeadingWhiteSpace": "false", "ignoreTrailingWhiteSpace": "false"}
    csv = functions.to_csv(functions.struct("*"), options)
    table = flat.toArrow().combine_chunks().to_batches()[0]
    assert codec("csv").encoder(table.schema)(table).to_pylist() == [
        row[0].encode() for row in flat.select(csv).collect()
    ]


def test_spark_can_parse_every_document_accepted_as_a_variant(spark: SparkSession) -> None:
    """Otherwise `parse_json` would fail the query."""
    odd = [
        "1e400",
        "9" * 1000,
        "-0",
        "[" * 500 + "]" * 500,
        '"' + "x" * 70_000 + '"',
        '{"a":{"a":1},"b":1}',
        " 1 ",
        "1E-400",
    ]
    odd += ['{"' + "n" * 50_000 + '": 1}', '"\\u0000"', '{"": {"": null}}', "123456789012345678901234567890123456789"]
    found = codec("json").decoder(None)(pa.array([one.encode() for one in odd], pa.binary()))
    assert found.failed == {}
    frame = spark.createDataFrame([(text,) for text in found.arrays[0].to_pylist()], "text string")
    assert frame.selectExpr("parse_json(text) IS NOT NULL").collect() == [(True,)] * len(odd)
