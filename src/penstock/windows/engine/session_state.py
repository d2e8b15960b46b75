"""Open sessions in state: a blob for each stretch of time that they end in, so that old ones need not be touched."""

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.windows.engine.bucket import BucketState
from penstock.windows.engine.changes import Written
from penstock.windows.engine.index import Held, Index
from penstock.windows.engine.partials import END, REPLACES, REVISION, START, key_names, partial_names
from penstock.windows.engine.plan import BOUNDS, Plan
from penstock.windows.engine.stored import read_state, write_state
from penstock.windows.engine.watermark import reached
from penstock.windows.kinds import Session

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
