"""JSON of a schema is decoded as Spark's `from_json` decodes it, with the differences that docs/codecs.md lists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from penstock.core.ddl import parse_ddl
from penstock.spark.codecs.columns import _replaced
from penstock.spark.codecs.registry import codec
from tests.spark.codecs.test_spark_agrees import plain

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

INTEGERS = ("tinyint", "smallint", "int", "bigint")
DECIMALS = ("decimal(10,2)", "decimal(38,10)")
NESTED = (
    "array<int>",
    "map<string,int>",
    "struct<a:int,b:string>",
    "array<struct<a:date>>",
    "map<string,array<double>>",
)
TYPES = (
    *("boolean", *INTEGERS, "float", "double", *DECIMALS, "string", "binary", "date", "timestamp", "timestamp_ntz"),
    *NESTED,
)
NUMBERS = (
    *("0", "-0", "1", "-1", "127", "128", "-128", "-129", "32767", "32768", "2147483647", "2147483648", "-2147483649"),
    *("9223372036854775807", "9223372036854775808", "123456789012345678901234567890.5", "1.0", "1.5", "-1.5", "1e3"),
    *("1E-3", "0.005", "12.345", "12.344999", "99999999.99", "99999999.995", "123456789", "1e400", "-1e400", "1e39"),
    *("3.4028235e38", "3.4028236e38", "1e-400", "NaN", "Infinity", "-Infinity", "1769000000", "1769000000.5"),
    "253402300800",
)
TEXTS = (
    *('""', '"x"', '"grün"', '"1"', '"1.5"', '"-5"', '"+7"', '" 1 "', '"1_0"', '"1,000"', '"1,000.5"', '"1e3"', '"1d"'),
    *('"true"', '"True"', '"NaN"', '"Infinity"', '"-Infinity"', '"+Infinity"', '"INF"', '"-INF"', '"+INF"', '"inf"'),
    *('"AP8="', '"AP8"', '"not base64!"', '"soon"', '"now"', '"epoch"', '"a\\tb"', '"\\u0041"', '"\\ud800"'),
)
TIMES = (
    *('"2026-01-02"', '"2026-1-2"', '"2026-02-30"', '"2026"', '"2026-01"', '"2026-01-02x"', '" 2026-01-02 "'),
    *('"2026-01-02T03:04:05Z"', '"2026-01-02 03:04:05.5"', '"2026-01-02T03:04:05.123456789+02:00"'),
    *('"2026-01-02T03:04:05+0200"', '"2026-01-02T03:04:05+02"', '"2026-01-02T3:4:5"', '"2026-01-02T03:04"'),
    *('"2026-01-02T03"', '"2026-01-02T24:00:00"', '"2026-01-02T03:04:60"', '"03:04:05"', '"T03:04:05"'),
    *('"2026-01-02T03:04:05 Europe/Berlin"', '"2026-01-02T03:04:05 UTC"', '"0000-01-01"'),
    *('"9999-12-31T23:59:59.999999Z"', '"12026-01-02"', '"-2026-01-02"'),
)
STRUCTURES = (
    *("[]", "[1]", "[1,null]", '[1,"2"]', "[1.5]", '["a"]', "[[1]]", "{}", '{"a":1}', '{"a":null}', '{"a":1,"b":"x"}'),
    *('{"a":"1"}', '{"b":5}', '{"b":{"c":[1, 2]}}', '{"A":1}', '{"a":1,"a":2}', '{"a":{"a":1}}', '{"k":null}'),
    *('[{"a":"2026-01-02"},{}]', '{"k":[1,2.5,"NaN"]}', "null", "true", "false"),
)
VALUES = (*NUMBERS, *TEXTS, *TIMES, *STRUCTURES)
BROKEN = (
    *("", "  ", "null", "[]", '[{"x":1}]', "1", '"x"', "{", "{}", '{"X":1}', '{"x":1,"x":2}', '{"x":1}\n', ' {"x":1} '),
    *("{x:1}", '{"x":1,}', '{"x":01}', '{"x":+1}', '{"x":.5}', '{"x":1.}', '{"x":0x10}', '/* c */{"x":1}', '{"x":tru}'),
    *('{"x":"a\tb"}', '{"x":"\\x41"}', '{"y":[,"x":1}', '\ufeff{"x":1}', '{"x.y":1}', '{"x":1,"z":{"x":2}}'),
)
"""Documents that are not JSON, or not an object, or with other fields."""

# What only Spark accepts, because it guesses.

ALMOST_JSON = ("{'x':1}", '{"y":NaN,"x":1}', '{"x":1} x', '{"x":1}{"x":2}')
NOT_NUMBERS = ("NaN", "Infinity", "-Infinity")
WITH_A_TIME = [
    *(one for one in TIMES if one.startswith('"2026-01-02') and ("T" in one or ":" in one)),
    '"9999-12-31T23:59:59.999999Z"',
]
YEARS = ('"2026"', '"2026-01"', '"12026-01-02"', '"-2026-01-02"')
GUESSED: dict[str, Sequence[str]] = {
    "tinyint": ["128"],
    "float": ["1e400", "-1e400", "1e39", "3.4028236e38", *NOT_NUMBERS],
    "double": ["1e400", "-1e400", *NOT_NUMBERS],
    **{kind: ['"1,000"', '"1,000.5"'] for kind in DECIMALS},
    "string": [*NOT_NUMBERS, '"\\ud800"'],
    "date": ['"1"', '"-5"', '"+7"', *WITH_A_TIME, *YEARS],
    "timestamp": [
        *("9223372036854775807", "253402300800", '"03:04:05"', '"T03:04:05"', *YEARS),
        *('"2026-01-02T03:04:05 Europe/Berlin"', '"2026-01-02T03:04:05 UTC"'),
    ],
    "timestamp_ntz": YEARS,
}
TAKES_ONE = (*INTEGERS, "float", "double", *DECIMALS, "string", "timestamp")
"""Types that the number 1 fits."""

SIGNLESS = {"float": ['"INF"'], "double": ['"INF"']}
"""What only Penstock accepts: Spark takes INF with a sign."""

REWRITTEN = {
    "string": [
        *(
            "-0",
            "1e3",
            "1E-3",
            "99999999.99",
            "99999999.995",
            "1e400",
            "-1e400",
            "1e39",
            "3.4028235e38",
            "3.4028236e38",
        ),
        *("1e-400", "1769000000.5", "123456789012345678901234567890.5", '{"b":{"c":[1, 2]}}'),
    ],
    "struct<a:int,b:string>": ['{"b":{"c":[1, 2]}}'],
}
"""Values that a STRING takes: Spark writes them anew, here they are the text that was written."""


def document(value: str) -> str:
    return f'{{"x": {value}}}'


GUESSES = {(kind, document(value)) for kind, values in GUESSED.items() for value in values}
GUESSES |= {(kind, one) for kind in TAKES_ONE for one in ALMOST_JSON}
OURS_ALONE = {(kind, document(value)) for kind, values in SIGNLESS.items() for value in values}
OTHER_TEXTS = {(kind, document(value)) for kind, values in REWRITTEN.items() for value in values}
FAILED = "failed"

_AS_NUMBERS = {pa.date32(): pa.int32(), pa.timestamp("us", "UTC"): pa.int64(), pa.timestamp("us"): pa.int64()}
"""Python has no dates before the year 1, and Spark has."""


def values_of(array: pa.Array) -> list[Any]:
    return [plain(one) for one in array.cast(_replaced(array.type, _AS_NUMBERS)).to_pylist()]


def read_by_spark(spark: SparkSession, documents: Sequence[str], schemas: Sequence[str]) -> list[list[Any]]:
    """For each schema what becomes of each document: a list of values, or FAILED."""
    from pyspark.sql import functions

    options = {"columnNameOfCorruptRecord": "__bad"}
    frame = spark.createDataFrame([*enumerate(documents)], "number int, text string")
    read = [
        functions.from_json("text", f"{schema}, __bad string", options).alias(str(n))
        for n, schema in enumerate(schemas)
    ]
    table = frame.select("number", *read).toArrow().sort_by("number")
    found = []
    for number, schema in enumerate(schemas):
        rows = table.column(str(number)).combine_chunks()
        columns = [values_of(rows.field(field.name)) for field in parse_ddl(schema)]
        is_good = [row is not None and row["__bad"] is None for row in _marks(rows)]
        found.append([[*each] if good else FAILED for good, *each in zip(is_good, *columns, strict=True)])
    return found


def _marks(rows: pa.StructArray) -> list[Any]:
    marks = rows.field("__bad").to_pylist()
    return [{"__bad": mark} if valid else None for mark, valid in zip(marks, rows.is_valid().to_pylist(), strict=True)]


def read_by_codec(documents: Sequence[str], schema: str) -> list[Any]:
    found = codec("json").decoder(parse_ddl(schema))(pa.array([one.encode() for one in documents], pa.binary()))
    good = zip(*(values_of(array) for array in found.arrays), strict=True)
    return [FAILED if number in found.failed else [*next(good)] for number in range(len(documents))]


def test_every_value_fits_the_same_types_as_in_spark_with_the_documented_differences(spark: SparkSession) -> None:
    documents = [*map(document, VALUES), *BROKEN, *ALMOST_JSON]
    theirs = read_by_spark(spark, documents, [f"x {kind}" for kind in TYPES])
    guesses, ours_alone, others = (set[tuple[str, str]]() for _ in range(3))
    for kind, expected in zip(TYPES, theirs, strict=True):
        for text, spark_has, has in zip(documents, expected, read_by_codec(documents, f"x {kind}"), strict=True):
            if has == spark_has:
                continue
            found = guesses if has == FAILED else ours_alone if spark_has == FAILED else others
            found.add((kind, text))
    assert guesses == GUESSES
    assert ours_alone == OURS_ALONE
    assert others == OTHER_TEXTS


FIELDS = {f"f{number}": kind for number, kind in enumerate(TYPES)}
SCHEMA = ", ".join(f"{name} {kind}" for name, kind in FIELDS.items())
DIFFERENT = GUESSES | OURS_ALONE | OTHER_TEXTS


def values_for(kind: str) -> list[str]:
    return [value for value in VALUES if (kind, document(value)) not in DIFFERENT and value not in NOT_NUMBERS]


def fitting(kind: str) -> list[str]:
    agreed = values_for(kind)
    read = read_by_codec([*map(document, agreed)], f"x {kind}")
    return [value for value, has in zip(agreed, read, strict=True) if has != FAILED]


MEMBERS = {name: st.sampled_from(fitting(kind)) for name, kind in FIELDS.items()}
ANY_MEMBERS = {name: st.sampled_from(values_for(kind)) for name, kind in FIELDS.items()}


@st.composite
def documents(draw: st.DrawFn) -> str:
    """Some fields in any order; now and then one whose value does not fit."""
    names = draw(st.lists(st.sampled_from([*FIELDS]), unique=True))
    odd = draw(st.sampled_from([None, None, *FIELDS]))
    members = [f'"{name}": {draw((ANY_MEMBERS if name == odd else MEMBERS)[name])}' for name in names]
    return "{" + ", ".join(members) + "}"


@settings(max_examples=2, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(st.lists(documents(), min_size=100, max_size=200))
def test_documents_of_many_fields_are_read_as_spark_reads_them(spark: SparkSession, given_documents: list[str]) -> None:
    (expected,) = read_by_spark(spark, given_documents, [SCHEMA])
    mine = read_by_codec(given_documents, SCHEMA)
    assert [(d, e, m) for d, e, m in zip(given_documents, expected, mine, strict=True) if e != m] == []
