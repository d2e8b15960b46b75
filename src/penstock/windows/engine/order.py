"""Events in the order of their times: a bucket buffers them until the watermark has passed them. Pure, as windows are.

`prepare_order` runs where events are read, `advance_order` where state is. Events before the watermark of the first cut
are late; then all those before the watermark of the second are emitted. So what a batch emits is earlier than all that
later batches emit.

The state of a bucket is a set of *pieces*: tables of at most about `PIECE_BYTES`, sorted. A piece is not rewritten when
some of its events are emitted: those before the bucket's watermark no longer count. Small pieces are merged when new
events come, and what is left of a piece that is half emitted counts as new, so that the state is at most about twice as
large as the events in it, and has few pieces.
"""

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import msgpack
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.core.errors import LimitExceeded, RequestError
from penstock.windows.engine.bucket import (
    BucketState,
    Prepared,
    Stats,
    check_continued,
    packed_state,
    stored_table,
    unreadable,
)
from penstock.windows.engine.plan import BUCKET, BUCKET_BYTES_MAX, TIME, hash_of, late_schema
from penstock.windows.engine.tables import (
    LATE,
    PARTIALS,
    check_times,
    late_table,
    one_array,
    pieces_of,
    prepared_blob,
    read_batch,
)
from penstock.windows.groups import order_numbers
from penstock.windows.kinds import TIME_MAX_US, TIME_MIN_US, Late

ARRIVAL = "n"
"""A column of prepared and stored tables: a number that orders events which nothing else does, as they were read. In
the state it is a number in the bucket."""

PIECE_BYTES = 1 << 20
"""The size of a piece before it is compressed. A batch reads a piece for each time that the watermark passes, and all
that it has of the events before the piece's last one."""

EMIT_BYTES = 32 << 20
"""Events are sorted and emitted in tables of about this size, so that not all of them are in memory at once when the
watermark passes many."""

_VERSION = 1
_WHAT = "the state of these ordered events"


@dataclass(frozen=True, kw_only=True)
class OrderPlan:
    """`schema` has the types of all columns of the table that is prepared, except t and b. `rows` are those that are
    handed on, with their names in the state; `ties` those, named as in the state, that order events of the same time;
    `carry` those that late rows keep. `meaning` is what else the state depends on.
    """

    schema: pa.Schema
    rows: Mapping[str, str]
    ties: tuple[str, ...]
    buckets: int
    carry: tuple[str, ...] = ()
    late: Late = "keep"
    bucket_bytes_max: int = BUCKET_BYTES_MAX
    meaning: tuple[Any, ...] = ()

    @cached_property
    def row_schema(self) -> pa.Schema:
        """What is emitted."""
        return pa.schema([pa.field(stored, self.schema.field(name).type) for name, stored in self.rows.items()])

    @cached_property
    def state_schema(self) -> pa.Schema:
        """What is stored, sorted by t, the ties, and n."""
        return pa.schema([*self.row_schema, pa.field(TIME, pa.int64()), pa.field(ARRIVAL, pa.int64())])

    @cached_property
    def late_schema(self) -> pa.Schema:
        return late_schema(self.schema, self.carry)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of what no state survives a change of. Columns are not in it."""
        return hash_of([self.buckets, *self.meaning])


def passed_below(watermark: int | None) -> int:
    """Events before this time were passed by the watermark; at the end of time, that is all of them."""
    if watermark is None:
        return TIME_MIN_US
    return TIME_MAX_US + 1 if watermark >= TIME_MAX_US else watermark


# Where events are read.


def prepare_order(plan: OrderPlan, table: pa.Table, before: int | None, number: int) -> Prepared:
    """Blobs for `advance_order`. The table's columns: t (int64 µs, not null), b (int32), and those of `plan.schema`;
    `number` is that of its first row. Late rows are in the blobs too, unless they are dropped. Raises RequestError for
    times that cannot be written as dates.
    """
    if not table.num_rows:
        return Prepared(partials={})
    times, buckets = (one_array(table.column(name)).to_numpy() for name in (TIME, BUCKET))
    check_times(times)
    behind = times < passed_below(before)
    table = table.append_column(ARRIVAL, pa.array(np.arange(number, number + table.num_rows)))
    pieces: dict[int, dict[str, pa.Table]] = {}
    for name, columns, schema, chosen in (
        (PARTIALS, (*plan.rows, TIME, ARRIVAL), plan.state_schema, ~behind),
        (LATE, (*plan.carry, TIME), pa.schema([*plan.late_schema][:-2]), behind),
    ):
        rows = table.select(columns).rename_columns(schema.names)
        rows, numbers = (rows, buckets) if chosen.all() else (rows.filter(pa.array(chosen)), buckets[chosen])
        for bucket, piece in pieces_of(rows.cast(schema), numbers):
            pieces.setdefault(bucket, {})[name] = piece
    return Prepared(partials={bucket: prepared_blob(plan.late, each, before) for bucket, each in pieces.items()})


# The index of a bucket's state.


@dataclass(frozen=True, slots=True)
class Piece:
    """A stored table."""

    rows: int
    waiting: int
    """Those of them that have not been emitted: the last ones."""
    size: int
    """As stored, in bytes."""
    table_bytes: int
    """In memory."""
    first: int
    """The time of the first row that waits."""
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Index:
    """Pieces by number; the watermark at the end of the last batch; late rows since the state was created."""

    watermark: int | None
    late_kept: int = 0
    late_dropped: int = 0
    arrived: int = 0
    """The rows that have ever been buffered: the next one's number."""
    pieces: Mapping[int, Piece] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return sum(each.size for each in self.pieces.values())


def _load(plan: OrderPlan, state: BucketState, before: int | None) -> _Index:
    """Raises RequestError if the plan cannot continue the state, or if it does not end where the batch starts."""
    data = state.index()
    if data is None:
        return _Index(watermark=before)
    version, *fields = msgpack.unpackb(data, strict_map_key=False, use_list=False)
    if version != _VERSION:
        raise unreadable(_WHAT, version, _VERSION)
    fingerprint, watermark, kept, dropped, arrived, pieces = fields
    if fingerprint != plan.fingerprint:
        raise RequestError(
            f"{_WHAT} was written with other keys or buckets", "Start from scratch: penstock pipeline reset NAME"
        )
    check_continued(_WHAT, watermark, before)
    return _Index(
        watermark=watermark,
        late_kept=kept,
        late_dropped=dropped,
        arrived=arrived,
        pieces={number: Piece(*each) for number, each in pieces.items()},
    )


def _dump(plan: OrderPlan, index: _Index) -> bytes:
    pieces = {
        number: (each.rows, each.waiting, each.size, each.table_bytes, each.first, each.last)
        for number, each in index.pieces.items()
    }
    counted = (index.watermark, index.late_kept, index.late_dropped, index.arrived)
    data: bytes = msgpack.packb((_VERSION, plan.fingerprint, *counted, pieces))
    return data


# Where state is.


@dataclass(frozen=True, slots=True, kw_only=True)
class Ordered:
    """What a batch has left in a bucket, and its late rows as `plan.late_schema` (none with late="drop")."""

    late: pa.Table
    stats: Stats


def advance_order(
    plan: OrderPlan, bucket: int, state: BucketState, blobs: Iterable[bytes], before: int | None, after: int | None
) -> Generator[pa.Table, None, Ordered]:
    """Apply the blobs that `prepare_order` returned for this bucket in this batch, in any order. Yields the rows that
    the watermark has passed, in order, as `plan.row_schema`.

    Call it once per batch, even without blobs, and to its end: it changes the state last. Raises LimitExceeded for a
    bucket that exceeds the plan's limit, RequestError for a state that this plan or this batch does not continue.
    """
    index = _load(plan, state, before)
    batch = read_batch(blobs, before)
    arrived = _arrived(plan, batch.partials, index.arrived)
    buffer = _Buffer(plan, index, state, passed_below(after))
    now, later = _split(arrived, buffer.below)
    for table in buffer.emitted(now):
        yield table.select(plan.row_schema.names)
    puts = buffer.stored(later)
    late_rows = sum(table.num_rows for table in batch.late)
    following = replace(
        index,
        watermark=after,
        late_kept=index.late_kept + late_rows,
        late_dropped=index.late_dropped + batch.dropped,
        arrived=index.arrived + arrived.num_rows,
        pieces=buffer.pieces | {number: piece for number, (piece, _) in puts.items()},
    )
    _check_size(plan, bucket, following)
    for number, (_, data) in puts.items():
        state.put(number, data)
    for number in index.pieces.keys() - following.pieces.keys():
        state.remove(number)
    if following != index:
        state.put_index(_dump(plan, following))
    late = late_table(plan.late_schema, batch.late, before)
    return Ordered(late=late, stats=_stats(following))


def _arrived(plan: OrderPlan, tables: Sequence[pa.Table], number: int) -> pa.Table:
    """The rows of a batch, sorted, with numbers from this one on."""
    table = _sorted(plan, tables)
    numbers = pa.array(np.arange(number, number + table.num_rows))
    return table.set_column(table.column_names.index(ARRIVAL), ARRIVAL, numbers)


def _check_size(plan: OrderPlan, bucket: int, index: _Index) -> None:
    if index.size > plan.bucket_bytes_max:
        raise LimitExceeded(
            f"the events of bucket {bucket} that wait for the watermark use {index.size:,} bytes, the limit is "
            f"{plan.bucket_bytes_max:,}",
            "See what blocks the watermark (penstock status): set an idle_timeout, or a smaller max_disorder. Or use "
            "more buckets, or raise bucket_bytes_max.",
        )


def _stats(index: _Index) -> Stats:
    first = min((each.first for each in index.pieces.values()), default=None)
    due = None if first is None else min(first + 1, TIME_MAX_US)
    return Stats(
        open_windows=0,
        keys=0,
        state_bytes=index.size,
        late_kept=index.late_kept,
        late_dropped=index.late_dropped,
        waiting=0,
        first_end=due,
        next_time=due,
        buffered=sum(each.waiting for each in index.pieces.values()),
    )


class _Buffer:
    """A bucket's pieces, while a batch emits all rows before `below`."""

    def __init__(self, plan: OrderPlan, index: _Index, state: BucketState, below: int) -> None:
        self.below = below
        self.pieces = dict(index.pieces)
        """Those that stay."""
        self._plan = plan
        self._state = state
        self._since = passed_below(index.watermark)
        """Rows before it were emitted by earlier batches."""
        self._next = max(index.pieces, default=-1) + 1
        self._left: list[pa.Table] = []
        """Rows that wait and are in no piece."""

    def emitted(self, now: pa.Table) -> Iterator[pa.Table]:
        """These sorted rows and the stored ones before `below`, in order. Of the pieces, only those that overlap are
        read at the same time.
        """
        due = sorted((each.first, number) for number, each in self.pieces.items() if each.first < self.below)
        ready, size_wanted = [now], EMIT_BYTES
        for place, (_, number) in enumerate(due):
            ready.append(self._take(number))
            if place + 1 < len(due) and sum(each.nbytes for each in ready) >= size_wanted:
                emitted, rest = _split(_sorted(self._plan, ready), due[place + 1][0])
                yield emitted
                ready, size_wanted = [rest], max(EMIT_BYTES, 2 * rest.nbytes)
        yield _sorted(self._plan, ready)

    def _take(self, number: int) -> pa.Table:
        """The rows of a piece that are emitted now. The piece stays if more than half of its rows do."""
        piece = self.pieces.pop(number)
        ready, rest = _split(self._read(number), self.below)
        if rest.num_rows * 2 > piece.rows:
            first = rest.column(TIME)[0].as_py()
            self.pieces[number] = replace(piece, waiting=rest.num_rows, first=first)
        else:
            self._left.append(rest)
        return ready

    def _read(self, number: int) -> pa.Table:
        """The rows of a piece that no earlier batch has emitted."""
        table = stored_table(self._state, number, _WHAT)
        return _with_columns(self._plan, _split(table, self._since)[1])

    def stored(self, later: pa.Table) -> dict[int, tuple[Piece, bytes]]:
        """New pieces, of these rows and of those that `emitted` has left over. None has the number of an old one."""
        tables = [table for table in (later, *self._left) if table.num_rows]
        rows = sum(table.num_rows for table in tables)
        if not rows:
            return {}
        # As a binary counter does: a row is rewritten when the piece that it is in grows by half at least.
        small = [(each.waiting, name) for name, each in self.pieces.items() if each.table_bytes < PIECE_BYTES // 2]
        for waiting, name in sorted(small):
            if waiting > 2 * rows:
                break
            del self.pieces[name]
            tables.append(_split(self._read(name), self.below)[1])
            rows += waiting
        return dict(enumerate(map(_written, _cut(_sorted(self._plan, tables))), self._next))


def _cut(table: pa.Table) -> Iterator[pa.Table]:
    """In pieces of equal size."""
    pieces = -(-table.nbytes // PIECE_BYTES)
    rows = -(-table.num_rows // max(pieces, 1))
    for start in range(0, table.num_rows, rows):
        yield table.slice(start, rows)


def _written(table: pa.Table) -> tuple[Piece, bytes]:
    data = packed_state(table)
    times = table.column(TIME)
    first, last = times[0].as_py(), times[-1].as_py()
    return Piece(table.num_rows, table.num_rows, len(data), table.nbytes, first, last), data


def _split(table: pa.Table, time: int) -> tuple[pa.Table, pa.Table]:
    """The rows of a sorted table before the time, and the others."""
    place = int(np.searchsorted(one_array(table.column(TIME)).to_numpy(), time))
    return table.slice(0, place), table.slice(place)


def _sorted(plan: OrderPlan, tables: Sequence[pa.Table]) -> pa.Table:
    """All rows, by time, ties and number."""
    table = pa.concat_tables([plan.state_schema.empty_table(), *tables]).combine_chunks()
    order = _order(plan, table)
    return table if order is None else table.take(pa.array(order))


def _order(plan: OrderPlan, table: pa.Table) -> NDArray[np.int64] | None:
    """None if the rows are in order already."""
    keys = [order_numbers(one_array(table.column(name))) for name in (TIME, *plan.ties, ARRIVAL)]
    if _is_sorted(keys):
        return None
    return np.lexsort(keys[::-1])


def _is_sorted(keys: Sequence[NDArray[np.int64]]) -> bool:
    undecided = np.ones(max(len(keys[0]) - 1, 0), bool)
    for key in keys:
        if np.any(undecided & (key[1:] < key[:-1])):
            return False
        undecided &= key[1:] == key[:-1]
    return True


def _with_columns(plan: OrderPlan, table: pa.Table) -> pa.Table:
    """Rows that another plan may have stored: columns that it did not have are null, those of no use are left out."""
    if table.schema.equals(plan.state_schema):
        return table
    columns = []
    for each in plan.state_schema:
        if each.name not in table.column_names:
            columns.append(pa.nulls(table.num_rows, each.type))
            continue
        column = table.column(each.name)
        if column.type != each.type:
            raise RequestError(
                f"{_WHAT} has the column {each.name} as {column.type}, not {each.type}",
                "Give the column another name, or start from scratch: penstock pipeline reset NAME",
            )
        columns.append(column)
    return pa.table(columns, schema=plan.state_schema)
