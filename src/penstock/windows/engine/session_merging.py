"""Sessions of the state and new ones become one where they overlap."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.windows.engine.keys import codes_of
from penstock.windows.engine.partials import END, REPLACES, REVISION, START, key_names, merged
from penstock.windows.engine.plan import BOUNDS, Plan
from penstock.windows.engine.rows import one_array
from penstock.windows.engine.runs import Runs, runs_of
from penstock.windows.engine.watermark import reached


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
