"""The mapper's part: rows become one partial for each key and slice of time, before they are shuffled."""

import numpy as np
import pyarrow as pa

from penstock.core.errors import RequestError
from penstock.windows.engine import blob
from penstock.windows.engine.bucket import Prepared
from penstock.windows.engine.fixed import late_below, slice_partials
from penstock.windows.engine.plan import TIME, Plan
from penstock.windows.engine.rows import LATE, PARTIALS, RAW, Rows, pieces_of
from penstock.windows.engine.sessions import open_below, session_partials
from penstock.windows.kinds import TIME_MAX_US, TIME_MIN_US, Session


def prepare(plan: Plan, table: pa.Table | pa.RecordBatch, before: int | None) -> Prepared:
    """Blobs for `advance`. The table's columns: t (int64 µs, not null), b (int32), and those of `plan.schema`.

    Late rows are in the blobs, too, so that they pass through the state with the rest of their batch, once. Raises
    RequestError for times that cannot be written as dates.
    """
    rows = Rows.of(plan, table)
    if not len(rows):
        return Prepared(partials={})
    if rows.times.min() < TIME_MIN_US or rows.times.max() > TIME_MAX_US:
        raise RequestError("an event time is before year 1 or after year 9999", "Filter such rows, or mend their time.")
    behind = np.zeros(len(rows), bool) if before is None else rows.times < _behind_below(plan, before)
    partials = session_partials if isinstance(plan.window, Session) else slice_partials
    pieces: dict[int, dict[str, pa.Table]] = {}
    for bucket, piece in pieces_of(*partials(plan, rows.where(~behind))):
        pieces.setdefault(bucket, {})[PARTIALS] = piece
    name, columns = _judged_later(plan)
    rest = rows.where(behind)
    for bucket, piece in pieces_of(rest.table(columns), rest.buckets):
        pieces.setdefault(bucket, {})[name] = piece
    return Prepared(partials={bucket: _blob(plan, tables, before) for bucket, tables in pieces.items()})


def _behind_below(plan: Plan, before: int) -> int:
    """Rows before this time are late, or may be: all of them at the end of time."""
    if before >= TIME_MAX_US:
        return TIME_MAX_US + 1
    if plan.late_rule == "strict":
        return before
    return open_below(plan, before) if isinstance(plan.window, Session) else late_below(plan, before)


def _judged_later(plan: Plan) -> tuple[str, tuple[str, ...]]:
    """How rows that are behind travel: as late ones, or whole, if the state must judge them."""
    if isinstance(plan.window, Session) and plan.late_rule == "window":
        return RAW, (*plan.columns, TIME)
    return LATE, (*plan.carry, TIME)


def _blob(plan: Plan, tables: dict[str, pa.Table], before: int | None) -> bytes:
    dropped = tables.pop(LATE).num_rows if plan.late == "drop" and LATE in tables else 0
    return blob.pack(tables, {"before": before, "dropped": dropped})
