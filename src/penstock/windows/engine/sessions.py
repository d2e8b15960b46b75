"""Sessions, the reducer's part."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.windows.engine.bucket import (
    BucketState,
    Changes,
    Held,
    Index,
    Runs,
    Waiting,
    Written,
    panes_of,
    reached,
    read_state,
    runs_of,
    waiting_in,
    write_state,
)
from penstock.windows.engine.plan import BOUNDS, TIME, Grouping, Plan, codes_of
from penstock.windows.engine.tables import (
    END,
    REPLACES,
    REVISION,
    START,
    Batch,
    Rows,
    added,
    key_names,
    merged,
    one_array,
    partial_names,
    pieces_of,
)
from penstock.windows.kinds import Session

# Sessions of the state and new ones become one where they overlap.


@dataclass(frozen=True, slots=True)
class Merged:
    """Sessions after a batch. `of_rows`: the session that each row of the merged tables went into."""

    table: pa.Table
    changed: NDArray[np.bool_]
    late: NDArray[np.bool_]
    of_rows: NDArray[np.int64]


def merge_sessions(plan: Plan, table: pa.Table, held: int, before: int | None) -> Merged:
    """Of a table whose first `held` rows are open sessions of the state, the rest new ones.

    A session of new rows alone that is closed at `before` is late. One that has changed fires with a revision above
    those that its parts have fired with, not on time if `before` is at its end, and replaces their panes where bounds
    differ.
    """
    keys = [one_array(table.column(name)) for name in key_names(plan)]
    starts, ends = table.column(START).to_numpy(), table.column(END).to_numpy()
    runs = runs_of(codes_of(keys, table.num_rows), starts, ends)
    groups, count = runs.grouping.groups, runs.grouping.count
    changed, known = np.zeros(count, bool), np.zeros(count, bool)
    changed[groups[held:]] = True
    known[groups[:held]] = True
    fired = reached(ends[:held], before)
    revisions = np.zeros(count, np.int32)
    parts = one_array(table.column(REVISION)).to_numpy()[:held] + (fired & changed[groups[:held]])
    np.maximum.at(revisions, groups[:held], parts.astype(np.int32))
    revisions = np.maximum(revisions, changed & reached(runs.ends, before))
    example = pa.array(runs.grouping.example)
    columns = {name: column.take(example) for name, column in zip(key_names(plan), keys, strict=True)}
    columns |= {START: pa.array(runs.starts), END: pa.array(runs.ends), REVISION: pa.array(revisions)}
    columns[REPLACES] = _replaced(table.slice(0, held), runs, fired)
    columns |= merged(plan, table, runs.grouping, None)
    late = ~known & reached(runs.ends + plan.lateness_us, before)
    return Merged(pa.table(columns), changed, late, groups)


def _replaced(parts: pa.Table, runs: Runs, fired: NDArray[np.bool_]) -> pa.Array:
    """For each session the panes that it replaces when it fires: of parts that have fired, or that parts replace."""
    lists = one_array(parts.column(REPLACES))
    groups = runs.grouping.groups[: parts.num_rows]
    lengths = np.where(fired, 0, np.diff(lists.offsets.to_numpy()))
    waiting = lists.filter(pa.array(~fired)).flatten()
    sessions = np.concatenate((groups[fired], np.repeat(groups, lengths)))
    starts = np.concatenate((parts.column(START).to_numpy()[fired], waiting.field(0).to_numpy()))
    ends = np.concatenate((parts.column(END).to_numpy()[fired], waiting.field(1).to_numpy()))
    differ = (starts != runs.starts[sessions]) | (ends != runs.ends[sessions])
    order = np.flatnonzero(differ)
    order = order[np.lexsort((ends[order], starts[order], sessions[order]))]
    counts = np.bincount(sessions[order], minlength=runs.grouping.count)
    offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    bounds = pa.StructArray.from_arrays([pa.array(starts[order]), pa.array(ends[order])], fields=list(BOUNDS))
    return pa.ListArray.from_arrays(pa.array(offsets), bounds)


# Sessions, the mapper's part: partial sessions. Only the state knows whether an old event joins an open one.


def open_below(plan: Plan, before: int) -> int:
    """An event before this time, alone, would make a session that is closed."""
    assert isinstance(plan.window, Session)
    return before - plan.window.gap_us - plan.lateness_us + 1


def session_partials(plan: Plan, rows: Rows) -> tuple[pa.Table, NDArray[np.int32]]:
    """Of rows that are not late: keys, bounds, partials; and their buckets."""
    assert isinstance(plan.window, Session)
    keys = [rows.columns[name] for name in plan.keys]
    runs = runs_of(codes_of(keys, len(rows)), rows.times, rows.times + plan.window.gap_us)
    example = pa.array(runs.grouping.example)
    columns = {name: column.take(example) for name, column in zip(key_names(plan), keys, strict=True)}
    columns |= {START: pa.array(runs.starts), END: pa.array(runs.ends)}
    return pa.table(columns | added(plan, rows, runs.grouping)), rows.buckets[runs.grouping.example]


# Open sessions in state: a blob for each stretch of time that they end in, so that old ones need not be touched.

STRETCHES_OF_LATENESS = 16
"""Sessions that wait for late events lie in about so many blobs: fewer would be rewritten more often than need be."""

STRETCH_US_MIN = 60_000_000
"""A blob is a call to the state store, however small: a watermark that is an hour behind leaves sixty of them."""


def numbers_of(plan: Plan, ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """The blobs that sessions with these ends belong to."""
    assert isinstance(plan.window, Session)
    return np.floor_divide(ends, max(STRETCH_US_MIN, plan.window.gap_us, plan.lateness_us // STRETCHES_OF_LATENESS))


def columns_of(plan: Plan) -> list[str]:
    """Of a table of sessions."""
    return [*key_names(plan), START, END, REVISION, REPLACES, *partial_names(plan)]


def wanted(index: Index, starts: NDArray[np.int64], ends: NDArray[np.int64], after: int | None) -> list[int]:
    """The blobs that hold sessions which these intervals may join, or which `after` may fire."""
    order = np.argsort(starts)
    starts, ends = starts[order], np.maximum.accumulate(ends[order])
    return [
        number
        for number, held in index.held.items()
        if ((before_end := np.searchsorted(starts, held.last_end)) and ends[before_end - 1] > held.first_start)
        or (reached(held.first_end, after) and not reached(held.last_end, index.watermark))
    ]


def read_sessions(plan: Plan, state: BucketState, number: int, before: int | None) -> pa.Table:
    """Those of a blob that are still open."""
    table = read_state(state, number)
    if REPLACES not in table.column_names:
        table = table.append_column(REPLACES, no_bounds(table.num_rows))
    closed = reached(table.column(END).to_numpy() + plan.lateness_us, before)
    table = table.select(columns_of(plan))
    return table.filter(pa.array(~closed)) if closed.any() else table


def no_bounds(rows: int) -> pa.Array:
    """An empty list for each row."""
    return pa.ListArray.from_arrays(pa.array(np.zeros(rows + 1, np.int32)), pa.array([], BOUNDS))


def write_sessions(plan: Plan, pieces: Iterable[pa.Table]) -> Written | None:
    """None if there are no sessions."""
    table = pa.concat_tables(piece.select(columns_of(plan)) for piece in pieces).combine_chunks()
    if not table.num_rows:
        return None
    starts, ends = table.column(START).to_numpy(), table.column(END).to_numpy()
    if not len(table.column(REPLACES).chunk(0).flatten()):
        table = table.drop_columns([REPLACES])
    data = write_state(table)
    held = Held(table.num_rows, len(data), int(starts.min()), int(ends.min()), int(ends.max()))
    return Written(data=data, held=held)


def advance_sessions(plan: Plan, index: Index, state: BucketState, batch: Batch, after: int | None) -> Changes:
    """Merges the batch with the sessions that are open at the index's watermark, then fires and purges by `after`."""
    raw = pa.concat_tables(batch.raw).combine_chunks() if batch.raw else None
    new = [*batch.partials, *([] if raw is None else [_single_events(plan, raw)])]
    read = _read(plan, index, state, new, after)
    # A blob that is not read has sessions that have all fired, or none of which is due yet.
    waiting = waiting_in((each for number, each in index.held.items() if number not in read), after)
    if not read and not new:
        return Changes(panes=[], late=[], puts={}, removed=_closed(plan, index, after), waiting=waiting)
    tables = [*read.values(), *(_unfired(plan, each) for each in new)]
    held = sum(each.num_rows for each in read.values())
    sessions = merge_sessions(plan, pa.concat_tables(tables).combine_chunks(), held, index.watermark)
    puts, emptied = _Rewriting(plan, index, state, read, sessions).result(after)
    return Changes(
        panes=_panes(plan, sessions, index.watermark, after),
        late=[] if raw is None else _late(plan, raw, sessions),
        puts=puts,
        removed=(_closed(plan, index, after) | emptied) - puts.keys(),
        waiting=waiting + _waiting(sessions, after),
    )


def _single_events(plan: Plan, raw: pa.Table) -> pa.Table:
    """Each row a session of its own: they are joined with the others."""
    assert isinstance(plan.window, Session)
    columns = {name: raw.column(name).combine_chunks() for name in raw.column_names}
    times = columns[TIME].to_numpy()
    rows = Rows(columns, times, np.empty(0, np.int32))
    keys = {name: columns[key] for name, key in zip(key_names(plan), plan.keys, strict=True)}
    bounds = {START: columns[TIME], END: pa.array(times + plan.window.gap_us)}
    each = np.arange(len(times))
    return pa.table(keys | bounds | added(plan, rows, Grouping(each, each)))


def _unfired(plan: Plan, new: pa.Table) -> pa.Table:
    revisions = pa.array(np.zeros(new.num_rows, np.int32))
    table = new.append_column(REVISION, revisions).append_column(REPLACES, no_bounds(new.num_rows))
    return table.select(columns_of(plan))


def _read(plan: Plan, index: Index, state: BucketState, new: list[pa.Table], after: int | None) -> dict[int, pa.Table]:
    none = np.empty(0, np.int64)
    starts = np.concatenate([none, *(each.column(START).to_numpy() for each in new)])
    ends = np.concatenate([none, *(each.column(END).to_numpy() for each in new)])
    numbers = wanted(index, starts, ends, after)
    return {number: read_sessions(plan, state, number, index.watermark) for number in numbers}


def _panes(plan: Plan, sessions: Merged, before: int | None, after: int | None) -> list[pa.Table]:
    ends = sessions.table.column(END).to_numpy()
    fired = reached(ends, after) & (~reached(ends, before) | sessions.changed) & ~sessions.late
    return [panes_of(plan, sessions.table.filter(pa.array(fired)))] if fired.any() else []


def _waiting(sessions: Merged, after: int | None) -> Waiting:
    ends = sessions.table.column(END).to_numpy()
    ends = ends[~reached(ends, after) & ~sessions.late]
    return Waiting(len(ends), int(ends.min()) if len(ends) else None)


def _late(plan: Plan, raw: pa.Table, sessions: Merged) -> list[pa.Table]:
    """The raw rows are the last of those that were merged."""
    late = sessions.late[sessions.of_rows[len(sessions.of_rows) - raw.num_rows :]]
    return [raw.select([*plan.carry, TIME]).filter(pa.array(late))] if late.any() else []


def _closed(plan: Plan, index: Index, after: int | None) -> frozenset[int]:
    held = index.held.items()
    return frozenset(number for number, each in held if reached(each.last_end + plan.lateness_us, after))


@dataclass(frozen=True, slots=True)
class _Rewriting:
    """Which blobs change: those that lose a session to a merge, and those that get one."""

    plan: Plan
    index: Index
    state: BucketState
    read: dict[int, pa.Table]
    sessions: Merged

    def result(self, after: int | None) -> tuple[dict[int, Written], frozenset[int]]:
        """New blobs, and those that are now empty."""
        ends = self.sessions.table.column(END).to_numpy()
        numbers = numbers_of(self.plan, ends)
        alive = ~reached(ends + self.plan.lateness_us, after)
        homes = np.repeat(np.array([*self.read], np.int64), [each.num_rows for each in self.read.values()])
        left = homes[self.sessions.changed[self.sessions.of_rows[: len(homes)]]]
        dirty = {*left.tolist(), *numbers[alive & self.sessions.changed].tolist()}
        kept = np.flatnonzero(alive & np.isin(numbers, np.array([*dirty], np.int64)))
        table = self.sessions.table.take(pa.array(kept))
        pieces = dict(pieces_of(table, numbers[kept]))
        puts = {}
        for number in dirty:
            written = write_sessions(self.plan, [*self._others(number), pieces.get(number, table.slice(0, 0))])
            if written is not None:
                puts[number] = written
        return puts, frozenset((dirty & self.index.held.keys()) - puts.keys())

    def _others(self, number: int) -> list[pa.Table]:
        """Sessions of a blob that was not read, because none of them was concerned."""
        if number in self.read or number not in self.index.held:
            return []
        return [read_sessions(self.plan, self.state, number, self.index.watermark)]
