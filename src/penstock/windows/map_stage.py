"""The stage before the shuffle: rows become partials, one for each key and slice of time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc

from penstock.spark.dead_letters.column import LETTER, letter_arrow
from penstock.spark.python_worker import coordinator, freeze, hinted
from penstock.windows.engine import TIME, prepare
from penstock.windows.operator import CARRIED, Kind, Operator, as_batch, parted, written

ROWS_AT_ONCE = 1 << 20
"""Rows that are brought down to partials together: the more of them, the fewer partials a key has."""

BYTES_AT_ONCE = 128 << 20
"""The same for wide rows: a task holds a few copies of them."""

_ENTERING = pa.schema(
    [
        ("bucket", pa.int32()),
        ("kind", pa.int32()),
        ("data", pa.binary()),
        ("epoch", pa.int64()),
        ("before", pa.int64()),
        ("watermark", pa.int64()),
    ]
)


def map_rows(operator: Operator, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What one task reads, as rows for the state."""
    freeze()
    with hinted():
        mapper = _Mapper(operator)
        waiting: list[pa.RecordBatch] = []
        rows = size = 0
        for batch in batches:
            waiting.append(batch)
            rows, size = rows + batch.num_rows, size + batch.nbytes
            if rows >= ROWS_AT_ONCE or size >= BYTES_AT_ONCE:
                yield from mapper.entering(pa.Table.from_batches(waiting))
                waiting, rows, size = [], 0, 0
        if rows:
            yield from mapper.entering(pa.Table.from_batches(waiting))


class _Mapper:
    def __init__(self, operator: Operator) -> None:
        self._operator = operator

    @cached_property
    def _before(self) -> int | None:
        """The watermark that decides which of the batch's events are late: the same for all of its tasks."""
        worker = coordinator(self._operator.worker)
        return worker.running(self._operator.pipeline, self._operator.generation).before

    def entering(self, table: pa.Table) -> Iterator[pa.RecordBatch]:
        if LETTER in table.column_names:
            letters, table = _parted(table, table.column(LETTER).is_valid())
            passing = letters.column(LETTER).cast(letter_arrow())
            yield from self._passing(Kind.LETTERS, pa.table({LETTER: passing}))
        if table.column(TIME).null_count:
            timeless, table = _parted(table, table.column(TIME).is_null())
            names = [f"{CARRIED}{number}" for number in range(len(self._operator.carried))]
            yield from self._timeless(timeless.select(names))
        if table.num_rows:
            partials = prepare(self._operator.plan, table, self._before).partials
            for bucket, blob in partials.items():
                yield self._row(bucket, Kind.PARTIALS, blob)

    def _passing(self, kind: Kind, table: pa.Table) -> Iterator[pa.RecordBatch]:
        """Through whichever bucket: with the state's rows they are part of the batch once, however often it is run."""
        for number, data in enumerate(written(table.combine_chunks())):
            yield self._row(number % self._operator.plan.buckets, kind, data)

    def _timeless(self, table: pa.Table) -> Iterator[pa.RecordBatch]:
        if not self._operator.repeats:
            yield from self._passing(Kind.TIMELESS, table)
            return
        for bucket, piece in parted(self._operator, table, 0):
            yield from (self._row(bucket, Kind.TIMELESS, data) for data in written(piece))

    def _row(self, bucket: int, kind: Kind, data: bytes) -> pa.RecordBatch:
        return as_batch(_ENTERING, [(self._operator.ids[bucket], int(kind), data, None, self._before, None)])


def _parted(table: pa.Table, chosen: pa.ChunkedArray) -> tuple[pa.Table, pa.Table]:
    """Those rows, and the others."""
    return table.filter(chosen), table.filter(pc.invert(chosen))
