"""Tumbling and sliding windows, the mapper's part: a partial for each key and slice."""

import numpy as np
import pyarrow as pa

from penstock.windows.engine.keys import codes_of, codes_of_integers, combined, grouped
from penstock.windows.engine.partials import START, added, key_names
from penstock.windows.engine.plan import Plan
from penstock.windows.engine.rows import Rows
from penstock.windows.kinds import Session


def late_below(plan: Plan, before: int) -> int:
    """The start of the first window that is open: an event before it has none."""
    window = plan.window
    assert not isinstance(window, Session)
    closed = (before - plan.lateness_us - window.size_us - window.offset_us) // window.slide_us
    return (closed + 1) * window.slide_us + window.offset_us


def slice_partials(plan: Plan, rows: Rows) -> tuple[pa.Table, np.ndarray]:
    """Of rows that are not late: keys, start of the slice, partials; and their buckets."""
    window = plan.window
    assert not isinstance(window, Session)
    slices = np.floor_divide(rows.times - window.offset_us, window.slice_us)
    keys = [rows.columns[name] for name in plan.keys]
    grouping = grouped(combined(codes_of(keys, len(rows)), codes_of_integers(slices)))
    example = pa.array(grouping.example)
    columns = {name: column.take(example) for name, column in zip(key_names(plan), keys, strict=True)}
    columns[START] = pa.array(slices[grouping.example] * window.slice_us + window.offset_us)
    return pa.table(columns | added(plan, rows, grouping)), rows.buckets[grouping.example]
