"""What one sink holds for streams that it has closed: a segment of the pipeline, and what is known of its records.

    hold · EPOCH · rows FIRST … END · STREAM     stored events, as they were in the epoch's output
    gone · EPOCH · END · STREAM                  nothing: these rows are dead letters, written in the same step
    left · STREAM · END                          nothing: the first record of the stream, which ends there, has left
    move · EPOCH · rows FIRST … END · STREAM     the record of these rows once more: it is here now

Each is one append with a head that says so. Rows of an epoch that are held or gone are not taken again when the epoch
is given again, also after a crash. The segment is truncated where nothing before is outstanding, and no epoch before is
one that may be given again. What stays for long is moved to the end, so that what has left behind it can go.
"""

from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import msgpack

from penstock.connectors.api import StreamRef
from penstock.coordinator.deliveries import parked_port
from penstock.coordinator.ledger import NO_QUOTA
from penstock.core.errors import NoRoom
from penstock.core.types import Position
from penstock.delivery.outbox.given import EpochName
from penstock.delivery.outbox.rows import Row, encode_letters, encode_rows
from penstock.protocol.segment.frame import EVENT, HEADER
from penstock.protocol.stored.names import HELD_PREFIX, output_segment
from penstock.store.plan import Addition
from penstock.store.store import SegmentStore

APPEND_BYTES = 4 << 20
"""Rows that are held in one record, at most, but for a single one that is larger."""

SLACK_BYTES = 8 << 20
"""That the segment may have beyond twice what is outstanding; then what is oldest is moved to its end."""

_MOVED_BYTES = 4 << 20
"""That are moved between two epochs, one record at least: some milliseconds."""

_NOTHING = HEADER.pack(EVENT, 0)
"""An event without anything in it, which readers pass over: a record of bytes has to have some."""

_HEADS_BYTES = 1 << 20
"""Of heads that are read at once when a worker starts."""


@dataclass(frozen=True, slots=True)
class HeldRecord:
    start: int
    end: int
    epoch: str
    first: int
    """The number of its first row in the epoch, and behind it that after its last."""
    after: int
    position: Position
    """In the journal: it can be read when that is durable."""

    @property
    def size(self) -> int:
        return self.end - self.start

    @property
    def place(self) -> tuple[EpochName, int]:
        """In its stream."""
        return EpochName.parse(self.epoch), self.first


class Held:
    """Of one sink of one pipeline. All of it belongs to the thread that owns the store."""

    def __init__(self, store: SegmentStore, pipeline: str, sink: str) -> None:
        self.segment = output_segment(pipeline, f"{HELD_PREFIX}{sink}")
        self._letters = output_segment(pipeline, parked_port(sink))
        self._store = store
        self._records: dict[StreamRef, deque[HeldRecord]] = {}
        self._by_start: OrderedDict[int, tuple[StreamRef, HeldRecord]] = OrderedDict()
        """The same, as they lie in the segment."""
        self._epochs: dict[str, tuple[dict[StreamRef | None, int], int]] = {}
        """Of epochs that may be given again: up to which row each stream's are done with, and where that begins."""
        self.bytes = 0
        """Outstanding."""
        if store.exists(self.segment):
            self._recover()

    # What is there.

    def __contains__(self, stream: object) -> bool:
        return stream in self._records

    @property
    def streams(self) -> list[StreamRef]:
        return [*self._records]

    def first(self, stream: StreamRef) -> HeldRecord | None:
        """The oldest of its records that have not left."""
        records = self._records.get(stream)
        return records[0] if records else None

    def done(self, epoch: str) -> dict[StreamRef | None, int]:
        """Of each stream, how many rows of the epoch from its first on are held or gone already."""
        return dict(self._epochs.get(epoch, ({}, 0))[0])

    # Changes.

    def hold(self, epoch: str, stream: StreamRef, rows: list[Row]) -> None:
        """Behind what is held of it. Raises NoRoom; then those that fitted are held."""
        for part in _parts(rows):
            data, first, end_row = encode_rows(part), part[0].number, part[-1].number + 1
            start = self._made()
            head = _head("hold", epoch, first, end_row, stream)
            position = self._store.append(self.segment, [data], head=head).position
            self._add(stream, HeldRecord(start, start + len(data), epoch, first, end_row, position))
            self._note_done(epoch, stream, end_row, start)

    def bury(self, epoch: str, stream: StreamRef | None, rows: list[Row], reason: str) -> None:
        """Rows of an epoch become dead letters. Raises NoRoom; as `hold`."""
        for part in _parts(rows):
            start, end_row = self._made(), part[-1].number + 1
            self._append_letters(part, reason, _head("gone", epoch, 0, end_row, stream))
            self._note_done(epoch, stream, end_row, start)

    def bury_held(self, stream: StreamRef, record: HeldRecord, rows: list[Row], reason: str) -> None:
        """A record of a stream becomes dead letters, and has left."""
        self._append_letters(rows, reason, _head("left", "", 0, record.end, stream))
        self._drop_first(stream)

    def left(self, stream: StreamRef, record: HeldRecord) -> None:
        """Its first record has left."""
        self._store.append(self.segment, [_NOTHING], head=_head("left", "", 0, record.end, stream), draining=True)
        self._drop_first(stream)

    def settle(self, oldest: EpochName) -> None:
        """None before this one is given again: forget them, and give up what nobody needs."""
        self._epochs = {epoch: known for epoch, known in self._epochs.items() if EpochName.parse(epoch) >= oldest}
        if not self._store.exists(self.segment):
            return
        self._move_oldest()
        floors = [next(iter(self._by_start))] if self._by_start else []
        floors += [start for _, start in self._epochs.values()]
        self._store.truncate(self.segment, min(floors, default=int(self._store.length(self.segment))))

    def _move_oldest(self) -> None:
        """As far as it lets go of enough, and there is room for it."""
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

    def _move(self, stream: StreamRef, record: HeldRecord) -> None:
        data = self._store.read(self.segment, record.start, record.size)
        head = _head("move", record.epoch, record.first, record.after, stream)
        start = self._made()
        position = self._store.append(self.segment, [data], head=head).position
        self._moved(stream, replace(record, start=start, end=start + record.size, position=position))

    def _append_letters(self, rows: list[Row], reason: str, head: bytes) -> None:
        if not self._store.exists(self._letters):
            self._store.create(self._letters, NO_QUOTA, draining=True)
        letters = Addition(self._letters, [encode_letters(rows, reason)])
        self._store.append_all([letters, Addition(self.segment, [_NOTHING], head)])

    def _made(self) -> int:
        """Where the next record begins."""
        if not self._store.exists(self.segment):
            self._store.create(self.segment, NO_QUOTA, draining=True)
        return int(self._store.length(self.segment))

    def _add(self, stream: StreamRef, record: HeldRecord) -> None:
        self._records.setdefault(stream, deque()).append(record)
        self._by_start[record.start] = stream, record
        self.bytes += record.size

    def _moved(self, stream: StreamRef, record: HeldRecord) -> None:
        """It takes the place of what it was, or of what was truncated before a start: order is that of the rows."""
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

    def _drop_first(self, stream: StreamRef) -> None:
        record = self._records[stream].popleft()
        del self._by_start[record.start]
        self.bytes -= record.size
        if not self._records[stream]:
            del self._records[stream]

    def _note_done(self, epoch: str, stream: StreamRef | None, end_row: int, start: int) -> None:
        self._epochs.setdefault(epoch, ({}, start))[0][stream] = end_row

    # A start.

    def _recover(self) -> None:
        """From the heads alone. What is durable now is all there is."""
        info = self._store.info(self.segment)
        at = info.start
        while at < info.length:
            located = self._store.locate_heads(self.segment, at, info.length, bytes_max=_HEADS_BYTES)
            for end, head in self._store.fetch_heads(located):
                self._apply(at, int(end), *msgpack.unpackb(bytes(head)))
                at = int(end)

    def _apply(self, start: int, end: int, *head: Any) -> None:
        what, epoch, first, number, connector, stream_id = head
        stream = None if connector is None else StreamRef(connector, stream_id)
        if what == "left":
            assert stream is not None
            record = self.first(stream)
            if record is not None and record.end == number:
                self._drop_first(stream)
            return
        if what == "move":
            assert stream is not None
            self._moved(stream, HeldRecord(start, end, epoch, first, number, Position(0)))
            return
        if what == "hold":
            assert stream is not None
            self._add(stream, HeldRecord(start, end, epoch, first, number, Position(0)))
        self._note_done(epoch, stream, number, start)


def _head(what: str, epoch: str, first: int, number: int, stream: StreamRef | None) -> bytes:
    connector, stream_id = (None, 0) if stream is None else (stream.connector, stream.stream_id)
    packed: bytes = msgpack.packb([what, epoch, first, number, connector, stream_id])
    return packed


def _parts(rows: list[Row]) -> Iterator[list[Row]]:
    """Pieces that fit into one record each."""
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
