"""Panes: what leaves when windows fire."""

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.windows.engine.partials import END, REPLACES, REVISION, START, key_names, results
from penstock.windows.engine.plan import Plan
from penstock.windows.engine.rows import one_array

ON_TIME, UPDATE = "on_time", "update"


def panes_of(plan: Plan, table: pa.Table) -> pa.Table:
    """Of a table of partials with bounds and revisions; revision 0 is the window's first pane, on time."""
    keys = [one_array(table.column(name)) for name in key_names(plan)]
    revisions = one_array(table.column(REVISION))
    pane = _names(revisions.to_numpy())
    replaces = [one_array(table.column(REPLACES))] if REPLACES in table.column_names else []
    bounds = [one_array(table.column(START)), one_array(table.column(END))]
    arrays = [*keys, *bounds, pane, revisions, *results(plan, table), *replaces]
    return pa.Table.from_arrays(arrays, schema=plan.pane_schema)


def _names(revisions: NDArray[np.int32]) -> pa.Array:
    kinds = pa.array((revisions > 0).astype(np.int8))
    return pa.DictionaryArray.from_arrays(kinds, pa.array([ON_TIME, UPDATE])).cast(pa.string())
