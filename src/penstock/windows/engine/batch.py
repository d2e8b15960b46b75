"""One batch: `prepare` turns rows into partials before the shuffle, `advance` applies them to a bucket's state."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.core.errors import LimitExceeded
from penstock.windows.engine import bucket as indices
from penstock.windows.engine.bucket import (
    Advanced,
    BlobInfo,
    BucketState,
    Changes,
    Index,
    Prepared,
    Stats,
    Waiting,
    reached,
)
from penstock.windows.engine.fixed import advance_fixed, late_below, slice_partials
from penstock.windows.engine.plan import BUCKET, TIME, Plan
from penstock.windows.engine.sessions import advance_sessions, open_below, session_partials
from penstock.windows.engine.state_takeover import take_over
from penstock.windows.engine.tables import (
    LATE,
    PARTIALS,
    RAW,
    Rows,
    check_times,
    key_names,
    late_table,
    one_array,
    pieces_of,
    prepared_blob,
    read_batch,
)
from penstock.windows.kinds import TIME_MAX_US, TIME_MIN_US, Session


def advance(
    plan: Plan, bucket: int, state: BucketState, partials: Iterable[bytes], before: int | None, after: int | None
) -> Advanced:
    """Apply the blobs that `prepare` returned for this bucket in this batch, in any order, then fire and purge.

    Call it once per batch, even without blobs. If it raises, the state is unchanged: LimitExceeded for a bucket that
    exceeds the plan's limit or a sum that does not fit its type; RequestError for a state that this plan or this
    batch does not continue.
    """
    stored = indices.load(plan, state, before)
    taken = take_over(plan, stored, state)
    plan, index = taken.plan, taken.index
    batch = taken.adapted(read_batch(partials, before))
    advance_kind = advance_sessions if isinstance(plan.window, Session) else advance_fixed
    changes = advance_kind(plan, index, taken.state, batch, after)
    late = [*batch.late, *changes.late]
    rows = sum(table.num_rows for table in late)
    kept, dropped = (rows, batch.dropped) if plan.late == "keep" else (0, batch.dropped + rows)
    following = Index(
        layout=index.layout,
        closed_to=plan.closed_to(after),
        blobs=_blobs(index, changes),
        watermark=after,
        late_kept=index.late_kept + kept,
        late_dropped=index.late_dropped + dropped,
    )
    _check_size(plan, bucket, following)
    _write(plan, state, taken.with_rewritten(changes, stored), stored, following)
    panes = pa.concat_tables([plan.pane_schema.empty_table(), *changes.panes])
    stats = _stats(plan, following, changes.waiting)
    return Advanced(panes=panes, late=late_table(plan.late_schema, late if kept else [], before), stats=stats)


def _blobs(index: Index, changes: Changes) -> Mapping[int, BlobInfo]:
    blobs = {number: each for number, each in index.blobs.items() if number not in changes.removed}
    return blobs | {number: written.info for number, written in changes.puts.items()}


def _check_size(plan: Plan, bucket: int, index: Index) -> None:
    if index.size > plan.bucket_bytes_max:
        raise LimitExceeded(
            f"the windows of bucket {bucket} use {index.size:,} bytes, the limit is {plan.bucket_bytes_max:,}",
            "Use more buckets, shorter windows or less lateness, or raise the limit.",
        )


def _write(plan: Plan, state: BucketState, changes: Changes, index: Index, following: Index) -> None:
    for number, written in changes.puts.items():
        state.put(number, written.data)
    for number in changes.removed:
        state.remove(number)
    if following != index:
        state.put_index(indices.dump(plan, following))


def _stats(plan: Plan, index: Index, waiting: Waiting) -> Stats:
    fired = [each.last_end for each in index.blobs.values() if reached(each.last_end, index.watermark)]
    times = [end + plan.lateness_us for end in fired] + ([] if waiting.first_end is None else [waiting.first_end])
    return Stats(
        open_windows=index.rows if isinstance(plan.window, Session) else len(index.blobs),
        keys=index.rows,
        state_bytes=index.size,
        late_kept=index.late_kept,
        late_dropped=index.late_dropped,
        waiting=waiting.count,
        first_end=waiting.first_end,
        next_time=min(times, default=None),
    )


# The mapper's side: rows are reduced to one partial per key and slice of time before the shuffle.


BucketsOf: TypeAlias = Callable[[Sequence[pa.Array], int], NDArray[np.int32]]
"""From the columns of a key, and how many rows they have, to the buckets of these."""


def prepare(
    plan: Plan, table: pa.Table | pa.RecordBatch, before: int | None, buckets_of: BucketsOf | None = None
) -> Prepared:
    """Blobs for `advance`. The table's columns: t (int64 µs, not null), b (int32), and those of `plan.schema`. Without
    b, `buckets_of` computes it: once for each partial, and not for each row.

    The blobs include late rows, so that these pass through the state once, with the rest of their batch. Raises
    RequestError for times that cannot be written as dates.
    """
    times = one_array(table.column(TIME)).to_numpy()
    if not len(times):
        return Prepared(partials={})
    check_times(times)
    behind_below = TIME_MIN_US if before is None else _behind_below(plan, before)
    pieces: dict[int, dict[str, pa.Table]] = {}
    if times.min() < behind_below:
        behind = pa.array(times < behind_below)
        name, columns = _judged_later(plan)
        late = table.filter(behind)
        numbers = _numbers(late) if buckets_of is None else buckets_of(_columns(late, plan.keys), late.num_rows)
        for bucket, piece in pieces_of(Rows.of(plan, late, columns).table((*columns, TIME)), numbers):
            pieces.setdefault(bucket, {})[name] = piece
        given = [BUCKET] if buckets_of is None else []
        table = table.select([*plan.reduced, TIME, *given]).filter(pc.invert(behind))
    partials = session_partials if isinstance(plan.window, Session) else slice_partials
    found, examples = partials(plan, Rows.of(plan, table, plan.reduced))
    if buckets_of is None:
        numbers = _numbers(table)[examples]
    else:
        numbers = buckets_of(_columns(found, key_names(plan)), found.num_rows)
    for bucket, piece in pieces_of(found, numbers):
        pieces.setdefault(bucket, {})[PARTIALS] = piece
    return Prepared(partials={bucket: prepared_blob(plan.late, each, before) for bucket, each in pieces.items()})


def _columns(table: pa.Table | pa.RecordBatch, names: Iterable[str]) -> list[pa.Array]:
    return [one_array(table.column(name)) for name in names]


def _numbers(table: pa.Table | pa.RecordBatch) -> NDArray[np.int32]:
    """The bucket of each row."""
    found: NDArray[np.int32] = one_array(table.column(BUCKET)).to_numpy()
    return found


def _behind_below(plan: Plan, before: int) -> int:
    """Rows before this time are late or may be; at the end of time, that is all of them."""
    if before >= TIME_MAX_US:
        return TIME_MAX_US + 1
    if plan.late_rule == "strict":
        return before
    closed_to = plan.closed_to(before)
    assert closed_to is not None
    return open_below(plan, closed_to) if isinstance(plan.window, Session) else late_below(plan, closed_to)


def _judged_later(plan: Plan) -> tuple[str, tuple[str, ...]]:
    """How rows behind the watermark are passed on: as late rows, or unreduced if the state must decide whether they are
    late.
    """
    if isinstance(plan.window, Session) and plan.late_rule == "window":
        return RAW, plan.columns
    return LATE, plan.carry
