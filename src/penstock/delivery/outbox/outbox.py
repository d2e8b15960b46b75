"""What one sink retains of streams whose breaker is tripped: a segment of the pipeline, and an index of its records.

    hold · EPOCH · rows FIRST … END · STREAM     stored events, as they were in the epoch's output
    gone · EPOCH · END · STREAM                  no data: these rows became dead letters in the same append
    left · STREAM · END                          no data: the stream's first record, which ends there, was sent
    move · EPOCH · rows FIRST … END · STREAM     the record of these rows again: it is here now

Each is one append, identified by its head. Rows of an epoch that are retained or dead letters are skipped when the
epoch is delivered again, also after a crash. The segment is truncated up to the oldest record that is retained or
belongs to an epoch that may be delivered again. Records that stay long are moved to the end, so that the space of what
was sent after them is freed.
"""

import asyncio
from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgpack

from penstock.connectors.api import StreamRef
from penstock.coordinator.deliveries import parked_port
from penstock.coordinator.ledger import NO_QUOTA
from penstock.coordinator.records import Records
from penstock.core.errors import NoRoom
from penstock.core.types import Position
from penstock.delivery.outbox.epochs import EpochName
from penstock.delivery.outbox.rows import WANTED, Row, Rows, encode_dead_letters, encode_rows, rows_of
from penstock.protocol.segment.frame import EVENT, HEADER
from penstock.protocol.stored.bulk import decode
from penstock.protocol.stored.names import OUTBOX_PREFIX, Kind, output_segment
from penstock.store.journal import Durability
from penstock.store.plan import Addition
from penstock.store.store import SegmentStore

APPEND_BYTES = 4 << 20
"""Limit of one record, except for a single row that is larger."""

SLACK_BYTES = 8 << 20
"""The segment may exceed twice the retained bytes by this much; then its oldest records are moved to its end."""

_MOVED_BYTES = 4 << 20
"""Bytes moved between two epochs, but at least one record: a few milliseconds of work."""

_NOTHING = HEADER.pack(EVENT, 0)
"""An empty event, which readers skip: a record needs at least one byte of data."""

_HEADS_BYTES = 1 << 20
"""Heads read at once when a worker starts."""


@dataclass(frozen=True, slots=True)
class Storage:
    """The parts of the worker's store that outboxes need."""

    store: SegmentStore
    records: Records
    durability: Durability

    async def durable(self, position: Position) -> None:
        """Return when the journal is durable up to this position, and can be read."""
        done = asyncio.Event()
        self.durability.after(position, done.set)
        await done.wait()


@dataclass(frozen=True, slots=True)
class OutboxRecord:
    start: int
    end: int
    epoch: str
    first: int
    """The numbers of its rows in the epoch: [first, after)."""
    after: int
    position: Position
    """In the journal; the record can be read when that is durable."""

    @property
    def size(self) -> int:
        return self.end - self.start

    @property
    def place(self) -> tuple[EpochName, int]:
        """Its place among its stream's records."""
        return EpochName.parse(self.epoch), self.first


class Outbox:
    """The outbox of one sink of one pipeline. Belongs to the thread that owns the store."""

    def __init__(self, storage: Storage, pipeline: str, sink: str) -> None:
        store = storage.store
        self.segment = output_segment(pipeline, f"{OUTBOX_PREFIX}{sink}")
        self._dead_letters = output_segment(pipeline, parked_port(sink))
        self._storage = storage
        self._store = store
        self._records: dict[StreamRef, deque[OutboxRecord]] = {}
        self._by_start: OrderedDict[int, tuple[StreamRef, OutboxRecord]] = OrderedDict()
        """The same records, in the order of the segment."""
        self._epochs: dict[str, tuple[dict[StreamRef | None, int], int]] = {}
        """Epochs that may be delivered again: by stream, the row up to which they are settled, and where the epoch's
        first record starts.
        """
        self.bytes = 0
        """Retained now."""
        if store.exists(self.segment):
            self._recover()

    # What is retained.

    def __contains__(self, stream: object) -> bool:
        return stream in self._records

    @property
    def streams(self) -> list[StreamRef]:
        return [*self._records]

    def first(self, stream: StreamRef) -> OutboxRecord | None:
        """The oldest of its records."""
        records = self._records.get(stream)
        return records[0] if records else None

    def settled(self, epoch: str) -> dict[StreamRef | None, int]:
        """By stream: the row of the epoch below which all are retained or dead letters."""
        return dict(self._epochs.get(epoch, ({}, 0))[0])

    async def read(self, record: OutboxRecord) -> Rows:
        await self._storage.durable(record.position)
        data = b""
        while len(data) < record.size:
            at = record.start + len(data)
            data += await self._storage.records.data(self.segment, at, record.end - at)
        return rows_of(decode(data, record.start, Kind.STORED, WANTED), record.first)

    # Changes.

    def retain(self, epoch: str, stream: StreamRef, rows: Sequence[Row]) -> None:
        """Add rows after those of the stream that are already retained. If it raises NoRoom, a prefix may have been
        added.
        """
        for part in _parts(rows):
            data, first, end_row = encode_rows(part), part[0].number, part[-1].number + 1
            start = self._end()
            head = _head("hold", epoch, first, end_row, stream)
            position = self._store.append(self.segment, [data], head=head).position
            self._add(stream, OutboxRecord(start, start + len(data), epoch, first, end_row, position))
            self._note_settled(epoch, stream, end_row, start)

    def add_dead_letters(self, epoch: str, stream: StreamRef | None, rows: Sequence[Row], reason: str) -> None:
        """Turn rows of an epoch that are not retained into dead letters. Raises NoRoom like `retain`."""
        for part in _parts(rows):
            start, end_row = self._end(), part[-1].number + 1
            self._append_dead_letters(part, reason, _head("gone", epoch, 0, end_row, stream))
            self._note_settled(epoch, stream, end_row, start)

    def drop_first(self, stream: StreamRef, record: OutboxRecord, rows: Sequence[Row], reason: str) -> None:
        """Turn these rows of the stream's first record into dead letters; the others were sent."""
        self._append_dead_letters(rows, reason, _head("left", "", 0, record.end, stream))
        self._forget_first(stream)

    def remove_first(self, stream: StreamRef, record: OutboxRecord) -> None:
        """The stream's first record was sent."""
        self._store.append(self.segment, [_NOTHING], head=_head("left", "", 0, record.end, stream), draining=True)
        self._forget_first(stream)

    def compact(self, oldest: EpochName) -> None:
        """No epoch before `oldest` is delivered again: forget these, and free unneeded space."""
        self._epochs = {epoch: known for epoch, known in self._epochs.items() if EpochName.parse(epoch) >= oldest}
        if not self._store.exists(self.segment):
            return
        self._move_oldest()
        floors = [next(iter(self._by_start))] if self._by_start else []
        floors += [start for _, start in self._epochs.values()]
        self._store.truncate(self.segment, min(floors, default=int(self._store.length(self.segment))))

    def _move_oldest(self) -> None:
        """Move records until the segment is small enough, as far as there is room."""
        left = _MOVED_BYTES
        while left > 0 and self._by_start:
            start, (stream, record) = next(iter(self._by_start.items()))
            is_slack = int(self._store.length(self.segment)) - start > 2 * self.bytes + SLACK_BYTES
            if not is_slack or record.position > self._store.journal.durable:
                return
            try:
                self._move(stream, record)
            except NoRoom:
                return
            left -= record.size

    def _move(self, stream: StreamRef, record: OutboxRecord) -> None:
        data = self._store.read(self.segment, record.start, record.size)
        head = _head("move", record.epoch, record.first, record.after, stream)
        start = self._end()
        position = self._store.append(self.segment, [data], head=head).position
        self._moved(stream, replace(record, start=start, end=start + record.size, position=position))

    def _append_dead_letters(self, rows: Sequence[Row], reason: str, head: bytes) -> None:
        if not self._store.exists(self._dead_letters):
            self._store.create(self._dead_letters, NO_QUOTA, draining=True)
        dead_letters = Addition(self._dead_letters, [encode_dead_letters(rows, reason)])
        self._store.append_all([dead_letters, Addition(self.segment, [_NOTHING], head)])

    def _end(self) -> int:
        """Where the next record starts."""
        if not self._store.exists(self.segment):
            self._store.create(self.segment, NO_QUOTA, draining=True)
        return int(self._store.length(self.segment))

    def _add(self, stream: StreamRef, record: OutboxRecord) -> None:
        self._records.setdefault(stream, deque()).append(record)
        self._by_start[record.start] = stream, record
        self.bytes += record.size

    def _moved(self, stream: StreamRef, record: OutboxRecord) -> None:
        """A moved record replaces the one it was copied from, which may be truncated already. Rows keep their order."""
        records = self._records.setdefault(stream, deque())
        at = bisect_left(records, record.place, key=lambda one: one.place)
        if at < len(records) and records[at].place == record.place:
            self.bytes -= record.size
            del self._by_start[records[at].start]
            records[at] = record
        else:
            records.insert(at, record)
        self._by_start[record.start] = stream, record
        self.bytes += record.size

    def _forget_first(self, stream: StreamRef) -> None:
        record = self._records[stream].popleft()
        del self._by_start[record.start]
        self.bytes -= record.size
        if not self._records[stream]:
            del self._records[stream]

    def _note_settled(self, epoch: str, stream: StreamRef | None, end_row: int, start: int) -> None:
        self._epochs.setdefault(epoch, ({}, start))[0][stream] = end_row

    # Recovery.

    def _recover(self) -> None:
        """Rebuild the index from the heads. Everything stored is durable."""
        info = self._store.info(self.segment)
        at = info.start
        while at < info.length:
            located = self._store.locate_heads(self.segment, at, info.length, bytes_max=_HEADS_BYTES)
            for end, head in self._store.fetch_heads(located):
                self._apply(at, int(end), *msgpack.unpackb(bytes(head)))
                at = int(end)

    def _apply(self, start: int, end: int, *head: Any) -> None:
        kind, epoch, first, number, connector, stream_id = head
        stream = None if connector is None else StreamRef(connector, stream_id)
        if kind == "left":
            assert stream is not None
            record = self.first(stream)
            if record is not None and record.end == number:
                self._forget_first(stream)
            return
        if kind == "move":
            assert stream is not None
            self._moved(stream, OutboxRecord(start, end, epoch, first, number, Position(0)))
            return
        if kind == "hold":
            assert stream is not None
            self._add(stream, OutboxRecord(start, end, epoch, first, number, Position(0)))
        self._note_settled(epoch, stream, number, start)


def _head(kind: str, epoch: str, first: int, number: int, stream: StreamRef | None) -> bytes:
    connector, stream_id = (None, 0) if stream is None else (stream.connector, stream.stream_id)
    packed: bytes = msgpack.packb([kind, epoch, first, number, connector, stream_id])
    return packed


def _parts(rows: Sequence[Row]) -> Iterator[list[Row]]:
    """Split into parts that fit into one record each."""
    part: list[Row] = []
    size = 0
    for row in rows:
        length = len(row.key) + len(row.metadata) + len(row.value)
        if part and size + length > APPEND_BYTES:
            yield part
            part, size = [], 0
        part.append(row)
        size += length
    yield part
