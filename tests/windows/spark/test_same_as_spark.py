"""What readers compute is what Spark computes: expressions with their nulls and errors, and the hashes of keys."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterator
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from penstock.windows.evaluation import Column, Expression, Resolver, typed
from penstock.windows.expressions import NotCovered, parse
from penstock.windows.hashing import hashes_of
from penstock.windows.reading import can_be_hashed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

MAX, MIN = 2**63 - 1, -(2**63)
ZONE = dt.UTC
TABLE = pa.table(
    {
        "tiny": pa.array([1, -128, 127, 0, None, 3], pa.int8()),
        "small": pa.array([2, 0, 32767, -32768, 5, None], pa.int16()),
        "number": pa.array([7, None, 2**31 - 1, 0, -7, -(2**31)], pa.int32()),
        "big": pa.array([-3, MAX, None, MIN, 0, 2**53 + 1], pa.int64()),
        "real": pa.array([0.0, -0.0, math.nan, None, math.inf, 1.5]),
        "other": pa.array([-0.0, 2.0, math.nan, 0.0, None, -math.inf]),
        "text": pa.array(["a", "", None, "ä", "b", "a "]),
        "word": pa.array(["a", "b", "c", None, "", "a"]),
        "yes": pa.array([True, False, None, True, False, None]),
        "no": pa.array([False, None, None, True, True, False]),
        "day": pa.array([dt.date(2026, 1, 31), None, *[dt.date(1969, 12, 31)] * 4]),
        "at": pa.array(
            [None, *(dt.datetime(2026, 1, one, tzinfo=ZONE) for one in range(1, 6))], pa.timestamp("us", "UTC")
        ),
        "then": pa.array([dt.datetime(2026, 1, 3, tzinfo=ZONE)] * 6, pa.timestamp("us", "UTC")),
        "data": pa.array([{"x": 1, "y": {"z": "t"}}, None, {"x": None, "y": None}, *[{"x": 4, "y": {"z": None}}] * 3]),
    }
)

EXPRESSIONS = [
    *(
        f"{one} {sign} {other}"
        for one, other in (("real", "other"), ("big", "number"), ("real", "big"))
        for sign in ("=", "!=", "<", "<=", ">", ">=", "<=>")
    ),
    *(
        f"{one} {sign} {other}"
        for one, other in (
            ("tiny", "tiny"),
            ("small", "number"),
            ("number", "number"),
            ("big", "tiny"),
            ("real", "other"),
            ("number", "real"),
            ("big", "real"),
        )
        for sign in "+-*/%"
    ),
    *(
        "-tiny",
        "-number",
        "-big",
        "-real",
        "- -5 + tiny",
        "-2147483648 + number",
        "number * 2147483648",
        "big % -1",
        "number % -2",
    ),
    *(
        "text = word",
        "text < word",
        "text >= 'a'",
        "text in ('a', 'b')",
        "text not in ('a')",
        "text <=> word",
        "text between 'a' and 'b'",
    ),
    *(
        "yes and no",
        "yes or no",
        "not yes",
        "yes = no",
        "yes <=> no",
        "yes is null or no is not null",
        "not (yes and no) or yes",
    ),
    *("number != 0 and big / number > 1", "number = 0 or big % number = 1", "real is null or 1 / number > 0"),
    *(
        "real > 1",
        "real > 1.0",
        "real * 0.1 + 1",
        "2.5D < real",
        "number in (7, -7)",
        "small between tiny and number",
        "real = 0",
    ),
    *(
        "day = day",
        "at < then",
        "at <=> then",
        "day is null",
        "data.x + 1",
        "data.Y.z = 't'",
        "data is not null",
        "Number + NUMBER",
    ),
]


def columns() -> list[tuple[str, Expression]]:
    return [(field.name, Column(field.type, field.name)) for field in TABLE.schema]


def computed(text: str) -> tuple[pa.DataType, list[Any]]:
    """Row by row: a row that fails has the error."""
    expression = typed(parse(text), Resolver(columns(), case_sensitive=False))
    (batch,) = TABLE.to_batches()
    return expression.type, [_value(expression, batch.slice(row, 1)) for row in range(batch.num_rows)]


def _value(expression: Expression, row: pa.RecordBatch) -> Any:
    from pyspark.errors import ArithmeticException

    try:
        return expression.values(row)[0].as_py()
    except ArithmeticException as error:
        return error


def same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return (math.isnan(one) and math.isnan(other)) or (
            one == other and math.copysign(1, one) == math.copysign(1, other)
        )
    return type(one) is type(other) and one == other


def test_expressions_have_the_types_and_the_values_of_spark(spark: SparkSession) -> None:
    """Rows that fail are left out here."""
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.pandas.types import to_arrow_schema

    ours = {text: computed(text) for text in EXPRESSIONS}
    frame = spark.createDataFrame(TABLE.append_column("row", pa.array(range(TABLE.num_rows), pa.int32()))).coalesce(1)
    chosen = []
    for number, (text, (_, values)) in enumerate(ours.items()):
        failing = [row for row, value in enumerate(values) if isinstance(value, Exception)]
        chosen.append(F.when(~F.col("row").isin(failing), F.expr(text)).alias(f"e{number}"))
    result = frame.select(*chosen)
    types = to_arrow_schema(result.schema, timezone="UTC")
    rows = result.collect()
    for number, (text, (kind, values)) in enumerate(ours.items()):
        assert types.field(number).type == kind, text
        found = [None if isinstance(one, Exception) else one for one in values]
        assert all(same(row[number], value) for row, value in zip(rows, found, strict=True)), (
            text,
            found,
            [row[number] for row in rows],
        )


def failing() -> Iterator[tuple[str, int, str]]:
    """One row of each condition and type."""
    seen = set()
    for text in EXPRESSIONS:
        kind, values = computed(text)
        for row, value in enumerate(values):
            if isinstance(value, Exception) and (key := (str(value).partition("]")[0], kind)) not in seen:
                seen.add(key)
                yield text, row, str(value)


def test_rows_that_fail_also_fail_in_spark_with_the_same_condition(spark: SparkSession) -> None:
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as F  # noqa: N812

    found = [*failing()]
    conditions = {message.partition("]")[0] for _, _, message in found}
    assert conditions == {
        "[ARITHMETIC_OVERFLOW", "[BINARY_ARITHMETIC_OVERFLOW", "[DIVIDE_BY_ZERO", "[REMAINDER_BY_ZERO"
    }  # fmt: skip
    for text, row, message in found:
        with pytest.raises(PySparkException) as caught:
            spark.createDataFrame(TABLE.slice(row, 1)).select(F.expr(text)).collect()
        assert message.partition("]")[0] in str(caught.value), text


COERCED = [
    *(
        "number * 1.5",
        "number > 1.5",
        "1.5 + 2.5",
        "text + 1",
        "text > 1",
        "at > text",
        "day < at",
        "yes > no",
        "yes + 1",
    ),
    *("not number", "number and yes", "data = data", "nothing", "data.nothing", "text.x", "-text"),
]


@pytest.mark.parametrize("text", COERCED)
def test_types_that_spark_would_coerce_in_other_ways_are_left_to_it(text: str) -> None:
    with pytest.raises(NotCovered):
        typed(parse(text), Resolver(columns(), case_sensitive=False))


def test_a_name_in_another_case_is_another_column_if_the_session_is_case_sensitive() -> None:
    with pytest.raises(NotCovered, match="not a column"):
        typed(parse("NUMBER"), Resolver(columns(), case_sensitive=True))
    both = [*columns(), ("Number", Column(pa.int32(), "Number"))]
    with pytest.raises(NotCovered, match="several columns"):
        typed(parse("number"), Resolver(both, case_sensitive=False))


def test_keys_have_the_hashes_of_spark(spark: SparkSession) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    more = {
        "single": pa.array([0.0, -0.0, math.nan, None, 1.5, -1.5], pa.float32()),
        "bytes": pa.array([b"", b"abc", None, bytes(range(31)), bytes(range(64)), bytes(range(77))]),
        "price": pa.array([Decimal("1.25"), Decimal("-9999.99"), None, *[Decimal(0)] * 3], pa.decimal128(18, 2)),
        "local": pa.array([dt.datetime(2026, 1, 1)] * 5 + [None], pa.timestamp("us")),
    }
    table = TABLE.drop_columns(["data"])
    for name, column in more.items():
        table = table.append_column(name, column)
    assert all(map(can_be_hashed, table.schema.types))
    names = table.column_names
    frame = spark.createDataFrame(table).coalesce(1)
    rows = frame.select(*(F.xxhash64(name) for name in names), F.xxhash64(*names)).collect()
    arrays = [column.combine_chunks() for column in table.columns]
    found = [hashes_of([array], len(array)).tolist() for array in arrays]
    found.append(hashes_of(arrays, table.num_rows).tolist())
    for number, name in enumerate([*names, "all"]):
        assert [row[number] for row in rows] == found[number], name


def test_types_that_spark_hashes_in_another_way_are_left_to_it() -> None:
    assert not can_be_hashed(pa.decimal128(19, 2))
    assert not can_be_hashed(pa.list_(pa.int32()))
