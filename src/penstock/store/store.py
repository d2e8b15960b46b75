"""The segment store: named, durable, append-only byte logs in one journal."""

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from heapq import nsmallest

from penstock.core.errors import (
    ConditionFailed,
    Damaged,
    DiskFull,
    LimitExceeded,
    SegmentExists,
    SegmentTruncated,
)
from penstock.core.types import Buffer, Offset, Position, SegmentId
from penstock.store.index import INDEX_BYTES_PER_ROW_MAX
from penstock.store.journal import Journal
from penstock.store.operations import (
    NO_WRITER,
    Create,
    Delete,
    Operation,
    Seal,
    SetAttribute,
    Truncate,
    pack,
)
from penstock.store.plan import (
    Addition,
    AttributeUpdate,
    PlannedAppend,
    check_attributes,
    check_writable,
    find,
    plan_append,
    plan_merges,
    plan_note,
    plan_updates,
)
from penstock.store.reader import (
    Appended,
    Indexes,
    IndexNotLoaded,
    Located,
    Piece,
    Record,
    SegmentInfo,
    fetch,
    fetch_heads,
    info_of,
    is_here,
    pieces,
)
from penstock.store.record import Entry
from penstock.store.replay import replay
from penstock.store.segment import Segment
from penstock.store.settings import StoreSettings
from penstock.store.table import SegmentTable

log = logging.getLogger(__name__)

_DAMAGE_MAX = 100


class SegmentStore:
    """One thread owns a store and makes all calls, except that `fetch` may run in any thread.

    A change is visible in memory at once, and is durable when `journal.durable` has reached the position that the call
    returns; nothing may be acknowledged before. Readers see durable bytes only.
    """

    def __init__(self, journal: Journal, settings: StoreSettings) -> None:
        self.journal = journal
        self.settings = settings
        self.table = SegmentTable(settings.writers_per_segment_max)
        self.indexes = Indexes(journal, settings.index_cache_bytes)
        recovered = journal.take_recovered()
        self.damage = [str(damage) for damage in recovered.damage]
        self.indexes.open = replay(recovered, self.table, self._read_snapshot)
        self._unsettled: deque[tuple[Position, Segment, Offset]] = deque()
        self._sealing: dict[SegmentId, Position] = {}
        self._noted_damage: set[SegmentId] = set()
        self._grown: set[str] = set()
        self._before_truncate: list[Callable[[str], None]] = []
        if self.damage:
            self._snapshot_damage()

    def _read_snapshot(self, chapter: Position, entry: Entry) -> bytes:
        return self.journal.read(chapter, entry.header.data_position, entry.header.data_length)

    def _snapshot_damage(self) -> None:
        """The next snapshot records which segments are damaged: only a later truncation ends the damage."""
        with suppress(DiskFull):
            self._turn(0, draining=True)

    # Changes.

    def create(self, name: str, attributes: Mapping[bytes, int] | None = None, *, draining: bool = False) -> Position:
        """Create a segment. Only a `draining` one, which a merge needs, may use the reserve."""
        if self.table.named(name) is not None:
            raise SegmentExists(f"segment {name!r} exists already")
        if not 0 < len(name.encode()) <= self.settings.name_bytes_max:
            raise LimitExceeded(f"a segment's name has 1 to {self.settings.name_bytes_max} bytes (name_bytes_max)")
        if len(self.table) >= self.settings.segments_max:
            raise LimitExceeded(f"there are {len(self.table)} segments already (segments_max)")
        check_attributes(name, attributes or {}, self.settings.attributes_per_segment_max)
        number = self.table.next_id()
        updates = [SetAttribute(number, k, v) for k, v in (attributes or {}).items()]
        return self.write([Create(number, name), *updates], draining=draining)

    def append(
        self,
        name: str,
        buffers: Sequence[Buffer],
        *,
        writer: bytes = NO_WRITER,
        number: int = 0,
        head: Buffer = b"",
        expected_offset: int | None = None,
        draining: bool = False,
    ) -> Appended:
        """Append the buffers as one. Stores nothing if the writer's number is not greater than its last one. Only a
        `draining` append, which a truncation needs, may use the reserve.
        """
        segment = self._segment(name)
        if writer:
            last = segment.last_number(writer)
            if last is not None and number <= last:
                return Appended(segment.length, self.journal.end, stored=False)
        check_writable(segment)
        if expected_offset is not None and expected_offset != segment.length:
            raise ConditionFailed(f"segment {name!r} ends at {segment.length}, not {expected_offset}")
        planned = plan_append(segment, buffers, head, self.settings, writer, number)
        position = self._append([segment], [planned], draining=draining)
        return Appended(segment.length, position, stored=True)

    def append_all(self, additions: Sequence[Addition]) -> list[Appended]:
        """Append to several segments, each once, in one record: all or none."""
        segments = [self._segment(addition.segment) for addition in additions]
        if len(segments) > 1 and len(set(segments)) < len(segments):
            raise ConditionFailed("a segment can be appended to once in a record")
        planned = []
        for segment, (_, buffers, head) in zip(segments, additions, strict=True):
            check_writable(segment)
            planned.append(plan_append(segment, buffers, head, self.settings))
        position = self._append(segments, planned, draining=False)
        return [Appended(segment.length, position, stored=True) for segment in segments]

    def _append(self, segments: Sequence[Segment], planned: Sequence[PlannedAppend], *, draining: bool) -> Position:
        operations: list[Operation] = []
        buffers: list[Buffer] = []
        length = 0
        for operation, parts, size in planned:
            operations.append(operation)
            buffers += parts
            length += size
        position = self.write(operations, buffers, length, draining=draining)
        for segment in segments:
            self._unsettled.append((position, segment, segment.length))
        return position

    def seal(self, name: str) -> Position:
        segment = self._segment(name)
        if not segment.sealed:
            self._sealing[segment.id] = self.write([Seal(segment.id)])
        return self.journal.end

    def truncate(self, name: str, offset: int) -> Position:
        """Remove the bytes below `offset`. Truncating past damage clears it. Does nothing if those bytes are removed
        already.
        """
        segment = self._segment(name)
        if offset > segment.length:
            raise ConditionFailed(f"segment {name!r} ends at {segment.length}, before {offset}")
        if offset < segment.start or (offset == segment.start and not segment.damage):
            return self.journal.end
        for prepare in self._before_truncate:
            prepare(name)
        return self.write([Truncate(segment.id, Offset(offset))])

    def before_truncate(self, prepare: Callable[[str], None]) -> None:
        """Register a function that is called with a segment's name before bytes are removed. What it writes is durable
        if the truncation is.
        """
        self._before_truncate.append(prepare)

    def delete(self, name: str) -> Position:
        return self.write([Delete(self._segment(name).id)])

    def update_attributes(self, updates: Sequence[AttributeUpdate]) -> Position:
        """Set all of them, or none. Like `merge`, but may not use the reserve."""
        limit = self.settings.attributes_per_segment_max
        return self.write(plan_updates(self.table, updates, limit), draining=False)

    def merge(
        self,
        merges: Sequence[tuple[str, str]],
        updates: Sequence[AttributeUpdate] = (),
        *,
        note: tuple[str, bytes] | None = None,
    ) -> Position:
        """Merge each (target, source): the source's bytes become the target's next ones, and the source is gone.
        All merges and attribute updates happen in one record, and so does the append of a `note`, a segment and the
        bytes that record them: all or none. Never refused for quota.
        """
        planned = plan_merges(self.table, merges)
        attributes = plan_updates(self.table, updates, self.settings.attributes_per_segment_max)
        appends = [] if note is None else [plan_note(self.table, *note)]
        gone, changed = {m.source for m in planned}, {m.target for m in planned}
        if {a.segment for a in attributes} & gone or {a.segment for a in appends} & (gone | changed):
            raise ConditionFailed("a merge cannot also change its source, or append its note to a target")
        data = [] if note is None else [note[1]]
        position = self.write([*planned, *attributes, *appends], data, sum(map(len, data)))
        for number in [*(m.target for m in planned), *(a.segment for a in appends)]:
            target = self.table.numbered(number)
            assert target is not None
            self._unsettled.append((position, target, target.length))
        return position

    def write(
        self,
        operations: Sequence[Operation],
        buffers: Sequence[Buffer] = (),
        length: int = 0,
        *,
        draining: bool = True,
    ) -> Position:
        """Write validated operations as one record and apply them. If it raises DiskFull or StoreFailed, nothing has
        changed.
        """
        journal = self.journal
        meta = pack(operations)
        total = len(meta) + length
        journal.check_room(draining=draining)
        rows = len(operations) * INDEX_BYTES_PER_ROW_MAX
        if not journal.fits(total, self.indexes.open.encoded_bytes + rows):
            self._turn(total + rows, draining=draining)
        elif len(self.table) > self.settings.snapshot_rows_max:
            filled = journal.filled(self.indexes.open.encoded_bytes)
            self.table.encode_ahead(filled, self.settings.snapshot_rows_max)
        data = journal.append(meta, buffers, length)
        self.table.apply(operations, data, journal.chapter, self.indexes.open)
        return journal.end

    def encode_ahead(self) -> bool:
        """Encode a part of the next snapshot if it is due soon; False if there is nothing to do now. Call it repeatedly
        between the store's other calls.
        """
        if len(self.table) <= self.settings.snapshot_rows_max:
            return False
        filled = self.journal.filled(self.indexes.open.encoded_bytes)
        return self.table.encode_step(filled, self.settings.snapshot_rows_max)

    def _turn(self, room: int, *, draining: bool) -> None:
        encoded = self.indexes.open.encode()
        self.journal.turn(encoded, self.table.encode(), room=room, draining=draining)
        self.table.forget_encoded()
        self.indexes.close_chapter(encoded)

    # Queries.

    def exists(self, name: str) -> bool:
        return self.table.named(name) is not None

    def last_number(self, name: str, writer: bytes) -> int | None:
        """The number of the writer's last append to the segment, durable or not; None if the writer is new."""
        return self._segment(name).last_number(writer)

    def length(self, name: str) -> Offset:
        """Where the next append to the segment will start, counting bytes that are not durable yet."""
        return self._segment(name).length

    def attribute(self, name: str, key: bytes) -> int | None:
        return (self._segment(name).attributes or {}).get(key)

    def info(self, name: str) -> SegmentInfo:
        self._settle()
        return info_of(self._segment(name))

    def segments(self, prefix: str = "", after: str = "", limit: int | None = None) -> list[SegmentInfo]:
        """The first `limit` segments, by name, whose names start with `prefix` and sort after `after`."""
        self._settle()
        names = (name for name in self.table.names(prefix) if name.startswith(prefix) and name > after)
        chosen = sorted(names) if limit is None else nsmallest(limit, names)
        return [info_of(self._segment(name)) for name in chosen]

    def record(self, name: str, offset: int) -> Record:
        """The append that contains the durable byte at `offset`. Raises like `locate`, and ConditionFailed if there is
        no byte.
        """
        piece = self._piece(name, offset)
        return Record(piece.offset, Offset(piece.offset + piece.row.length))

    def position(self, name: str, offset: int) -> Position:
        """The position of that append in the journal. Positions follow the order of arrival, except for appends that
        compaction has moved. Raises like `record`.
        """
        return self._piece(name, offset).row.position

    def _piece(self, name: str, offset: int) -> Piece:
        self._settle()
        segment = self._segment(name)
        _check_start(segment, offset)
        for piece in self._readable(segment, offset, min(offset + 1, segment.durable)):
            return piece
        raise ConditionFailed(f"segment {name!r} ends at {segment.durable}, before offset {offset}")

    def grown(self) -> set[str]:
        """The names of the segments that have new durable bytes since the last call."""
        self._settle()
        grown, self._grown = self._grown, set()
        return grown

    def _settle(self) -> None:
        """Let readers see what has become durable."""
        durable = self.journal.durable
        while self._unsettled and self._unsettled[0][0] <= durable:
            _, segment, length = self._unsettled.popleft()
            segment.durable = max(segment.durable, length)
            self._grown.add(segment.name)
        if self._sealing:
            self._sealing = {number: at for number, at in self._sealing.items() if at > durable}
        self.indexes.settle(durable)

    def locate(
        self, name: str, offset: int, length: int, rows_max: int | None = None, *, loaded_only: bool = False
    ) -> Located:
        """Where to find about `length` durable bytes at `offset`, in whole appends, at most `rows_max` of them; none at
        the tail. Raises SegmentTruncated below the start, ConditionFailed beyond the end, Damaged. With `loaded_only`,
        no index is read: raises IndexNotLoaded if the first bytes need one.
        """
        self._settle()
        segment = self._segment(name)
        _check_start(segment, offset)
        if offset > segment.length:
            raise ConditionFailed(f"segment {name!r} ends at {segment.length}, before {offset}")
        doubtful = segment.damage is not None and not segment.damage.known
        if doubtful and offset >= segment.durable:
            assert segment.damage is not None
            raise Damaged(f"segment {name!r} may have lost bytes from {segment.length} on: {segment.damage.reason}")
        located: list[Piece] = []
        taken = 0
        try:
            for piece in self._readable(segment, offset, segment.durable, loaded_only=loaded_only):
                if located and taken + piece.take > length:
                    break
                located.append(piece._replace(take=min(piece.take, length)))
                taken += located[-1].take
                if taken >= length or len(located) == rows_max:
                    break
        except IndexNotLoaded:
            if not located:
                raise
        at_tail = offset + taken >= segment.durable and not doubtful
        return Located(located, at_tail, at_tail and self._sealed(segment))

    def _sealed(self, segment: Segment) -> bool:
        """Whether the segment is sealed, and that and all its bytes are durable."""
        return segment.sealed and segment.id not in self._sealing

    def _readable(self, segment: Segment, offset: int, end: int, *, loaded_only: bool = False) -> Iterator[Piece]:
        try:
            yield from pieces(self.indexes, segment, Offset(offset), Offset(end), loaded_only=loaded_only)
        except LookupError as error:
            raise Damaged(f"segment {segment.name!r} at {offset}: {error}") from None

    def fetch(self, located: Located) -> list[memoryview]:
        """The located bytes. Raises Damaged, or LookupError if they were moved or truncated in the meantime."""
        return fetch(self.journal, located.pieces)

    def is_here(self, located: Located) -> bool:
        """Whether `fetch` need not wait for a network."""
        return is_here(self.journal, located.pieces)

    def read(self, name: str, offset: int, length: int) -> bytes:
        return b"".join(self.fetch(self.locate(name, offset, length)))

    def heads(self, name: str, start: int, end: int) -> list[tuple[Offset, memoryview]]:
        """The heads of the appends in [start, end), each with the offset at which its bytes end. Raises
        like `locate`.
        """
        return self.fetch_heads(self.locate_heads(name, start, end))

    def locate_heads(
        self, name: str, start: int, end: int, *, rows_max: int | None = None, bytes_max: int | None = None
    ) -> list[Piece]:
        """Where the heads of the appends in [start, end) are: at most `rows_max` of them and `bytes_max` in total, but
        at least one. `fetch_heads` reads them, in any thread. Raises like `locate`.
        """
        self._settle()
        segment = self._segment(name)
        _check_start(segment, start)
        located: list[Piece] = []
        size = 0
        for piece in self._readable(segment, start, min(end, segment.durable)):
            size += piece.row.head_length
            if located and (len(located) == rows_max or (bytes_max is not None and size > bytes_max)):
                break
            located.append(piece)
        return located

    def fetch_heads(self, located: list[Piece]) -> list[tuple[Offset, memoryview]]:
        """The located heads, without the data between them. Raises like `fetch`."""
        return fetch_heads(self.journal, located)

    def _segment(self, name: str) -> Segment:
        return find(self.table, name)

    def check_writable(self, name: str) -> None:
        """Raise the error that an append would raise: NoSuchSegment, SegmentSealed or Damaged."""
        check_writable(self._segment(name))

    def is_damaged(self, name: str) -> bool:
        """Whether some of its bytes are lost: known since opening, or found by a reader."""
        segment = self.table.named(name)
        return segment is not None and (segment.damage is not None or segment.id in self._noted_damage)

    def note_damage(self, name: str, error: Damaged) -> None:
        """A reader has found damage: log it as an error, once per location."""
        if self.exists(name):
            self._noted_damage.add(self._segment(name).id)
        text = f"segment {name!r}: {error}"
        if text not in self.damage and len(self.damage) < _DAMAGE_MAX:
            log.error("%s", text)
            self.damage.append(text)


def _check_start(segment: Segment, offset: int) -> None:
    if offset < segment.start:
        raise SegmentTruncated(
            f"segment {segment.name!r} starts at {segment.start}; offset {offset} was truncated",
            start=segment.start,
        )
