"""The interface of every aggregate, built in or a user's own."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any, ClassVar, Self, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.core.errors import LimitExceeded, RequestError

Groups: TypeAlias = NDArray[np.int64]
"""The number of each row's group, from 0; no group is empty."""


class Aggregate(ABC):
    """A value per key and window, computed from *partials*: one per group of rows, merged in any order.

    Rows arrive in any order, split anywhere: for the same rows, the result must not depend on how they were spread over
    calls of `add`, nor on the order in which partials were merged. Partials are an Arrow array of any type, always the
    same for the same types of inputs; the state stores them.
    """

    inputs: tuple[str, ...]
    """The columns that `add` gets, in this order."""

    ordered: ClassVar[bool] = False
    """Whether the inputs after the first are the order of the events: time, then tie breakers."""

    @abstractmethod
    def add(self, columns: Sequence[pa.Array], groups: Groups, count: int) -> pa.Array:
        """`count` partials of the rows; row i belongs to group `groups[i]`. Without rows, an empty array of that
        type.
        """

    @abstractmethod
    def merge(self, partials: pa.Array, groups: Groups, count: int) -> pa.Array:
        """`count` partials of partials; partial i belongs to group `groups[i]`."""

    @abstractmethod
    def result(self, partials: pa.Array) -> pa.Array:
        """A value per partial; it must not change the partials."""

    def reading(self, *inputs: str) -> Self:
        """The same aggregate of other columns."""
        other = copy(self)
        object.__setattr__(other, "inputs", inputs)
        return other

    def partial_type(self, types: Sequence[pa.DataType]) -> pa.DataType:
        """The type of partials, from the inputs' types. Raises RequestError for types that it does not support."""
        return self._type("add", self._none(types))

    def result_type(self, types: Sequence[pa.DataType]) -> pa.DataType:
        """The type of results, from the inputs' types. Raises RequestError for types that it does not support."""
        partials = self._none(types)
        self._type("add", partials)
        return self._type("result", self.result(partials))

    def parameters(self) -> dict[str, Any]:
        """What else determines the meaning of its partials: state written with other parameters is refused.

        The fields of a dataclass; for other classes, the public attributes that are numbers, strings or booleans.
        """
        fields: Mapping[str, Any] | None = getattr(self, "__dataclass_fields__", None)
        if fields is not None:
            return {name: getattr(self, name) for name in fields if name not in ("inputs", "ordered")}
        plain = {name: value for name, value in vars(self).items() if isinstance(value, int | float | str)}
        return {name: plain[name] for name in sorted(plain) if not name.startswith("_")}

    def _type(self, method: str, given: Any) -> pa.DataType:
        if not isinstance(given, pa.Array | pa.ChunkedArray):
            raise RequestError(
                f"`{method}` of the aggregate {type(self).__name__} returns {type(given).__name__}, not an Arrow array",
                "Return pa.array(…), also for no rows.",
            )
        return given.type

    def _none(self, types: Sequence[pa.DataType]) -> pa.Array:
        return self.add([pa.array([], each) for each in types], np.empty(0, np.int64), 0)


# Sums, extremes and order within groups, a column at a time.

_LOW_32 = np.int64(0xFFFFFFFF)
_HALF = 1 << 31


def valid_rows(column: pa.Array, groups: Groups) -> tuple[pa.Array, Groups]:
    """The rows without nulls."""
    if not column.null_count:
        return column, groups
    return column.drop_null(), groups[np.asarray(column.is_valid())]


def none_of(groups: Groups, count: int) -> NDArray[np.bool_] | None:
    """The groups without rows; None if there are none."""
    empty = np.ones(count, bool)
    empty[groups] = False
    return empty if empty.any() else None


def sum_integers(values: NDArray[np.int64], groups: Groups, count: int) -> NDArray[np.int64]:
    """Exact. Raises LimitExceeded when a sum does not fit 64 bits, even an intermediate one."""
    if len(values) and max(abs(int(values.min())), abs(int(values.max()))) > np.iinfo(np.int64).max // len(values):
        return _sum_large_integers(values, groups, count)
    return _sum_small(values, groups, count)


def _sum_large_integers(values: NDArray[np.int64], groups: Groups, count: int) -> NDArray[np.int64]:
    low, high = _sum_small(values & _LOW_32, groups, count), _sum_small(values >> 32, groups, count)
    high += low >> 32
    check_fits(high, "64 bits")
    return (high << 32) | (low & _LOW_32)


def sum_wide(values: NDArray[np.int64], groups: Groups, count: int) -> NDArray[np.int64]:
    """Sums of 128-bit numbers, as rows of two words. Raises LimitExceeded when a sum does not fit."""
    low, high = values[:, 0], values[:, 1]
    parts = [
        _sum_small(each, groups, count) for each in (low & _LOW_32, (low >> 32) & _LOW_32, high & _LOW_32, high >> 32)
    ]
    for number in range(3):
        parts[number + 1] += parts[number] >> 32
        parts[number] &= _LOW_32
    check_fits(parts[3], "128 bits")
    return np.column_stack((parts[1] << 32 | parts[0], parts[3] << 32 | parts[2]))


def _sum_small(values: NDArray[np.int64], groups: Groups, count: int) -> NDArray[np.int64]:
    """For numbers whose sum cannot overflow: that of 32-bit numbers cannot within 2^31 rows."""
    sums = np.zeros(count, np.int64)
    np.add.at(sums, groups, values)
    return sums


def check_fits(high: NDArray[np.int64], what: str) -> None:
    """Check a sum's highest 32 bits. Raises LimitExceeded."""
    if len(high) and (high.min() < -_HALF or high.max() >= _HALF):
        raise sum_overflows(what)


def sum_overflows(what: str) -> LimitExceeded:
    """The error raised instead of returning a wrong sum."""
    return LimitExceeded(
        f"a sum of a window does not fit {what}",
        "Cast the column to double, or to a wider decimal, before it is summed.",
    )


def first_rows(order: Sequence[NDArray[np.int64]], groups: Groups, count: int, *, last: bool) -> NDArray[np.int64]:
    """The first (or last) row of each group in this order; any one of rows that compare equal."""
    rows = np.arange(len(groups))
    for each in order:
        values = each[rows]
        bound = np.iinfo(np.int64)
        best = np.full(count, bound.min if last else bound.max)
        (np.maximum if last else np.minimum).at(best, groups[rows], values)
        rows = rows[values == best[groups[rows]]]
        if len(rows) == count:
            break
    chosen = np.empty(count, np.int64)
    chosen[groups[rows]] = rows
    return chosen


def sorted_rows(order: Sequence[NDArray[np.int64]], groups: Groups) -> NDArray[np.int64]:
    """Rows by group, then in this order."""
    return np.lexsort((*reversed(order), groups))


def nth_in_group(groups: Groups, count: int) -> NDArray[np.int64]:
    """For rows sorted by group, each row's place in its group, from 0."""
    sizes = np.bincount(groups, minlength=count)
    return np.arange(len(groups)) - np.repeat(np.cumsum(sizes) - sizes, sizes)


def offsets_of(groups: Groups, count: int) -> pa.Array:
    """The offsets of lists, one per group, of rows that are sorted by group."""
    sizes = np.bincount(groups, minlength=count)
    return pa.array(np.concatenate(([0], np.cumsum(sizes))).astype(np.int32))


def order_numbers(column: pa.Array) -> NDArray[np.int64]:
    """A column that events are ordered by (times, ids) as numbers; null sorts first."""
    numbers = column if pa.types.is_integer(column.type) else column.view(pa.int64())
    if numbers.null_count:
        numbers = numbers.cast(pa.int64()).fill_null(np.iinfo(np.int64).min)
    values: NDArray[np.int64] = numbers.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    return values
