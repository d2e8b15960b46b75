"""Sessions, the reducer's part."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.windows.engine.batch import Batch
from penstock.windows.engine.bucket import BucketState
from penstock.windows.engine.changes import Changes, Waiting, Written, waiting_in
from penstock.windows.engine.index import Index
from penstock.windows.engine.keys import Grouping
from penstock.windows.engine.panes import panes_of
from penstock.windows.engine.partials import END, REPLACES, REVISION, START, added, key_names, pieces_of
from penstock.windows.engine.plan import TIME, Plan
from penstock.windows.engine.rows import Rows
from penstock.windows.engine.session_merging import Merged, merge_sessions
from penstock.windows.engine.session_state import (
    columns_of,
    no_bounds,
    numbers_of,
    read_sessions,
    wanted,
    write_sessions,
)
from penstock.windows.engine.watermark import reached
from penstock.windows.kinds import Session


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
