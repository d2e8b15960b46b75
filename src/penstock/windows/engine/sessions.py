"""Session windows: the reducer's side, then the mapper's, then their state."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.windows.engine.bucket import (
    BlobInfo,
    Blobs,
    Changes,
    Index,
    Runs,
    Waiting,
    Written,
    closed,
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

# Stored and new sessions are merged where they overlap.


@dataclass(frozen=True, slots=True)
class Merged:
    """Sessions after a batch. `of_rows`: the session that each input row was merged into."""

    table: pa.Table
    changed: NDArray[np.bool_]
    late: NDArray[np.bool_]
    of_rows: NDArray[np.int64]


def merge_sessions(plan: Plan, table: pa.Table, stored: int, before: int | None) -> Merged:
    """Merge a table whose first `stored` rows are open sessions of the state, and the rest new ones.

    A session of new rows only that is already closed at `before` is late. A changed session fires with a higher
    revision than its parts did, is not on time if `before` has reached its end, and replaces their panes where the
    bounds differ.
    """
    keys = [one_array(table.column(name)) for name in key_names(plan)]
    starts, ends = table.column(START).to_numpy(), table.column(END).to_numpy()
    runs = runs_of(codes_of(keys, table.num_rows), starts, ends)
    groups, count = runs.grouping.groups, runs.grouping.count
    changed, known = np.zeros(count, bool), np.zeros(count, bool)
    changed[groups[stored:]] = True
    known[groups[:stored]] = True
    fired = reached(ends[:stored], before)
    revisions = np.zeros(count, np.int32)
    parts = one_array(table.column(REVISION)).to_numpy()[:stored] + (fired & changed[groups[:stored]])
    np.maximum.at(revisions, groups[:stored], parts.astype(np.int32))
    revisions = np.maximum(revisions, changed & reached(runs.ends, before))
    example = pa.array(runs.grouping.example)
    columns = {name: column.take(example) for name, column in zip(key_names(plan), keys, strict=True)}
    columns |= {START: pa.array(runs.starts), END: pa.array(runs.ends), REVISION: pa.array(revisions)}
    columns[REPLACES] = _replaced(table.slice(0, stored), runs, fired)
    columns |= merged(plan, table, runs.grouping, None)
    late = ~known & closed(plan, runs.ends, before)
    return Merged(pa.table(columns), changed, late, groups)


def _replaced(parts: pa.Table, runs: Runs, fired: NDArray[np.bool_]) -> pa.Array:
    """For each session, the panes it replaces when it fires: those its parts fired, and those its parts replace."""
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


# The mapper's side: partial sessions. Only the state can decide whether an old event joins an open session.


def open_below(plan: Plan, closed_to: int) -> int:
    """An event before this time would, on its own, be a closed session."""
    assert isinstance(plan.window, Session)
    return closed_to - plan.window.gap_us + 1


def session_partials(plan: Plan, rows: Rows) -> tuple[pa.Table, NDArray[np.int64]]:
    """For rows that are not late: keys, bounds and partials, and for each a row with its key."""
    assert isinstance(plan.window, Session)
    keys = [rows.columns[name] for name in plan.keys]
    runs = runs_of(codes_of(keys, len(rows)), rows.times, rows.times + plan.window.gap_us)
    example = pa.array(runs.grouping.example)
    columns = {name: column.take(example) for name, column in zip(key_names(plan), keys, strict=True)}
    columns |= {START: pa.array(runs.starts), END: pa.array(runs.ends)}
    return pa.table(columns | added(plan, rows, runs.grouping)), runs.grouping.example


# Open sessions in state: one blob per stretch of time that they end in, so that old ones need not be rewritten.

STRETCHES_OF_LATENESS = 16
"""Sessions that wait for late events are spread over about this many blobs; with fewer, each is rewritten too often."""

STRETCH_US_MIN = 60_000_000
"""Each blob costs a call to the state store, however small it is: a watermark lag of one hour makes sixty of them."""


def numbers_of(plan: Plan, ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """The blobs that sessions with these ends belong to."""
    return np.floor_divide(ends, blob_stretch(plan, plan.lateness_us))


def blob_stretch(plan: Plan, lateness_us: int) -> int:
    """The stretch of time that a blob is for; 0 for other windows, which have a blob each."""
    if not isinstance(plan.window, Session):
        return 0
    return max(STRETCH_US_MIN, plan.window.gap_us, lateness_us // STRETCHES_OF_LATENESS)


def columns_of(plan: Plan) -> list[str]:
    """The columns of a table of sessions."""
    return [*key_names(plan), START, END, REVISION, REPLACES, *partial_names(plan)]


def wanted(index: Index, starts: NDArray[np.int64], ends: NDArray[np.int64], after: int | None) -> list[int]:
    """The blobs with sessions that these intervals may join, or that `after` may fire."""
    order = np.argsort(starts)
    starts, ends = starts[order], np.maximum.accumulate(ends[order])
    return [
        number
        for number, info in index.blobs.items()
        if ((before_end := np.searchsorted(starts, info.last_end)) and ends[before_end - 1] > info.first_start)
        or (reached(info.first_end, after) and not reached(info.last_end, index.watermark))
    ]


def read_sessions(plan: Plan, table: pa.Table, before: int | None) -> pa.Table:
    """The sessions of a blob's table that are still open."""
    if REPLACES not in table.column_names:
        table = table.append_column(REPLACES, no_bounds(table.num_rows))
    gone = closed(plan, table.column(END).to_numpy(), before)
    table = table.select(columns_of(plan))
    return table.filter(pa.array(~gone)) if gone.any() else table


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
    info = BlobInfo(table.num_rows, len(data), int(starts.min()), int(ends.min()), int(ends.max()))
    return Written(data=data, info=info)


def advance_sessions(plan: Plan, index: Index, state: Blobs, batch: Batch, after: int | None) -> Changes:
    """Merges the batch with the sessions that are open at the index's watermark, then fires and purges by `after`."""
    raw = pa.concat_tables(batch.raw).combine_chunks() if batch.raw else None
    new = [*batch.partials, *([] if raw is None else [_single_events(plan, raw)])]
    read = _read(plan, index, state, new, after)
    # In a blob that was not read, either all sessions have fired or none is due yet.
    waiting = waiting_in((each for number, each in index.blobs.items() if number not in read), after)
    if not read and not new:
        return Changes(panes=[], late=[], puts={}, removed=_closed(plan, index, after), waiting=waiting)
    tables = [*read.values(), *(_unfired(plan, each) for each in new)]
    stored = sum(each.num_rows for each in read.values())
    sessions = merge_sessions(plan, pa.concat_tables(tables).combine_chunks(), stored, index.watermark)
    puts, emptied = _Rewriting(plan, index, state, read, sessions).result(after)
    return Changes(
        panes=_panes(plan, sessions, index.watermark, after),
        late=[] if raw is None else _late(plan, raw, sessions),
        puts=puts,
        removed=(_closed(plan, index, after) | emptied) - puts.keys(),
        waiting=waiting + _waiting(sessions, after),
    )


def _single_events(plan: Plan, raw: pa.Table) -> pa.Table:
    """Each row as a session of its own, to be merged with the others."""
    assert isinstance(plan.window, Session)
    columns = {name: raw.column(name).combine_chunks() for name in raw.column_names}
    times = columns[TIME].to_numpy()
    rows = Rows(columns, times)
    keys = {name: columns[key] for name, key in zip(key_names(plan), plan.keys, strict=True)}
    bounds = {START: columns[TIME], END: pa.array(times + plan.window.gap_us)}
    each = np.arange(len(times))
    return pa.table(keys | bounds | added(plan, rows, Grouping(each, each)))


def _unfired(plan: Plan, new: pa.Table) -> pa.Table:
    revisions = pa.array(np.zeros(new.num_rows, np.int32))
    table = new.append_column(REVISION, revisions).append_column(REPLACES, no_bounds(new.num_rows))
    return table.select(columns_of(plan))


def _read(plan: Plan, index: Index, state: Blobs, new: list[pa.Table], after: int | None) -> dict[int, pa.Table]:
    none = np.empty(0, np.int64)
    starts = np.concatenate([none, *(each.column(START).to_numpy() for each in new)])
    ends = np.concatenate([none, *(each.column(END).to_numpy() for each in new)])
    numbers = wanted(index, starts, ends, after)
    return {number: read_sessions(plan, read_state(state, number), index.watermark) for number in numbers}


def _panes(plan: Plan, sessions: Merged, before: int | None, after: int | None) -> list[pa.Table]:
    ends = sessions.table.column(END).to_numpy()
    fired = reached(ends, after) & (~reached(ends, before) | sessions.changed) & ~sessions.late
    return [panes_of(plan, sessions.table.filter(pa.array(fired)))] if fired.any() else []


def _waiting(sessions: Merged, after: int | None) -> Waiting:
    ends = sessions.table.column(END).to_numpy()
    ends = ends[~reached(ends, after) & ~sessions.late]
    return Waiting(len(ends), int(ends.min()) if len(ends) else None)


def _late(plan: Plan, raw: pa.Table, sessions: Merged) -> list[pa.Table]:
    """The raw rows were the last in the merged table."""
    late = sessions.late[sessions.of_rows[len(sessions.of_rows) - raw.num_rows :]]
    return [raw.select([*plan.carry, TIME]).filter(pa.array(late))] if late.any() else []


def _closed(plan: Plan, index: Index, after: int | None) -> frozenset[int]:
    blobs = index.blobs.items()
    return frozenset(number for number, each in blobs if closed(plan, each.last_end, after))


@dataclass(frozen=True, slots=True)
class _Rewriting:
    """The blobs that change: those that lose a session to a merge, and those that get one."""

    plan: Plan
    index: Index
    state: Blobs
    read: dict[int, pa.Table]
    sessions: Merged

    def result(self, after: int | None) -> tuple[dict[int, Written], frozenset[int]]:
        """New blobs, and those that are now empty."""
        ends = self.sessions.table.column(END).to_numpy()
        numbers = numbers_of(self.plan, ends)
        alive = ~closed(self.plan, ends, after)
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
        return puts, frozenset((dirty & self.index.blobs.keys()) - puts.keys())

    def _others(self, number: int) -> list[pa.Table]:
        """Sessions of a blob that was not read because the batch does not affect them."""
        if number in self.read or number not in self.index.blobs:
            return []
        return [read_sessions(self.plan, read_state(self.state, number), self.index.watermark)]
