"""Keys of all plain types."""

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from penstock.core.errors import RequestError
from penstock.windows.aggregates import Count
from penstock.windows.engine import Plan
from penstock.windows.engine.plan import codes_of, combined, grouped
from penstock.windows.kinds import Session, Tumbling
from tests.windows.engine.driving import Driver

NAN = float("nan")
SAMPLES: list[tuple[pa.DataType, list[Any]]] = [
    (pa.bool_(), [True, False, None]),
    (pa.int8(), [-128, 127, None]),
    (pa.int16(), [-(2**15), 5, None]),
    (pa.int32(), [-(2**31), 2**31 - 1, None]),
    (pa.int64(), [-(2**63), 2**63 - 1, 0, None]),
    (pa.float32(), [0.5, float("inf"), float("-inf"), None]),
    (pa.float64(), [0.1, -1e300, 0.0, None]),
    (pa.string(), ["", "a", "ü", "a\0", None]),
    (pa.large_string(), ["", "a", None]),
    (pa.binary(), [b"", b"\0", b"\0\0", None]),
    (pa.decimal128(38, 10), [Decimal("0.1000000000"), Decimal("-" + "9" * 20 + ".0000000001"), Decimal("0E-10"), None]),
    (pa.date32(), [date(1969, 12, 31), date(9999, 12, 31), None]),
    (pa.timestamp("us", "UTC"), [datetime(1969, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC), None]),
    (pa.timestamp("us"), [datetime(1969, 1, 1), datetime(2026, 1, 1), None]),
    (pa.time64("us"), [time(1, 2, 3), time(0), None]),
    (pa.duration("us"), [timedelta(seconds=1), timedelta(days=-1), None]),
]


def driver(*kinds: pa.DataType, session: bool = False) -> Driver:
    names = [f"key{number}" for number in range(len(kinds))]
    window = Session(gap_us=10) if session else Tumbling(size_us=10)
    schema = pa.schema(list(zip(names, kinds, strict=True)))
    return Driver(Plan(window=window, keys=tuple(names), aggregates={"n": Count()}, schema=schema, buckets=2))


def counts(driver: Driver, rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """The counts of rows that come in two batches, half of them in each."""
    dicts = [{"t": 1} | {f"key{number}": key for number, key in enumerate(row)} for row in rows]
    driver.batch([dicts[::2]], None)
    panes, _ = driver.batch([[each] for each in dicts[1::2]], 100)
    width = len(rows[0])
    return [(*(pane[f"key{number}"] for number in range(width)), pane["n"]) for pane in panes]


@pytest.mark.parametrize("session", [False, True])
@pytest.mark.parametrize(("kind", "values"), SAMPLES, ids=[str(kind) for kind, _ in SAMPLES])
def test_every_plain_type_and_null_can_be_a_key(kind: pa.DataType, values: list[Any], *, session: bool) -> None:
    found = counts(driver(kind, session=session), [(value,) for value in values for _ in range(3)])
    assert sorted(found, key=repr) == sorted(((value, 3) for value in values), key=repr)


def test_all_nans_are_one_key_and_so_are_both_zeros() -> None:
    negative = -NAN
    found = counts(driver(pa.float64()), [(NAN,), (negative,), (NAN,), (0.0,), (-0.0,), (-0.0,)])
    assert sorted(map(repr, found)) == sorted(["(nan, 3)", "(0.0, 3)"])


def test_several_columns_are_one_key() -> None:
    rows = [("a", 1), ("a", 2), ("b", 1), ("a", 1), (None, 1), ("a", None), (None, None), (None, None)]
    found = counts(driver(pa.string(), pa.int64()), rows)
    assert sorted(found, key=repr) == sorted({(*row, rows.count(row)) for row in rows}, key=repr)


def test_many_key_columns_of_many_values_do_not_overflow() -> None:
    many = pa.array(range(0, 3000 * 2**40, 2**40))
    codes = codes_of([many] * 8, 3000)
    assert grouped(codes).count == 3000
    assert grouped(combined(codes, codes)).count == 3000


def test_without_keys_all_events_are_one_group() -> None:
    windows = driver()
    windows.batch([[{"t": 1}], [{"t": 2}]], None)
    panes, _ = windows.batch([[{"t": 3}]], 10)
    assert [pane["n"] for pane in panes] == [3]


def test_a_nested_column_cannot_be_a_key() -> None:
    with pytest.raises(RequestError, match="cannot be a key"):
        driver(pa.list_(pa.int64()))
