"""What windows compute from a key's events. A user's own aggregate has the same interface."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, log2
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.core.errors import RequestError
from penstock.windows.groups import (
    Aggregate,
    Groups,
    first_rows,
    none_of,
    nth_in_group,
    offsets_of,
    order_numbers,
    sorted_rows,
    sum_integers,
    sum_overflows,
    sum_wide,
    valid_rows,
)

__all__ = ["Aggregate", "ApproxDistinct", "Avg", "Collect", "Count", "First", "Groups", "Last", "Max", "Min", "Sum"]

# Counts.


@dataclass(frozen=True)
class Count(Aggregate):
    """How many rows; of a column, how many values that are not null."""

    inputs: tuple[str, ...] = ()

    def add(self, columns: Sequence[pa.Array], groups: Groups, count: int) -> pa.Array:
        """One number for each group."""
        for column in columns:
            _, groups = valid_rows(column, groups)
        return pa.array(np.bincount(groups, minlength=count).astype(np.int64, copy=False))

    def merge(self, partials: pa.Array, groups: Groups, count: int) -> pa.Array:
        """The sum. 64 bits are enough for any number of rows."""
        return pa.array(sum_integers(partials.to_numpy(), groups, count))

    def result(self, partials: pa.Array) -> pa.Array:
        """The numbers themselves."""
        return partials


# The approximate number of distinct values: HyperLogLog of a 64-bit hash.
#
# The first bits of a hash choose a register, which stores the longest run of leading zeros in the remaining bits. A
# partial lists the registers that are not zero, so that few values take few bytes. The estimate is Ertl's ("New
# cardinality estimation algorithms for HyperLogLog sketches", 2017, section 2.4), which needs no tables and is accurate
# for few values as well as for many.
#
# The package datasketches (5.2) is slower here: it has an object for each group and a call of Python for each value. To
# add 100,000 hashes it took 3.6 times our CPU time in one group, 12 times in 1,000 groups, 5 times in 10,000; to merge,
# between as much and 2.6 times as much; and its sketches have to be serialized, which our lists, columns of Arrow, do
# not.

ERROR_MIN, ERROR_MAX = 0.005, 0.26
"""16 to 65,536 registers: with more, a set would be smaller than its sketch; with fewer, the estimate is useless."""

_RANK_BITS = 6
_RANKS = 1 << _RANK_BITS
_ESTIMATED_AT_ONCE = 1 << 14
"""Groups: each needs a histogram of ranks of 512 bytes."""


@dataclass(frozen=True)
class ApproxDistinct(Aggregate):
    """About how many values that are not null. Input: a hash (int64) of each value, null for null.

    `error` is the standard deviation of the estimate, relative to the truth.
    """

    inputs: tuple[str, ...]
    error: float = 0.02

    def __post_init__(self) -> None:
        """Raises RequestError for an error that is out of range."""
        if not ERROR_MIN <= self.error <= ERROR_MAX:
            raise RequestError(
                f"approx_distinct: error={self.error} is not valid", f"Choose one from {ERROR_MIN} to {ERROR_MAX}."
            )

    @property
    def register_bits(self) -> int:
        """There are 2 to this many registers; their number determines the error: 1.04 / √registers."""
        return ceil(2 * log2(1.04 / self.error))

    def add(self, columns: Sequence[pa.Array], groups: Groups, count: int) -> pa.Array:
        """A list of (register, rank) for each group."""
        hashes, groups = valid_rows(columns[0], groups)
        bits = hashes.cast(pa.int64()).to_numpy().view(np.uint64)
        registers = bits >> np.uint64(64 - self.register_bits)
        rest = bits << np.uint64(self.register_bits)
        ranks = np.minimum(_leading_zeros(rest), 64 - self.register_bits) + 1
        return self._lists((registers.astype(np.int64) << _RANK_BITS) | ranks, groups, count)

    def merge(self, partials: pa.Array, groups: Groups, count: int) -> pa.Array:
        """Each register's greatest rank."""
        lengths = partials.value_lengths().to_numpy()
        entries = partials.flatten().to_numpy().astype(np.int64)
        return self._lists(entries, np.repeat(groups, lengths), count)

    def result(self, partials: pa.Array) -> pa.Array:
        """Estimates, rounded."""
        lengths = partials.value_lengths().to_numpy()
        ranks = partials.flatten().to_numpy().astype(np.int64) & (_RANKS - 1)
        ends = np.cumsum(lengths)
        estimates = np.empty(len(lengths))
        for first in range(0, len(lengths), _ESTIMATED_AT_ONCE):
            some = lengths[first : first + _ESTIMATED_AT_ONCE]
            begin, end = (ends[first] - some[0], ends[first + len(some) - 1])
            rows = np.repeat(np.arange(len(some)), some) * _RANKS + ranks[begin:end]
            histogram = np.bincount(rows, minlength=len(some) * _RANKS).reshape(len(some), _RANKS)
            estimates[first : first + len(some)] = _estimate(histogram.astype(np.float64), self.register_bits)
        return pa.array(np.rint(estimates).astype(np.int64))

    def _lists(self, entries: NDArray[np.int64], groups: Groups, count: int) -> pa.Array:
        """Lists of the greatest rank of each register; entries are sorted by register, then rank."""
        pairs = np.sort((groups << (self.register_bits + _RANK_BITS)) | entries)
        registers = pairs >> _RANK_BITS
        greatest = np.ones(len(pairs), bool)
        greatest[:-1] = registers[1:] != registers[:-1]
        pairs = pairs[greatest]
        kept = (pairs & ((1 << (self.register_bits + _RANK_BITS)) - 1)).astype(np.int32)
        return pa.ListArray.from_arrays(offsets_of(pairs >> (self.register_bits + _RANK_BITS), count), pa.array(kept))


def _leading_zeros(words: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Leading zeros of 64-bit numbers, computed by halves: each half is exact as a double."""
    high, low = (words >> np.uint64(32)).astype(np.float64), (words & np.uint64(0xFFFFFFFF)).astype(np.float64)
    _, high_bits = np.frexp(high)
    _, low_bits = np.frexp(low)
    return np.where(high > 0, 32 - high_bits, 64 - low_bits).astype(np.int64)


def _estimate(histogram: NDArray[np.float64], register_bits: int) -> NDArray[np.float64]:
    """From the number of registers of each rank; the histogram omits registers of rank 0."""
    registers = float(1 << register_bits)
    longest = 64 - register_bits
    zeros = registers - histogram.sum(axis=1)
    total = registers * _tau(1 - histogram[:, longest + 1] / registers)
    for rank in range(longest, 0, -1):
        total = 0.5 * (total + histogram[:, rank])
    total += registers * _sigma(zeros / registers)
    with np.errstate(divide="ignore"):
        estimates: NDArray[np.float64] = registers * registers / (2 * np.log(2) * total)
    return estimates


def _sigma(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """X + Σ x^(2^k) 2^(k-1); infinite for 1, when all registers are zero."""
    whole = x >= 1
    power, weight, total = np.where(whole, 0.0, x), 1.0, np.where(whole, np.inf, x)
    while True:
        power = power * power
        following = total + power * weight
        weight += weight
        if np.array_equal(following, total):
            return total
        total = following


def _tau(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """(1 - x - Σ (1 - x^(2^-k))² 2^-k) / 3; nothing for 0 and 1."""
    inner = (x > 0) & (x < 1)
    root, weight, total = np.where(inner, x, 1.0), 1.0, np.where(inner, 1 - x, 0.0)
    while True:
        root = np.sqrt(root)
        weight *= 0.5
        following = total - (1 - root) ** 2 * weight
        if np.array_equal(following, total):
            return total / 3
        total = following


# Least and greatest values.


@dataclass(frozen=True)
class _Extreme(Aggregate):
    inputs: tuple[str, ...]

    def add(self, columns: Sequence[pa.Array], groups: Groups, count: int) -> pa.Array:
        """One value for each group; null if there are only nulls."""
        return self.merge(columns[0], groups, count)

    def merge(self, partials: pa.Array, groups: Groups, count: int) -> pa.Array:
        """For values of any ordered type."""
        kind = partials.type
        values, groups = valid_rows(partials, groups)
        if pa.types.is_floating(kind):
            return self._of_numbers(values.to_numpy(), groups, count, kind)
        if pa.types.is_integer(kind) or pa.types.is_temporal(kind):
            width = pa.int32() if kind.bit_width == 32 else pa.int64()
            numbers = values if pa.types.is_integer(kind) else values.view(width)
            return self._of_numbers(numbers.to_numpy(), groups, count, kind)
        return self._of_others(values, groups, count)

    def result(self, partials: pa.Array) -> pa.Array:
        """The values themselves."""
        return partials

    @abstractmethod
    def _of_numbers(self, values: NDArray[Any], groups: Groups, count: int, kind: pa.DataType) -> pa.Array: ...

    def _of_others(self, values: pa.Array, groups: Groups, count: int) -> pa.Array:
        name = type(self).__name__.lower()
        try:
            found = pa.table({"g": groups, "v": values}).group_by("g", use_threads=False).aggregate([("v", name)])
        except pa.ArrowNotImplementedError as error:
            raise RequestError(
                f"values of type {values.type} have no order", "Choose a column of a plain type."
            ) from error
        places = np.full(count, -1)
        places[found.column("g").to_numpy()] = np.arange(found.num_rows)
        return found.column(f"v_{name}").combine_chunks().take(pa.array(places, mask=places < 0))


class Min(_Extreme):
    """The least value that is not null. NaN is above all numbers, as in Spark."""

    def _of_numbers(self, values: NDArray[Any], groups: Groups, count: int, kind: pa.DataType) -> pa.Array:
        if values.dtype.kind == "f":
            best = np.full(count, np.nan, values.dtype)
            with np.errstate(invalid="ignore"):
                np.fmin.at(best, groups, values)
        else:
            best = np.full(count, np.iinfo(values.dtype).max, values.dtype)
            np.minimum.at(best, groups, values)
        return _typed(best, groups, count, kind)


class Max(_Extreme):
    """The greatest value that is not null. NaN is above all numbers, as in Spark."""

    def _of_numbers(self, values: NDArray[Any], groups: Groups, count: int, kind: pa.DataType) -> pa.Array:
        lowest = -np.inf if values.dtype.kind == "f" else np.iinfo(values.dtype).min
        best = np.full(count, lowest, values.dtype)
        with np.errstate(invalid="ignore"):
            np.maximum.at(best, groups, values)
        return _typed(best, groups, count, kind)


def _typed(best: NDArray[Any], groups: Groups, count: int, kind: pa.DataType) -> pa.Array:
    array = pa.array(best, mask=none_of(groups, count), from_pandas=False)
    return array if array.type == kind else array.view(kind)


# Values in the order of their events: by event time, then by tie breakers.

COLLECT_MAX = 100_000
"""The limit per key and window: a list is one value of a row, and is copied whenever it grows."""


@dataclass(frozen=True)
class First(Aggregate):
    """The value of the first event, null or not. Inputs: the value, then the columns that order events."""

    inputs: tuple[str, ...]
    ordered: ClassVar[bool] = True

    def add(self, columns: Sequence[pa.Array], groups: Groups, count: int) -> pa.Array:
        """The value, with its event's order."""
        value, *order = columns
        return self.merge(_events(value, [order_numbers(each) for each in order]), groups, count)

    def merge(self, partials: pa.Array, groups: Groups, count: int) -> pa.Array:
        """The first in each group."""
        order = _order_of(partials)
        return partials.take(pa.array(first_rows(order, groups, count, last=self._takes_last())))

    def result(self, partials: pa.Array) -> pa.Array:
        """The values alone."""
        return partials.field(0)

    def _takes_last(self) -> bool:
        return False


class Last(First):
    """The value of the last event, null or not. Inputs: the value, then the columns that order events."""

    def _takes_last(self) -> bool:
        return True


@dataclass(frozen=True)
class Collect(Aggregate):
    """The values that are not null, in order, the first `limit` of them. Inputs: the value, then the events' order."""

    inputs: tuple[str, ...]
    limit: int
    ordered: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Raises RequestError for a limit that is out of range."""
        if not 0 < self.limit <= COLLECT_MAX:
            raise RequestError(f"collect: limit={self.limit:,} is not valid", f"Choose one from 1 to {COLLECT_MAX:,}.")

    def add(self, columns: Sequence[pa.Array], groups: Groups, count: int) -> pa.Array:
        """A list of values with their events' order."""
        valid = np.asarray(columns[0].is_valid())
        value, *order = [column.filter(pa.array(valid)) for column in columns]
        return self._lists(_events(value, [order_numbers(each) for each in order]), groups[valid], count)

    def merge(self, partials: pa.Array, groups: Groups, count: int) -> pa.Array:
        """One list per group, in order."""
        lengths = partials.value_lengths().to_numpy()
        return self._lists(partials.flatten(), np.repeat(groups, lengths), count)

    def result(self, partials: pa.Array) -> pa.Array:
        """The values alone."""
        offsets = partials.offsets.to_numpy()
        values = partials.flatten().field(0)
        return pa.ListArray.from_arrays(pa.array(offsets - offsets[0] if len(offsets) else offsets), values)

    def _lists(self, events: pa.Array, groups: Groups, count: int) -> pa.Array:
        rows = sorted_rows(_order_of(events), groups)
        rows = rows[nth_in_group(groups[rows], count) < self.limit]
        return pa.ListArray.from_arrays(offsets_of(groups[rows], count), events.take(pa.array(rows)))


def _events(value: pa.Array, order: list[NDArray[np.int64]]) -> pa.Array:
    names = ["value", *(f"order{number}" for number in range(len(order)))]
    return pa.StructArray.from_arrays([value, *map(pa.array, order)], names)


def _order_of(events: pa.Array) -> list[NDArray[np.int64]]:
    return [events.field(number).to_numpy() for number in range(1, events.type.num_fields)]


# Sums and averages. They never wrap: a sum that does not fit its type is an error.

DECIMAL_DIGITS = 38
"""The maximum for Spark's decimals."""

DECIMAL_DIGITS_OF_AVERAGE = 4
"""An average of decimals has this many more digits after the point than its inputs, as in Spark."""

_COUNT_DIGITS = 19
"""Digits of a 64-bit count."""


@dataclass(frozen=True)
class Sum(Aggregate):
    """The sum of values that are not null; null if there are none. 64 bits for integers, 38 digits for decimals, else a
    double.
    """

    inputs: tuple[str, ...]

    def add(self, columns: Sequence[pa.Array], groups: Groups, count: int) -> pa.Array:
        """One sum for each group."""
        return _sum(columns[0], groups, count)

    def merge(self, partials: pa.Array, groups: Groups, count: int) -> pa.Array:
        """Sums of sums."""
        return _sum(partials, groups, count)

    def result(self, partials: pa.Array) -> pa.Array:
        """The sums themselves."""
        return partials


@dataclass(frozen=True)
class Avg(Aggregate):
    """The mean of values that are not null, null if there are none: a double; for decimals, a decimal rounded half
    up.
    """

    inputs: tuple[str, ...]

    def add(self, columns: Sequence[pa.Array], groups: Groups, count: int) -> pa.Array:
        """Sum and count: integers are summed as doubles, and so cannot overflow."""
        column = columns[0].cast(pa.float64(), safe=False) if pa.types.is_integer(columns[0].type) else columns[0]
        _, valid = valid_rows(column, groups)
        return _pairs(_sum(column, groups, count), pa.array(np.bincount(valid, minlength=count)))

    def merge(self, partials: pa.Array, groups: Groups, count: int) -> pa.Array:
        """Sums of both."""
        sums, counts = partials.flatten()
        return _pairs(_sum(sums, groups, count), pa.array(sum_integers(counts.to_numpy(), groups, count)))

    def result(self, partials: pa.Array) -> pa.Array:
        """The quotients."""
        sums, counts = partials.flatten()
        if not pa.types.is_decimal(sums.type):
            return pc.divide(sums, pc.max_element_wise(counts, 1).cast(pa.float64()))
        scale = min(sums.type.scale + DECIMAL_DIGITS_OF_AVERAGE, DECIMAL_DIGITS)
        divisors = pc.max_element_wise(counts, 1).cast(pa.decimal256(_COUNT_DIGITS, 0))
        quotients = pc.divide(sums.cast(pa.decimal256(DECIMAL_DIGITS, sums.type.scale)), divisors)
        rounded = pc.round(quotients, ndigits=scale, round_mode="half_towards_infinity")
        try:
            return rounded.cast(pa.decimal128(DECIMAL_DIGITS, scale))
        except pa.ArrowInvalid as error:
            raise sum_overflows(f"{DECIMAL_DIGITS} digits, {scale} of them after the point") from error


def _pairs(sums: pa.Array, counts: pa.Array) -> pa.Array:
    return pa.StructArray.from_arrays([sums, counts], ["sum", "count"])


def _sum(column: pa.Array, groups: Groups, count: int) -> pa.Array:
    kind = column.type
    column, groups = valid_rows(column, groups)
    none = none_of(groups, count)
    if pa.types.is_integer(kind) and kind != pa.uint64():
        return pa.array(sum_integers(column.cast(pa.int64()).to_numpy(), groups, count), mask=none)
    if pa.types.is_floating(kind):
        weights = column.cast(pa.float64()).to_numpy()
        return pa.array(np.bincount(groups, weights=weights, minlength=count).astype(np.float64), mask=none)
    if pa.types.is_decimal128(kind):
        return _sum_decimals(column, groups, count)
    raise RequestError(f"a column of type {kind} cannot be summed", "Cast it to a number.")


def _sum_decimals(column: pa.Array, groups: Groups, count: int) -> pa.Array:
    words = np.frombuffer(column.buffers()[1] or b"", np.int64).reshape(-1, 2)
    sums = sum_wide(words[column.offset : column.offset + len(column)], groups, count)
    none = none_of(groups, count)
    valid = None if none is None else pa.array(~none).buffers()[1]
    kind = pa.decimal128(DECIMAL_DIGITS, column.type.scale)
    array = pa.Array.from_buffers(kind, count, [valid, pa.py_buffer(np.ascontiguousarray(sums))])
    try:
        array.validate(full=True)
    except pa.ArrowInvalid as error:
        raise sum_overflows(f"{DECIMAL_DIGITS} digits") from error
    return array
