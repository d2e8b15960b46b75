"""Tumbling and sliding windows. The reducer stores one blob of state per window, numbered by the window's start."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from penstock.windows.engine.bucket import (
    BlobInfo,
    Blobs,
    Changes,
    Index,
    Written,
    closed,
    panes_of,
    reached,
    read_state,
    waiting_in,
    write_state,
)
from penstock.windows.engine.plan import Codes, Plan, codes_of, codes_of_integers, combined, grouped
from penstock.windows.engine.tables import (
    END,
    REVISION,
    START,
    Batch,
    Rows,
    added,
    by_number,
    key_names,
    merged,
    one_array,
    partial_names,
)
from penstock.windows.kinds import Session


def advance_fixed(plan: Plan, index: Index, state: Blobs, batch: Batch, after: int | None) -> Changes:
    """Applies the batch to the windows that are open at the index's watermark, then fires and purges by `after`."""
    touched = _Touched.by(plan, index, state, batch.partials)
    panes = [*touched.panes(plan, index.watermark, after), *_silent_panes(plan, index, state, touched.windows, after)]
    gone = {start for start in {*index.blobs, *touched.windows} if closed(plan, start + _size(plan), after)}
    puts = {start: written(plan, start, piece) for start, piece in touched.windows.items() if start not in gone}
    removed = frozenset(gone & index.blobs.keys())
    left = [each for start, each in index.blobs.items() if start not in removed and start not in puts]
    waiting = waiting_in([*left, *(each.info for each in puts.values())], after)
    return Changes(panes=panes, late=[], puts=puts, removed=removed, waiting=waiting)


@dataclass(frozen=True, slots=True)
class _Touched:
    """The windows that the batch has rows for: keys, partials, revisions, bounds; rows of a window are adjacent."""

    table: pa.Table | None
    changed: NDArray[np.bool_]
    windows: dict[int, pa.Table]

    @staticmethod
    def by(plan: Plan, index: Index, state: Blobs, partials: list[pa.Table]) -> "_Touched":
        """State and new partials, merged by key and window."""
        if not partials:
            return _Touched(None, np.empty(0, bool), {})
        table, changed = _merged(plan, _Stack.of(plan, index, state, partials), index.watermark)
        order, pieces = by_number(table.column(START).to_numpy())
        if len(pieces) > 1:
            table, changed = table.take(pa.array(order)), changed[order]
        return _Touched(table, changed, {n: table.slice(rows.start, rows.stop - rows.start) for n, rows in pieces})

    def panes(self, plan: Plan, before: int | None, after: int | None) -> list[pa.Table]:
        """`on_time` where `after` has just reached the end, `update` where a window changed that had already fired."""
        if self.table is None:
            return []
        ends = self.table.column(END).to_numpy()
        fired = reached(ends, after) & (~reached(ends, before) | self.changed)
        return [panes_of(plan, self.table.filter(pa.array(fired)))] if fired.any() else []


@dataclass(frozen=True, slots=True)
class _Stack:
    """Rows of windows: first `stored` rows of the state, then new ones. A row may be chosen for several windows."""

    table: pa.Table
    chosen: NDArray[np.int64]
    starts: NDArray[np.int64]
    revisions: NDArray[np.int32]
    stored: int

    @staticmethod
    def of(plan: Plan, index: Index, state: Blobs, partials: list[pa.Table]) -> "_Stack":
        """The state of the windows that the new partials belong to, followed by the partials."""
        new = pa.concat_tables(partials).combine_chunks()
        rows, new_starts = _expanded(plan, one_array(new.column(START)).to_numpy(), index.watermark)
        old = {number: read_state(state, number) for number in pd.unique(new_starts).tolist() if number in index.blobs}
        names = [*key_names(plan), *partial_names(plan)]
        table = pa.concat_tables([each.select(names) for each in (*old.values(), new)]).combine_chunks()
        stored = table.num_rows - new.num_rows
        starts = np.repeat(np.array([*old], np.int64), [each.num_rows for each in old.values()])
        revisions = [each.column(REVISION).to_numpy() for each in old.values()]
        return _Stack(
            table=table,
            chosen=np.concatenate((np.arange(stored), rows + stored)),
            starts=np.concatenate((starts, new_starts)),
            revisions=np.concatenate([np.empty(0, np.int32), *revisions]),
            stored=stored,
        )


def _merged(plan: Plan, stack: _Stack, before: int | None) -> tuple[pa.Table, NDArray[np.bool_]]:
    """One row per key and window, and whether the batch has changed it."""
    keys = [one_array(stack.table.column(name)) for name in key_names(plan)]
    codes = codes_of(keys, stack.table.num_rows)
    windows = codes_of_integers(np.floor_divide(stack.starts, _slide(plan)))
    grouping = grouped(combined(windows, Codes(codes.of_rows[stack.chosen], codes.bound)))
    changed = np.zeros(grouping.count, bool)
    changed[grouping.groups[stack.stored :]] = True
    starts = stack.starts[grouping.example]
    ends = starts + _size(plan)
    revisions = np.zeros(grouping.count, np.int32)
    revisions[grouping.groups[: stack.stored]] = stack.revisions
    revisions += changed & reached(ends, before)
    example = pa.array(stack.chosen[grouping.example])
    columns = {name: column.take(example) for name, column in zip(key_names(plan), keys, strict=True)}
    columns |= merged(plan, stack.table, grouping, stack.chosen)
    columns |= {REVISION: pa.array(revisions), START: pa.array(starts), END: pa.array(ends)}
    return pa.table(columns), changed


def _expanded(plan: Plan, slices: NDArray[np.int64], before: int | None) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For each slice and each open window that contains it: the slice's row and the window's start."""
    window = plan.window
    assert not isinstance(window, Session)
    last = np.floor_divide(slices - window.offset_us, window.slide_us) * window.slide_us + window.offset_us
    if window.slide_us == window.size_us:
        return np.arange(len(slices)), last
    lowest = slices - window.size_us
    if (closed_to := plan.closed_to(before)) is not None:
        lowest = np.maximum(lowest, closed_to - window.size_us)
    counts = (last - lowest - 1) // window.slide_us + 1
    rows = np.repeat(np.arange(len(slices)), counts)
    nth = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    return rows, last[rows] - nth * window.slide_us


def _silent_panes(
    plan: Plan, index: Index, state: Blobs, touched: dict[int, pa.Table], after: int | None
) -> list[pa.Table]:
    """The panes of windows that fire without having changed."""
    size = _size(plan)
    due = [n for n in index.blobs if reached(n + size, after) and not reached(n + size, index.watermark)]
    return [panes_of(plan, _bounded(plan, read_state(state, n), n)) for n in due if n not in touched]


def _bounded(plan: Plan, table: pa.Table, start: int) -> pa.Table:
    rows = table.num_rows
    starts = pa.array(np.full(rows, start, np.int64))
    ends = pa.array(np.full(rows, start + _size(plan), np.int64))
    return table.append_column(START, starts).append_column(END, ends)


def written(plan: Plan, start: int, table: pa.Table) -> Written:
    """The blob of a window."""
    data = write_state(table.select([*key_names(plan), REVISION, *partial_names(plan)]))
    end = start + _size(plan)
    return Written(data=data, info=BlobInfo(table.num_rows, len(data), start, end, end))


def _slide(plan: Plan) -> int:
    assert not isinstance(plan.window, Session)
    return plan.window.slide_us


def _size(plan: Plan) -> int:
    assert not isinstance(plan.window, Session)
    return plan.window.size_us


# The mapper's side: one partial per key and slice.


def late_below(plan: Plan, closed_to: int) -> int:
    """The start of the first open window: an event before it belongs to no open window."""
    window = plan.window
    assert not isinstance(window, Session)
    last = (closed_to - window.size_us - window.offset_us) // window.slide_us
    return (last + 1) * window.slide_us + window.offset_us


def slice_partials(plan: Plan, rows: Rows) -> tuple[pa.Table, NDArray[np.int64]]:
    """For rows that are not late: keys, start of the slice and partials, and for each a row with its key."""
    window = plan.window
    assert not isinstance(window, Session)
    slices = np.floor_divide(rows.times - window.offset_us, window.slice_us)
    keys = [rows.columns[name] for name in plan.keys]
    grouping = grouped(combined(codes_of(keys, len(rows)), codes_of_integers(slices)))
    example = pa.array(grouping.example)
    columns = {name: column.take(example) for name, column in zip(key_names(plan), keys, strict=True)}
    columns[START] = pa.array(slices[grouping.example] * window.slice_us + window.offset_us)
    return pa.table(columns | added(plan, rows, grouping)), grouping.example
