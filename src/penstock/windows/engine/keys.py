"""Rows to groups of equal keys. Null is a key like any other, and so is NaN; -0.0 is 0.0: as in Spark's grouping."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.core.errors import RequestError

DENSE_ROOM = 1 << 16
"""So many codes may be unused before a table of all codes costs more than a hash table of those in use."""

CODES_MAX = 1 << 62
"""Codes of several columns are multiplied: beyond this they are renumbered."""


@dataclass(frozen=True, slots=True)
class Codes:
    """A number for each row, all below `bound`; equal for rows that are equal."""

    of_rows: NDArray[np.int64]
    bound: int


@dataclass(frozen=True, slots=True)
class Grouping:
    """`groups[i]` is row i's group; `example[g]` is a row of group g. No group is empty."""

    groups: NDArray[np.int64]
    example: NDArray[np.int64]

    @property
    def count(self) -> int:
        """Of groups."""
        return len(self.example)


def normalized(column: pa.Array) -> pa.Array:
    """A key column with one NaN and one zero."""
    if not pa.types.is_floating(column.type):
        return column
    values = pc.add(column, pa.scalar(0.0, column.type))
    return pc.if_else(pc.is_nan(values), pa.scalar(float("nan"), column.type), values)


def codes_of(columns: Sequence[pa.Array], rows: int) -> Codes:
    """Of keys whose columns are `normalized`. Raises RequestError for types that cannot be keys."""
    codes = Codes(np.zeros(rows, np.int64), 1)
    for column in columns:
        codes = combined(codes, _encoded(column))
    return codes


def combined(left: Codes, right: Codes) -> Codes:
    """Of pairs."""
    if left.bound == 1:
        return right
    if left.bound > CODES_MAX // max(right.bound, 1):
        grouping = grouped(left)
        left = Codes(grouping.groups, grouping.count)
    return Codes(left.of_rows * right.bound + right.of_rows, left.bound * right.bound)


def codes_of_integers(values: NDArray[np.int64]) -> Codes:
    """Of numbers that lie close together, such as those of windows; any others are right as well, and slower."""
    if not len(values):
        return Codes(values, 1)
    low, high = int(values.min()), int(values.max())
    if low == high:
        return Codes(np.zeros(len(values), np.int64), 1)
    if high - low < len(values) + DENSE_ROOM:
        return _without_gaps(Codes(values - low, high - low + 1))
    numbers, distinct = pd.factorize(values)
    return Codes(numbers, len(distinct))


def grouped(codes: Codes) -> Grouping:
    """Groups of equal codes, in no order."""
    if codes.bound <= len(codes.of_rows) + DENSE_ROOM:
        codes = _without_gaps(codes)
    else:
        numbers, distinct = pd.factorize(codes.of_rows)
        codes = Codes(numbers, len(distinct))
    example = np.empty(codes.bound, np.int64)
    example[codes.of_rows] = np.arange(len(codes.of_rows))
    return Grouping(codes.of_rows, example)


def _without_gaps(codes: Codes) -> Codes:
    """By a table of all codes."""
    present = np.zeros(codes.bound, bool)
    present[codes.of_rows] = True
    count = int(np.count_nonzero(present))
    if count == codes.bound:
        return codes
    return Codes((np.cumsum(present) - 1)[codes.of_rows], count)


def _encoded(column: pa.Array) -> Codes:
    plain = _as_plain(column)
    if pa.types.is_integer(plain.type) and not plain.null_count and len(plain):
        values = plain.to_numpy()
        low, high = int(values.min()), int(values.max())
        if high - low < len(values) + DENSE_ROOM:
            return Codes((values - low).astype(np.int64, copy=False), high - low + 1)
    encoded = plain.dictionary_encode(null_encoding="encode")
    return Codes(encoded.indices.to_numpy().astype(np.int64), max(len(encoded.dictionary), 1))


def _as_plain(column: pa.Array) -> pa.Array:
    """The same bits as a type that Arrow's hash table takes as it is."""
    kind = column.type
    if pa.types.is_null(kind) or pa.types.is_nested(kind):
        raise RequestError(f"a column of type {kind} cannot be a key", "Use columns of plain types.")
    if pa.types.is_floating(kind):
        return column.view(pa.int64() if kind.bit_width == 64 else pa.int32())
    if pa.types.is_decimal(kind):
        return column.view(pa.binary(kind.byte_width))
    if pa.types.is_temporal(kind):
        return column.view(pa.int32() if kind.bit_width == 32 else pa.int64())
    return column
