"""Tables of partials, in blobs and in state: keys, bounds in time, and a partial of each aggregate."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.core.errors import RequestError
from penstock.windows.engine.keys import Grouping
from penstock.windows.engine.plan import Plan
from penstock.windows.engine.rows import Rows, one_array

START, END, REVISION, REPLACES = "start", "end", "revision", "replaces"
"""A slice's or window's bounds; the revision that it fires with, or has fired with once the watermark is at its end."""

BUCKETS_SORTED_FAST = 1 << 16
"""NumPy sorts numbers of 16 bits by radix."""


def key_names(plan: Plan) -> list[str]:
    """Of a table of partials."""
    return [f"k{number}" for number in range(len(plan.keys))]


def partial_names(plan: Plan) -> list[str]:
    """Of a table of partials."""
    return [f"a{number}" for number in range(len(plan.aggregates))]


def added(plan: Plan, rows: Rows, grouping: Grouping) -> dict[str, pa.Array]:
    """A partial of each group of rows, by name of its column."""
    arrays = {}
    for column, (name, each) in zip(partial_names(plan), plan.aggregates.items(), strict=True):
        partials = each.add([rows.columns[key] for key in each.inputs], grouping.groups, grouping.count)
        arrays[column] = _checked(name, partials, grouping.count, plan.partial_types[name])
    return arrays


def merged(plan: Plan, table: pa.Table, grouping: Grouping, chosen: NDArray[np.int64] | None) -> dict[str, pa.Array]:
    """A partial of each group of the chosen rows of a table of partials, by name of its column."""
    arrays = {}
    for column, (name, each) in zip(partial_names(plan), plan.aggregates.items(), strict=True):
        parts = one_array(table.column(column))
        parts = parts if chosen is None else parts.take(pa.array(chosen))
        partials = each.merge(parts, grouping.groups, grouping.count)
        arrays[column] = _checked(name, partials, grouping.count, plan.partial_types[name])
    return arrays


def results(plan: Plan, table: pa.Table) -> list[pa.Array]:
    """Of a table of partials."""
    return [
        _checked(name, each.result(one_array(table.column(column))), table.num_rows, plan.pane_schema.field(name).type)
        for column, (name, each) in zip(partial_names(plan), plan.aggregates.items(), strict=True)
    ]


def _checked(name: str, array: pa.Array | pa.ChunkedArray, count: int, kind: pa.DataType) -> pa.Array:
    """What an aggregate gave. Raises RequestError: one that a user wrote may give anything."""
    given = array.type if isinstance(array, pa.Array | pa.ChunkedArray) else type(array).__name__
    if given != kind or len(array) != count:
        number = f"{len(array)} values of {given}" if hasattr(array, "__len__") else given
        raise RequestError(
            f"the aggregate {name!r} gave {number}, not {count} of {kind}",
            "Let add and merge give one partial for each group, result one value for each partial, always of one type.",
        )
    return one_array(array)


def by_number(numbers: NDArray[np.integer]) -> tuple[NDArray[np.int64], list[tuple[int, slice]]]:
    """An order of rows in which equal numbers stand together, and for each number its slice of that order."""
    if not len(numbers):
        return np.empty(0, np.int64), []
    low, high = int(numbers.min()), int(numbers.max())
    small = numbers.astype(np.uint16) if low >= 0 and high < BUCKETS_SORTED_FAST else numbers
    order = np.argsort(small, kind="stable")
    ordered = numbers[order]
    starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    ends = [*starts[1:].tolist(), len(ordered)]
    pieces = [(int(ordered[start]), slice(start, end)) for start, end in zip(starts.tolist(), ends, strict=True)]
    return order, pieces


def pieces_of(table: pa.Table, numbers: NDArray[np.integer]) -> Iterator[tuple[int, pa.Table]]:
    """The table's rows of each number."""
    order, pieces = by_number(numbers)
    ordered = table if len(pieces) <= 1 else table.take(pa.array(order))
    for number, piece in pieces:
        yield number, ordered.slice(piece.start, piece.stop - piece.start)
