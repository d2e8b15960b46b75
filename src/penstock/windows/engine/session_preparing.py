"""Sessions, the mapper's part: partial sessions. Only the state knows whether an old event joins an open one."""

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.windows.engine.keys import codes_of
from penstock.windows.engine.partials import END, START, added, key_names
from penstock.windows.engine.plan import Plan
from penstock.windows.engine.rows import Rows
from penstock.windows.engine.runs import runs_of
from penstock.windows.kinds import Session


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
