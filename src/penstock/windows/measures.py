"""Measures of windows, as users write them: an aggregate and the columns that it reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from pyspark.sql import Column

    from penstock.windows.aggregates import Aggregate

ColumnLike: TypeAlias = "str | Column"

_NONE = ()
"""Inputs are named when the frame is known."""


@dataclass(frozen=True, slots=True)
class Measure:
    """An aggregate of these columns; `hashed`: it reads their hashes."""

    aggregate: Aggregate
    columns: tuple[ColumnLike, ...] = ()
    hashed: bool = False


def count(column: ColumnLike | None = None) -> Measure:
    """How many events; of a column, how many of its values are not null."""
    from penstock.windows.aggregates import Count

    return Measure(Count(), () if column is None else (column,))


def sum(column: ColumnLike) -> Measure:  # noqa: A001  Spark's names, here and below
    """The sum of numbers; null if all are null. Integers are summed as bigint; an overflow fails the query."""
    from penstock.windows.aggregates import Sum

    return Measure(Sum(_NONE), (column,))


def min(column: ColumnLike) -> Measure:  # noqa: A001
    """The least value that is not null."""
    from penstock.windows.aggregates import Min

    return Measure(Min(_NONE), (column,))


def max(column: ColumnLike) -> Measure:  # noqa: A001
    """The greatest value that is not null."""
    from penstock.windows.aggregates import Max

    return Measure(Max(_NONE), (column,))


def avg(column: ColumnLike) -> Measure:
    """The mean of the values that are not null: a double; for decimals, a decimal."""
    from penstock.windows.aggregates import Avg

    return Measure(Avg(_NONE), (column,))


def first(column: ColumnLike) -> Measure:
    """The value of the earliest event by event time, even if it is null. Among events with the same time, that of
    the least (`stream_id`, `message_id`), where the frame has these columns.
    """
    from penstock.windows.aggregates import First

    return Measure(First(_NONE), (column,))


def last(column: ColumnLike) -> Measure:
    """The value of the latest event by event time, as `first`."""
    from penstock.windows.aggregates import Last

    return Measure(Last(_NONE), (column,))


def collect(column: ColumnLike, limit: int) -> Measure:
    """An array of the earliest `limit` values that are not null, in the order of their events."""
    from penstock.windows.aggregates import Collect

    return Measure(Collect(_NONE, limit=limit), (column,))


def approx_distinct(column: ColumnLike, error: float = 0.02) -> Measure:
    """The approximate number of distinct values that are not null; `error` is the relative standard deviation."""
    from penstock.windows.aggregates import ApproxDistinct

    return Measure(ApproxDistinct(_NONE, error=error), (column,), hashed=True)


def measure(aggregate: Aggregate, *columns: ColumnLike) -> Measure:
    """An aggregate of your own, reading these columns in place of its `inputs`."""
    return Measure(aggregate, columns)
