"""Each aggregate against plain Python, however its rows are split."""

import random
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal
from math import isnan
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import LimitExceeded, RequestError
from penstock.windows.aggregates import Aggregate, ApproxDistinct, Avg, Collect, Count, First, Last, Max, Min, Sum

Rows = Sequence[tuple[int, tuple[Any, ...]]]
"""The group of each row, and the values of its columns."""

BIG = 2**63 - 1


def computed(aggregate: Aggregate, kinds: Sequence[pa.DataType], rows: Rows, seed: int = 0) -> dict[int, Any]:
    """The result of each group. Rows are split into parts, each is added, and partials are merged in two rounds."""
    rng = random.Random(seed)
    parts: list[list[tuple[int, tuple[Any, ...]]]] = [[] for _ in range(rng.randint(1, 4))]
    for row in rng.sample(list(rows), len(rows)):
        rng.choice(parts).append(row)
    pieces = [_added(aggregate, kinds, part) for part in parts if part]
    while len(pieces) > 1:
        some, pieces = pieces[:2], pieces[2:]
        labels = [label for names, _ in some for label in names]
        names = sorted(set(labels), key=lambda _: rng.random())
        groups = np.array([names.index(label) for label in labels], np.int64)
        partials = pa.concat_arrays([partial for _, partial in some])
        pieces.append((names, aggregate.merge(partials, groups, len(names))))
    names, partials = pieces[0]
    results = aggregate.result(partials)
    assert results.type == aggregate.result_type(kinds)
    assert partials.type == aggregate.partial_type(kinds)
    return dict(zip(names, results.to_pylist(), strict=True))


def _added(aggregate: Aggregate, kinds: Sequence[pa.DataType], rows: Rows) -> tuple[list[int], pa.Array]:
    names = sorted({label for label, _ in rows})
    groups = np.array([names.index(label) for label, _ in rows], np.int64)
    columns = [
        # A slice of a longer array, as in a batch.
        pa.array([None, *(values[number] for _, values in rows), None], kind).slice(1, len(rows))
        for number, kind in enumerate(kinds)
    ]
    return names, aggregate.add(columns, groups, len(names))


def by_group(rows: Rows, function: Callable[[list[Any]], Any], *, nulls: bool = False) -> dict[int, Any]:
    """The function of each group's values in the first column, without nulls unless `nulls` is set."""
    groups: dict[int, list[Any]] = {}
    for label, (value, *_) in rows:
        groups.setdefault(label, []).extend([value] if nulls or value is not None else [])
    return {label: function(values) for label, values in groups.items()}


def rows_of(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[tuple[int, tuple[Any, ...]]]]:
    return st.lists(st.tuples(st.integers(0, 4), st.tuples(st.none() | values)), min_size=1, max_size=40)


SMALL = st.integers(-(2**40), 2**40)
FLOATS = st.integers(-(2**20), 2**20).map(lambda number: number / 8)
DECIMALS = st.integers(-(10**12), 10**12).map(lambda number: Decimal(number).scaleb(-3))


@given(rows_of(SMALL), st.integers(0, 9))
def test_count_counts_rows_or_the_values_of_a_column(rows: Rows, seed: int) -> None:
    assert computed(Count(), [], rows, seed) == by_group(rows, len, nulls=True)
    assert computed(Count(("v",)), [pa.int64()], rows, seed) == by_group(rows, len)


@given(rows_of(SMALL), st.integers(0, 9))
def test_sums_of_integers_are_exact(rows: Rows, seed: int) -> None:
    assert computed(Sum(("v",)), [pa.int64()], rows, seed) == by_group(rows, _sum)


@given(rows_of(st.integers(-(2**15), 2**15 - 1)), st.integers(0, 9))
def test_sums_of_short_integers_have_64_bits(rows: Rows, seed: int) -> None:
    assert computed(Sum(("v",)), [pa.int16()], rows, seed) == by_group(rows, _sum)


@given(rows_of(FLOATS), st.integers(0, 9))
def test_sums_of_doubles_are_those_of_python(rows: Rows, seed: int) -> None:
    assert computed(Sum(("v",)), [pa.float64()], rows, seed) == by_group(rows, _sum)


@given(rows_of(DECIMALS), st.integers(0, 9))
def test_sums_of_decimals_are_exact(rows: Rows, seed: int) -> None:
    assert computed(Sum(("v",)), [pa.decimal128(20, 3)], rows, seed) == by_group(rows, _sum)


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=6))
def test_a_sum_of_integers_is_right_or_an_error_and_never_wraps(values: list[int]) -> None:
    rows = [(0, (value,)) for value in values]
    groups = np.zeros(len(values), np.int64)
    if -(2**63) <= sum(values) < 2**63:
        assert Sum(("v",)).add([pa.array(values, pa.int64())], groups, 1).to_pylist() == [sum(values)]
    else:
        with pytest.raises(LimitExceeded, match="64 bits") as raised:
            computed(Sum(("v",)), [pa.int64()], rows)
        assert raised.value.hint


def test_sums_that_overflow_when_partials_are_merged_are_an_error() -> None:
    partials, groups = pa.array([BIG, None, 1]), np.zeros(3, np.int64)
    with pytest.raises(LimitExceeded):
        Sum(("v",)).merge(partials, groups, 1)
    assert Sum(("v",)).merge(partials, np.array([0, 0, 1]), 2).to_pylist() == [BIG, 1]


@given(st.lists(st.integers(-(10**38) + 1, 10**38 - 1), min_size=1, max_size=5))
def test_a_sum_of_decimals_is_right_or_an_error(values: list[int]) -> None:
    column = pa.array([Decimal(value) for value in values], pa.decimal128(38, 0))
    groups = np.zeros(len(values), np.int64)
    if abs(sum(values)) < 10**38:
        assert Sum(("v",)).add([column], groups, 1).to_pylist() == [Decimal(sum(values))]
    else:
        with pytest.raises(LimitExceeded):
            Sum(("v",)).add([column], groups, 1)


@pytest.mark.parametrize("kind", [pa.string(), pa.bool_(), pa.timestamp("us")])
def test_only_numbers_can_be_summed(kind: pa.DataType) -> None:
    for aggregate in (Sum(("v",)), Avg(("v",))):
        with pytest.raises(RequestError, match="cannot be summed"):
            aggregate.result_type([kind])


@given(rows_of(SMALL | st.just(0)), st.integers(0, 9))
def test_averages_of_integers_are_doubles(rows: Rows, seed: int) -> None:
    expected = by_group(rows, lambda values: float(sum(values)) / len(values) if values else None)
    assert computed(Avg(("v",)), [pa.int64()], rows, seed) == expected


def test_averages_of_large_integers_do_not_overflow() -> None:
    assert computed(Avg(("v",)), [pa.int64()], [(0, (BIG,)), (0, (BIG,)), (0, (BIG,))]) == {0: float(BIG)}


@given(rows_of(DECIMALS), st.integers(0, 9))
def test_averages_of_decimals_are_decimals_with_four_more_digits(rows: Rows, seed: int) -> None:
    digits = Decimal("1E-7")
    expected = by_group(rows, lambda v: (sum(v) / len(v)).quantize(digits, ROUND_HALF_UP) if v else None)
    assert computed(Avg(("v",)), [pa.decimal128(20, 3)], rows, seed) == expected


ORDERED: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int8(), st.integers(-128, 127)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.float64(), st.floats(allow_nan=False)),
    (pa.float32(), st.floats(width=32, allow_nan=False)),
    (pa.bool_(), st.booleans()),
    (pa.string(), st.text(st.characters(codec="ascii"), max_size=3)),
    (pa.binary(), st.binary(max_size=3)),
    (pa.decimal128(20, 3), DECIMALS),
    (pa.date32(), st.dates()),
    (pa.timestamp("us", "UTC"), st.datetimes(timezones=st.just(UTC))),
    (pa.duration("us"), st.timedeltas(timedelta(-999), timedelta(999))),
]


@pytest.mark.parametrize(("kind", "values"), ORDERED, ids=[str(kind) for kind, _ in ORDERED])
def test_min_and_max_of_every_type_that_has_an_order(kind: pa.DataType, values: st.SearchStrategy[Any]) -> None:
    @given(rows_of(values), st.integers(0, 9))
    def holds(rows: Rows, seed: int) -> None:
        assert computed(Min(("v",)), [kind], rows, seed) == by_group(rows, lambda some: min(some, default=None))
        assert computed(Max(("v",)), [kind], rows, seed) == by_group(rows, lambda some: max(some, default=None))

    holds()


def test_nan_is_above_all_numbers() -> None:
    rows = [(0, (1.0,)), (0, (float("nan"),)), (0, (float("inf"),)), (1, (float("nan"),)), (2, (None,))]
    for seed in range(5):
        least = computed(Min(("v",)), [pa.float64()], rows, seed)
        greatest = computed(Max(("v",)), [pa.float64()], rows, seed)
        assert least[0] == 1.0
        assert isnan(greatest[0])
        assert isnan(least[1])
        assert isnan(greatest[1])
        assert least[2] is greatest[2] is None


def test_a_type_without_an_order_has_no_min_or_max() -> None:
    with pytest.raises(RequestError, match="no order"):
        Min(("v",)).result_type([pa.list_(pa.int64())])


EVENTS = st.lists(
    st.tuples(st.integers(0, 3), st.tuples(st.none() | st.text(max_size=2), st.integers(-5, 5), st.integers(0, 3))),
    min_size=1,
    max_size=40,
).map(lambda rows: [(label, (*values, number)) for number, (label, values) in enumerate(rows)])
EVENT_TYPES = [pa.string(), pa.int64(), pa.int64(), pa.int64()]
INPUTS = ("v", "t", "stream_id", "message_id")


def _in_order(rows: Rows) -> dict[int, list[Any]]:
    groups: dict[int, list[Any]] = {}
    for label, values in sorted(rows, key=lambda row: row[1][1:]):
        groups.setdefault(label, []).append(values[0])
    return groups


@given(EVENTS, st.integers(0, 9))
def test_first_and_last_are_by_time_with_ties_broken_by_ids(rows: Rows, seed: int) -> None:
    groups = _in_order(rows)
    assert computed(First(INPUTS), EVENT_TYPES, rows, seed) == {label: some[0] for label, some in groups.items()}
    assert computed(Last(INPUTS), EVENT_TYPES, rows, seed) == {label: some[-1] for label, some in groups.items()}


@given(EVENTS, st.integers(1, 6), st.integers(0, 9))
def test_collect_has_the_first_values_in_order(rows: Rows, limit: int, seed: int) -> None:
    expected = {label: [v for v in some if v is not None][:limit] for label, some in _in_order(rows).items()}
    assert computed(Collect(INPUTS, limit), EVENT_TYPES, rows, seed) == expected


@pytest.mark.parametrize("limit", [0, -1, 10**9])
def test_collect_has_a_limit(limit: int) -> None:
    with pytest.raises(RequestError, match="collect: limit="):
        Collect(INPUTS, limit)


def test_values_can_be_ordered_by_timestamps_and_null_ids_come_first() -> None:
    early, late = datetime(1960, 1, 1, tzinfo=UTC), datetime(2020, 1, 1, tzinfo=UTC)
    rows = [(0, ("c", late, 1)), (0, ("b", early, 2)), (0, ("a", early, None))]
    kinds = [pa.string(), pa.timestamp("us", "UTC"), pa.int32()]
    assert computed(Collect(("v", "t", "id"), 9), kinds, rows) == {0: ["a", "b", "c"]}
    assert computed(First(("v", "t", "id")), kinds, rows) == {0: "a"}


def test_values_of_any_type_are_collected() -> None:
    rows = [(0, ([1, 2], 5)), (0, ([], 4)), (1, (None, 3))]
    assert computed(Collect(("v", "t"), 9), [pa.list_(pa.int64()), pa.int64()], rows) == {0: [[], [1, 2]], 1: []}
    dates = [(0, (date(2020, 1, 1), 5))]
    assert computed(Last(("v", "t")), [pa.date32(), pa.int64()], dates) == {0: date(2020, 1, 1)}


def _hashes(count: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(-(2**63), 2**63) for _ in range(count)]


@pytest.mark.slow
@pytest.mark.parametrize("count", [0, 1, 2, 10, 100, 1000, 5000, 12_000, 50_000])
@pytest.mark.parametrize("error", [0.02, 0.1])
def test_approx_distinct_is_accurate_for_few_and_for_many_values(count: int, error: float) -> None:
    estimates = []
    for seed in range(5):
        values = _hashes(count, seed)
        rows = [(0, (value,)) for value in values * 2] + [(0, (None,))]
        estimates.append(computed(ApproxDistinct(("h",), error), [pa.int64()], rows, seed)[0])
    assert abs(sum(estimates) / 5 - count) <= max(0.5, 2 * error * count)
    assert all(abs(each - count) <= max(1, 5 * error * count) for each in estimates)


def test_the_estimate_does_not_depend_on_how_the_values_are_split() -> None:
    rows = [(value % 7, (value,)) for value in _hashes(3000, 1)]
    results = [computed(ApproxDistinct(("h",)), [pa.int64()], rows, seed) for seed in range(5)]
    assert all(each == results[0] for each in results)


def test_hashes_of_all_zeros_and_all_ones_count() -> None:
    assert computed(ApproxDistinct(("h",)), [pa.int64()], [(0, (0,)), (0, (-1,)), (1, (0,))]) == {0: 2, 1: 1}


@pytest.mark.parametrize("error", [0.0, 0.001, 0.5])
def test_a_relative_error_outside_the_range_is_refused(error: float) -> None:
    with pytest.raises(RequestError, match="error"):
        ApproxDistinct(("h",), error)


def test_an_aggregate_can_read_other_columns() -> None:
    other = Collect(INPUTS, 7).reading("a", "b")
    assert (other.inputs, other.limit) == (("a", "b"), 7)


def _sum(values: list[Any]) -> Any:
    return sum(values) if values else None
