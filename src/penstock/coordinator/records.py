"""Reads a segment's records in bounded steps, long ones in a thread, so that the event loop is not blocked."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import NamedTuple, Protocol

from penstock.coordinator.pravega_streams import PravegaStreams
from penstock.core.errors import Damaged, NoSuchSegment, PenstockError, RequestError
from penstock.core.types import Buffer
from penstock.protocol.api.pipelines import AtSegments, AtTime, Segments, Starting
from penstock.protocol.stored.event import HEAD, LENGTH_MIN, NO_TIME
from penstock.protocol.stored.head import PackedHead, numbers, unpack_head
from penstock.protocol.stored.names import CONNECTOR_PREFIX, Form, Kind, Source, connector_segment, kind_of
from penstock.store.reader import Located
from penstock.store.store import SegmentStore

_HEADS_PER_STEP = 300
_HEAD_BYTES_PER_STEP = 256 << 10
_DATA_BYTES_PER_STEP = 4 << 20
_READ_AT_ONCE = 32
"""Heads to read without a thread: they are in the page cache, and a thread would cost more."""
_TRIES = 10
"""Compaction may move bytes that are about to be read; if that happens this often, something is wrong."""

_SAMPLES = 16
_SAMPLE_BYTES_MAX = 64 << 10
"""Of a record: its checksum covers all of it, so all of it is read. Longer ones are not sampled."""

_HEADER_SIZE = 8


class Record(NamedTuple):
    """One append: where it ends, how many events are in it, and the highest of their times."""

    end: int
    rows: int
    highest: int


class Heads(NamedTuple):
    """Consecutive heads, each with the offset at which its record ends."""

    found: list[tuple[int, memoryview]]
    end: int


class RecordView(Protocol):
    """The records of the segments that a pipeline reads, wherever they are."""

    def begin(self, name: str) -> int:
        """The first offset that can be read; 0 if there is no such segment."""
        ...

    def end(self, name: str) -> int:
        """How far a cut may go; 0 if there is no such segment."""
        ...

    def stored_end(self, name: str) -> int:
        """Where the durable bytes end; 0 if there is no such segment."""
        ...

    def boundary(self, name: str, start: int, limit: int) -> int:
        """The last record end up to `limit`; if there is none, the first one after `start`."""
        ...

    def position(self, name: str, offset: int) -> int:
        """Of the record at the offset: lower for one that arrived earlier."""
        ...

    def arrived_before(self, name: str, start: int, end: int, position: int) -> int:
        """The end of the records in [start, end) that are before this position; `start` if there are none."""
        ...

    def heads(self, name: str, start: int, end: int) -> AsyncIterator[Heads]:
        """The heads of the records in [start, end)."""
        ...

    async def rows_end(self, name: str, start: int, end: int, rows_max: int) -> int:
        """The end of the last record up to which there are at most `rows_max` rows; at least one record."""
        ...


class Records:
    """A RecordView of the shard's own segments, and what only these have."""

    def __init__(self, store: SegmentStore) -> None:
        self._store = store

    def begin(self, name: str) -> int:
        """The first offset that can be read; 0 if there is no such segment."""
        return self._store.info(name).start if self._store.exists(name) else 0

    def end(self, name: str) -> int:
        """Where the durable bytes end; 0 if there is no such segment."""
        return self._store.info(name).length if self._store.exists(name) else 0

    def stored_end(self, name: str) -> int:
        return self.end(name)

    def number(self, name: str) -> int:
        """That of the segment, which is never reused for another one; 0 if there is no such segment."""
        return self._store.info(name).number if self._store.exists(name) else 0

    def boundary(self, name: str, start: int, limit: int) -> int:
        """The last record end up to `limit`; if there is none, the first one after `start`. Only durable
        records count.
        """
        end = self.end(name)
        if limit >= end or start >= end:
            return max(end, start)
        at = self._store.record(name, max(limit, self.begin(name))).start
        return at if at > start else self._store.record(name, max(start, self.begin(name))).end

    def ceiling(self, name: str, offset: int) -> int:
        """The first record end that is not before `offset`."""
        return self._store.record(name, offset - 1).end

    def position(self, name: str, offset: int) -> int:
        """The record's position in the journal. Positions follow the order of arrival, except for moved records."""
        return int(self._store.position(name, max(offset, self.begin(name))))

    def arrived_before(self, name: str, start: int, end: int, position: int) -> int:
        """The end of the records in [start, end) that are before this position in the journal; `start` if there are
        none.
        """
        low, high = start, end
        while low < high:
            at = max((low + high) // 2, self.begin(name))
            if self.position(name, at) < position:
                low = min(int(self._store.record(name, at).end), end)
            else:
                high = max(int(self._store.record(name, at).start), low)
        return low

    def begins_an_event(self, name: str, offset: int) -> bool:
        """Whether a reader may start there: where an event starts, or at the start or end of the segment."""
        if not self.begin(name) < offset < self.end(name):
            return True
        start = max(self._store.record(name, offset).start, self.begin(name))
        return start == offset or ends_with_an_event(self._store.read(name, start, offset - start))

    async def heads(self, name: str, start: int, end: int) -> AsyncIterator[Heads]:
        """The heads of the records in [start, end). Truncated ones are skipped. The first step is short, and each is
        longer than the last: most callers with a limit need few heads.
        """
        step = _READ_AT_ONCE
        while (start := max(start, self.begin(name))) < min(end, self.end(name)):
            found = await self._heads(name, start, end, step)
            start = found[-1][0]
            yield Heads(found, start)
            step = min(4 * step, _HEADS_PER_STEP)

    async def _heads(self, name: str, start: int, end: int, heads_max: int) -> list[tuple[int, memoryview]]:
        """The first few heads in the range."""
        for _ in range(_TRIES):
            start = max(start, self.begin(name))
            located = self._store.locate_heads(name, start, end, rows_max=heads_max, bytes_max=_HEAD_BYTES_PER_STEP)
            try:
                if len(located) <= _READ_AT_ONCE:
                    found = self._store.fetch_heads(located)
                    await asyncio.sleep(0)
                else:
                    found = await asyncio.to_thread(self._store.fetch_heads, located)
            except LookupError:  # moved in the meantime
                continue
            except Damaged as error:
                self._store.note_damage(name, error)
                raise
            return [(int(at), head) for at, head in found]
        raise NoSuchSegment(f"segment {name!r} at {start} is moved again and again", "Try again.")

    async def rows_end(self, name: str, start: int, end: int, rows_max: int) -> int:
        at, rows = start, 0
        async for found in self.walk(name, start, end):
            for record in found:
                rows += record.rows
                if rows > rows_max and at > start:
                    return at
                at = record.end
        return end

    async def walk(self, name: str, start: int, end: int) -> AsyncIterator[list[Record]]:
        """The records in [start, end), from their heads if they have some, otherwise from their events."""
        stored = kind_of(name).kind is Kind.STORED
        if name.startswith(CONNECTOR_PREFIX):
            async for heads in self.heads(name, start, end):
                yield [await self._of_head(name, at, head) for at, head in heads.found]
            return
        while (start := max(start, self.begin(name))) < min(end, self.end(name)):
            records = await self._of_data(name, start, _DATA_BYTES_PER_STEP, stored=stored)
            yield records
            start = records[-1].end

    async def _of_head(self, name: str, end: int, data: memoryview) -> Record:
        head = unpack_head(data)
        if head is None:  # not written by this worker
            start = self._store.record(name, end - 1).start
            return (await self._of_data(name, max(start, self.begin(name)), 1, stored=True))[0]
        return Record(end, head.count, _highest(head))

    async def _of_data(self, name: str, start: int, length: int, *, stored: bool) -> list[Record]:
        for _ in range(_TRIES):
            begin = max(start, self.begin(name))
            if length == 1:  # one record, however long
                length = self._store.record(name, begin).end - begin
            located = self._store.locate(name, begin, length)
            try:
                return await asyncio.to_thread(self._counted, located, stored=stored)
            except LookupError:
                continue
        raise NoSuchSegment(f"segment {name!r} at {start} is moved again and again", "Try again.")

    async def data(self, name: str, start: int, length: int) -> bytes:
        """Up to about `length` durable bytes at `start`, at least one. Raises SegmentTruncated, Damaged."""
        for _ in range(_TRIES):
            located = self._store.locate(name, start, length)
            try:
                return b"".join(await asyncio.to_thread(self._store.fetch, located))
            except LookupError:
                continue
            except Damaged as error:
                self._store.note_damage(name, error)
                raise
        raise NoSuchSegment(f"segment {name!r} at {start} is moved again and again", "Try again.")

    async def samples(self, name: str, start: int, end: int) -> list[bytes]:
        """The data of the first event of some records in [start, end): cheap, however many there are. None if they
        cannot be read.
        """
        try:
            rows = self._store.locate_heads(name, max(start, self.begin(name)), end, rows_max=_SAMPLES)
            short = [piece for piece in rows if piece.row.length <= _SAMPLE_BYTES_MAX and not piece.skip]
            views = await asyncio.to_thread(self._store.fetch, Located(short, at_tail=False, end_of_segment=False))
        except (LookupError, PenstockError):
            return []
        return [bytes(view[_HEADER_SIZE:][: int.from_bytes(view[4:_HEADER_SIZE], "big")]) for view in views]

    def _counted(self, located: Located, *, stored: bool) -> list[Record]:
        """Count the events in another thread: there may be very many small ones."""
        pieces = zip(located.pieces, self._store.fetch(located), strict=True)
        return [Record(p.offset + p.row.length, *count_events(view, stored=stored)) for p, view in pieces]


def _highest(head: PackedHead) -> int:
    return max(numbers("q", head.columns.highest_times), default=NO_TIME)


def count_events(data: Buffer, *, stored: bool) -> tuple[int, int]:
    """The number of events, without those that only carry marks, and the highest event time of stored events."""
    at, rows, highest = 0, 0, NO_TIME
    while at + _HEADER_SIZE <= len(data):
        length = int.from_bytes(data[at + 4 : at + _HEADER_SIZE], "big")
        if stored and length >= LENGTH_MIN and at + HEAD.size <= len(data):
            highest = max(highest, HEAD.unpack_from(data, at)[4])
        rows += bool(length) or not stored
        at += _HEADER_SIZE + length
    return rows, highest


def ends_with_an_event(data: Buffer) -> bool:
    """Whether these bytes, which begin at the start of an event, end at the end of one."""
    at = 0
    while at + _HEADER_SIZE <= len(data):
        at += _HEADER_SIZE + int.from_bytes(data[at + 4 : at + _HEADER_SIZE], "big")
    return at == len(data)


# Resolves sources to their segments, and starting positions to offsets in them.


class Sources:
    def __init__(self, store: SegmentStore, records: Records, streams: PravegaStreams) -> None:
        self._store = store
        self._records = records
        self._streams = streams

    def segments(self, source: str) -> list[str]:
        """The existing segments of the sources. A source that does not exist yet has none."""
        parsed = Source.parse(source)
        if parsed.segment is not None:
            return [parsed.segment] if self._store.exists(parsed.segment) else []
        if parsed.form is Form.PRAVEGA:
            return self._streams.segments(parsed)
        names: list[str] = []
        while self._store.exists(name := connector_segment(parsed.name, len(names))):
            names.append(name)
        return names

    def all_segments(self, sources: Iterable[str]) -> list[str]:
        return [*dict.fromkeys(name for source in sources for name in self.segments(source))]

    async def resolve(self, sources: Sequence[str], starting: Starting) -> dict[str, int]:
        """The offset of `starting` in each of the sources' segments. "latest" means the end of the durable bytes."""
        self._streams.check(sources)
        names = self.all_segments(sources)
        match starting:
            case "earliest":
                return {name: self._records.begin(name) for name in names}
            case "latest":
                return {name: self._records.end(name) for name in names}
            case AtTime(timestamp_us):
                return {name: await self._at_time(name, timestamp_us) for name in names}
            case AtSegments(segments):
                return self._at_segments(sources, names, segments)
            case _:
                raise RequestError(f"{starting!r} is not a valid starting position")

    def _at_segments(self, sources: Sequence[str], names: list[str], given: Segments) -> dict[str, int]:
        parsed = [Source.parse(source) for source in sources]
        for name, offset in given.items():
            if not any(source.owns(name) for source in parsed):
                raise RequestError(f"segment {name!r} belongs to none of the sources {', '.join(sources)}")
            if offset > self._records.end(name):
                raise RequestError(f"segment {name!r} ends at {self._records.end(name)}, before {offset}")
            if not self._records.begins_an_event(name, offset):
                raise RequestError(
                    f"no event starts at offset {offset} of segment {name!r}",
                    "Use an offset from the offset column of a row, or from a cut.",
                )
        return {name: self._records.begin(name) for name in names} | dict(given)

    async def _at_time(self, name: str, timestamp_us: int) -> int:
        """The start of the first record with an event of this time or later; or the end."""
        at, end = self._records.begin(name), self._records.end(name)
        async for records in self._records.walk(name, at, end):
            for record in records:
                if record.highest >= timestamp_us:
                    return at
                at = record.end
        return at


def normalised(sources: Iterable[str]) -> tuple[str, ...]:
    """The sources in normal form, without duplicates. Raises RequestError for an invalid source."""
    return tuple(dict.fromkeys(str(Source.parse(source)) for source in sources))
