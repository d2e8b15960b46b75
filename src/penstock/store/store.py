"""The segment store: named, durable, append-only byte logs in one journal."""

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from heapq import nsmallest
from typing import NamedTuple

from penstock.core.attributes import QUOTA
from penstock.core.errors import (
    ConditionFailed,
    Damaged,
    DiskFull,
    LimitExceeded,
    QuotaReached,
    SegmentExists,
    SegmentTruncated,
)
from penstock.core.types import Buffer, Offset, Position, SegmentId
from penstock.store.index import INDEX_BYTES_PER_ROW_MAX
from penstock.store.journal import Journal
from penstock.store.operations import (
    NO_WRITER,
    Append,
    Create,
    Delete,
    Operation,
    Seal,
    SetAttribute,
    Truncate,
    pack,
)
from penstock.store.plan import AttributeUpdate, check_attributes, check_writable, find, plan_merges, plan_updates
from penstock.store.reading import Indexes, Piece, fetch, fetch_heads, pieces
from penstock.store.record import checksum
from penstock.store.replay import replay
from penstock.store.scan import Entry
from penstock.store.segment import Segment
from penstock.store.settings import StoreSettings
from penstock.store.table import SegmentTable

log = logging.getLogger(__name__)

_DAMAGE_KEPT = 100


class Appended(NamedTuple):
    """`end` is the segment's length after the append; it is durable once the journal is, up to `position`."""

    end: Offset
    position: Position
    stored: bool
    """False for a number that was stored before: the append is acknowledged again, and nothing is added."""


class Located(NamedTuple):
    """Where the bytes of a read are; `fetch` brings them, from any thread."""

    pieces: list[Piece]
    at_tail: bool
    end_of_segment: bool


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    name: str
    number: int
    """Never used again: a segment of the same name that is made later has another one."""
    start: int
    length: int
    sealed: bool
    writers: int
    attributes: Mapping[bytes, int]
    damage: str | None


class SegmentStore:
    """One thread owns a store and makes all calls, except that `fetch` may run in any.

    A change is made in memory at once, and is durable when `journal.durable` has reached the position that the call
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
        self._grown: set[str] = set()
        self._before_truncate: list[Callable[[str], None]] = []
        if self.damage:
            self._leave_damage_behind()

    def _read_snapshot(self, chapter: Position, entry: Entry) -> bytes:
        return self.journal.read(chapter, entry.header.data_position, entry.header.data_length)

    def _leave_damage_behind(self) -> None:
        """The next snapshot says which segments are damaged: then a truncation that ends it is told from older ones."""
        with suppress(DiskFull):
            self._turn(0, draining=True)

    # Changes.

    def create(self, name: str, attributes: Mapping[bytes, int] | None = None) -> Position:
        if self.table.named(name) is not None:
            raise SegmentExists(f"segment {name!r} exists already")
        if not 0 < len(name.encode()) <= self.settings.name_bytes_max:
            raise LimitExceeded(f"a segment's name has 1 to {self.settings.name_bytes_max} bytes (name_bytes_max)")
        if len(self.table) >= self.settings.segments_max:
            raise LimitExceeded(f"there are {len(self.table)} segments already (segments_max)")
        check_attributes(name, attributes or {}, self.settings.attributes_per_segment_max)
        number = self.table.next_id()
        updates = [SetAttribute(number, k, v) for k, v in (attributes or {}).items()]
        return self.write([Create(number, name), *updates], draining=False)

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
        """Append the buffers as one. A writer's number that is not greater than its last one is not stored again.
        Only a `draining` append, one that a truncation needs, may use the reserve.
        """
        segment = self._segment(name)
        if writer:
            last = segment.last_number(writer)
            if last is not None and number <= last:
                return Appended(segment.length, self.journal.end, stored=False)
        check_writable(segment)
        if expected_offset is not None and expected_offset != segment.length:
            raise ConditionFailed(f"segment {name!r} ends at {segment.length}, not {expected_offset}")
        length = sum(map(len, buffers))
        self._check_quota(segment, length)
        if head:
            buffers = [head, *buffers]
        operation = Append(segment.id, segment.length, writer, number, len(head), length, checksum(buffers))
        position = self.write([operation], buffers, len(head) + length, draining=draining)
        self._unsettled.append((position, segment, segment.length))
        return Appended(segment.length, position, stored=True)

    def _check_quota(self, segment: Segment, length: int) -> None:
        if length > self.settings.append_bytes_max:
            raise LimitExceeded(
                f"{length} bytes in one append; the limit is {self.settings.append_bytes_max} (append_bytes_max)"
            )
        quota = (segment.attributes or {}).get(QUOTA, self.settings.segment_quota_bytes)
        if quota is None:
            return
        if length > quota:
            raise LimitExceeded(f"an append of {length} bytes can never fit: segment {segment.name!r} may hold {quota}")
        held = segment.length - segment.start
        if held + length > quota:
            raise QuotaReached(f"segment {segment.name!r} holds {held} of {quota} bytes: no room for {length} more")

    def seal(self, name: str) -> Position:
        segment = self._segment(name)
        if not segment.sealed:
            self._sealing[segment.id] = self.write([Seal(segment.id)])
        return self.journal.end

    def truncate(self, name: str, offset: int) -> Position:
        """Give up the bytes below `offset`; past damage, this ends it. Below what is truncated: nothing to do."""
        segment = self._segment(name)
        if offset > segment.length:
            raise ConditionFailed(f"segment {name!r} ends at {segment.length}, before {offset}")
        if offset < segment.start or (offset == segment.start and not segment.damage):
            return self.journal.end
        for prepare in self._before_truncate:
            prepare(name)
        return self.write([Truncate(segment.id, Offset(offset))])

    def before_truncate(self, prepare: Callable[[str], None]) -> None:
        """Call it with a segment's name before bytes are given up; what it writes is durable if the truncation is."""
        self._before_truncate.append(prepare)

    def delete(self, name: str) -> Position:
        return self.write([Delete(self._segment(name).id)])

    def update_attributes(self, updates: Sequence[AttributeUpdate]) -> Position:
        """Set them all, or none. As `merge`, but for the reserve: it is not for these."""
        limit = self.settings.attributes_per_segment_max
        return self.write(plan_updates(self.table, updates, limit), draining=False)

    def merge(self, merges: Sequence[tuple[str, str]], updates: Sequence[AttributeUpdate] = ()) -> Position:
        """Make each (target, source): the source's bytes become the target's next ones, and the source is gone.
        All merges and attribute updates happen in one record: all or none. Never refused for quota.
        """
        planned = plan_merges(self.table, merges)
        attributes = plan_updates(self.table, updates, self.settings.attributes_per_segment_max)
        if {a.segment for a in attributes} & {m.source for m in planned}:
            raise ConditionFailed("an attribute of a segment that is merged away cannot be set")
        position = self.write([*planned, *attributes])
        for merge in planned:
            target = self.table.numbered(merge.target)
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
        """Put valid operations into one record and apply them. Raises DiskFull or StoreFailed, with nothing done."""
        journal = self.journal
        meta = pack(operations)
        total = len(meta) + length
        journal.room_for(total, draining=draining)
        rows = len(operations) * INDEX_BYTES_PER_ROW_MAX
        if not journal.fits(total, self.indexes.open.encoded_bytes + rows):
            self._turn(total + rows, draining=draining)
        data = journal.append(meta, buffers, length)
        self.table.apply(operations, data, journal.chapter, self.indexes.open)
        return journal.end

    def _turn(self, room: int, *, draining: bool) -> None:
        encoded = self.indexes.open.encode()
        self.journal.turn(encoded, self.table.encode(), room=room, draining=draining)
        self.indexes.close_chapter(encoded)

    # Looking.

    def exists(self, name: str) -> bool:
        return self.table.named(name) is not None

    def last_number(self, name: str, writer: bytes) -> int | None:
        """The number of the writer's last append to the segment, durable or not; None if the writer is new."""
        return self._segment(name).last_number(writer)

    def length(self, name: str) -> Offset:
        """Where the next append to the segment will begin, durable or not what is before it."""
        return self._segment(name).length

    def attribute(self, name: str, key: bytes) -> int | None:
        return (self._segment(name).attributes or {}).get(key)

    def info(self, name: str) -> SegmentInfo:
        self._settle()
        return _info(self._segment(name))

    def segments(self, prefix: str = "", after: str = "", limit: int | None = None) -> list[SegmentInfo]:
        """In the order of their names: those that begin with `prefix` and come after `after`, the first `limit`."""
        self._settle()
        names = (name for name in self.table.names() if name.startswith(prefix) and name > after)
        chosen = sorted(names) if limit is None else nsmallest(limit, names)
        return [_info(self._segment(name)) for name in chosen]

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

    def locate(self, name: str, offset: int, length: int) -> Located:
        """Where to find up to about `length` durable bytes at `offset`. No bytes at the tail, whole appends before it.
        Raises SegmentTruncated below the start, ConditionFailed beyond the end, Damaged.
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
        for piece in self._readable(segment, offset, segment.durable):
            if located and taken + piece.take > length:
                break
            located.append(piece._replace(take=min(piece.take, length)))
            taken += located[-1].take
            if taken >= length:
                break
        at_tail = offset + taken >= segment.durable and not doubtful
        return Located(located, at_tail, at_tail and self._sealed(segment))

    def _sealed(self, segment: Segment) -> bool:
        """Durably, and so are all its bytes."""
        return segment.sealed and segment.id not in self._sealing

    def _readable(self, segment: Segment, offset: int, end: int) -> Iterator[Piece]:
        try:
            yield from pieces(self.indexes, segment, Offset(offset), Offset(end))
        except LookupError as error:
            raise Damaged(f"segment {segment.name!r} at {offset}: {error}") from None

    def fetch(self, located: Located) -> list[memoryview]:
        """The located bytes. Raises Damaged, or LookupError when they have been moved or truncated meanwhile."""
        return fetch(self.journal, located.pieces)

    def read(self, name: str, offset: int, length: int) -> bytes:
        return b"".join(self.fetch(self.locate(name, offset, length)))

    def heads(self, name: str, start: int, end: int) -> list[tuple[Offset, memoryview]]:
        """The heads of the appends in [start, end), each with the offset at which its bytes end. As `locate`."""
        self._settle()
        segment = self._segment(name)
        _check_start(segment, start)
        located = list(self._readable(segment, start, min(end, segment.durable)))
        return fetch_heads(self.journal, located)

    def _segment(self, name: str) -> Segment:
        return find(self.table, name)

    def check_writable(self, name: str) -> None:
        """Raise what an append would: NoSuchSegment, SegmentSealed or Damaged."""
        check_writable(self._segment(name))

    def note_damage(self, name: str, error: Damaged) -> None:
        """A reader has found damage: say so loudly, once for each place."""
        text = f"segment {name!r}: {error}"
        if text not in self.damage and len(self.damage) < _DAMAGE_KEPT:
            log.error("%s", text)
            self.damage.append(text)


def _check_start(segment: Segment, offset: int) -> None:
    if offset < segment.start:
        raise SegmentTruncated(
            f"segment {segment.name!r} begins at {segment.start}; offset {offset} was truncated",
            start=segment.start,
        )


def _info(segment: Segment) -> SegmentInfo:
    return SegmentInfo(
        name=segment.name,
        number=segment.id,
        start=segment.start,
        length=segment.durable,
        sealed=segment.sealed,
        writers=len(segment.writers or ()),
        attributes=dict(segment.attributes or {}),
        damage=segment.damage.reason if segment.damage else None,
    )
