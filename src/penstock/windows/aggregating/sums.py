"""Sums and averages. They never wrap: a sum that does not fit its type is an error."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.errors import RequestError
from penstock.windows.aggregating.grouped import none_of, sum_integers, sum_overflows, sum_wide, valid_rows
from penstock.windows.aggregating.interface import Aggregate, Groups

DECIMAL_DIGITS = 38
"""The most that Spark's decimals have."""

DECIMAL_DIGITS_OF_AVERAGE = 4
"""An average of decimals has so many more digits behind the point than they have, as Spark's has."""

_COUNT_DIGITS = 19
"""Of a 64-bit count."""


@dataclass(frozen=True)
class Sum(Aggregate):
    """Of numbers that are not null; null if there are none. Integers give 64 bits, decimals 38 digits, else doubles."""

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
    """Of numbers that are not null; null if there are none. A double; of decimals a decimal, rounded half up."""

    inputs: tuple[str, ...]

    def add(self, columns: Sequence[pa.Array], groups: Groups, count: int) -> pa.Array:
        """Sum and count: integers are summed as doubles, and so cannot overflow."""
        column = columns[0].cast(pa.float64(), safe=False) if pa.types.is_integer(columns[0].type) else columns[0]
        _, valid = valid_rows(column, groups)
        return _pairs(_sum(column, groups, count), pa.array(np.bincount(valid, minlength=count)))

    def merge(self, partials: pa.Array, groups: Groups, count: int) -> pa.Array:
        """Of both."""
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
            raise sum_overflows(f"{DECIMAL_DIGITS} digits, {scale} of them behind the point") from error


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
