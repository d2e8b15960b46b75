"""What a pipeline's cut sees of its sources: those of this shard in the store, those of others through followers."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import Protocol

from penstock.coordinator.follower import WINDOW_BYTES, Follower, Window, arrival_of
from penstock.coordinator.machine.state import State, source_of
from penstock.coordinator.records import Heads, Records, RecordView, Sources
from penstock.coordinator.settings import Connectors
from penstock.coordinator.watermark.output_log import OutputLog, Row
from penstock.coordinator.watermark.watermarks import OpenAt, OutputAt, first_mentions
from penstock.core.errors import NoSuchSegment
from penstock.protocol.api.pipelines import Segments
from penstock.protocol.stored.head import numbers, unpack_head
from penstock.protocol.stored.names import CONNECTOR_PREFIX, Source


class View(Protocol):
    """Of one pipeline."""

    @property
    def records(self) -> RecordView: ...

    def segments(self, source: str) -> list[str]:
        """The existing segments of a source."""
        ...

    def all_segments(self, sources: Iterable[str]) -> list[str]: ...

    def disorder_us(self, source: str) -> int:
        """How far the streams of a connector may be out of order."""
        ...

    async def open_at(self, source: str, at: Segments) -> OpenAt:
        """The state of a connector at these positions."""
        ...

    def output_at(self, state: State, source: Source, at: int) -> OutputAt:
        """What is known about an output there."""
        ...

    @property
    def blocked(self) -> str | None:
        """Why no cut can be decided: "blocked: …"."""
        ...

    @property
    def problem(self) -> str | None:
        """What the pipeline may be waiting for."""
        ...

    def lacks(self, upto: Segments) -> str | None:
        """What the pipeline waits for before it can read up to there, although that is durable: "blocked: …"."""
        ...

    async def prepare(self, positions: Segments, bytes_max: int) -> None:
        """A cut of so many bytes after these positions is about to be decided."""
        ...

    def read(self, positions: Segments) -> None:
        """The last cut is there."""
        ...


class LocalView:
    """All sources are in this shard: one for all pipelines."""

    blocked: str | None = None
    problem: str | None = None

    def __init__(self, records: Records, sources: Sources, connectors: Connectors, outputs: OutputLog) -> None:
        self.records: Records = records
        self.segments = sources.segments
        self.all_segments = sources.all_segments
        self.disorder_us = connectors.disorder_us
        self._connectors = connectors
        self._outputs = outputs

    async def open_at(self, source: str, at: Segments) -> OpenAt:
        segments = self.segments(source)
        open_now, has_finished = self._connectors.open_streams(source), self._connectors.has_finished(source)
        first = await first_mentions(self.records, segments, at)
        has_finished = has_finished and not first.seen  # else it continues, for readers from after its end
        finished = {*range(len(segments))} - first.finished if has_finished else set[int]()
        return OpenAt(first.open_before(open_now), finished, len(segments))

    def output_at(self, state: State, source: Source, at: int) -> OutputAt:
        producer, _, port = source.name.partition("/")
        pipeline = state.pipelines.get(producer)
        row = self._outputs.find(producer, pipeline, port, at)
        return OutputAt(row, pipeline is not None, at >= self.records.end(str(source.segment)))

    def lacks(self, upto: Segments) -> str | None:  # noqa: ARG002  a View
        return None

    async def prepare(self, positions: Segments, bytes_max: int) -> None:
        pass

    def read(self, positions: Segments) -> None:
        pass


RowsEnd = Callable[[str, int, int, int], Awaitable[int]]


class PlacedRecords:
    """A RecordView of a pipeline that reads sources of other shards.

    Records of connectors, also of this shard's own, are in windows: positions in different journals cannot be compared,
    so the order of records is that of their arrival times, which only their heads have.
    """

    def __init__(self, own: Records, followers: Mapping[str, Follower], rows_end: RowsEnd) -> None:
        """`rows_end`: asks the shard that has the segment."""
        self._own = own
        self._followers = followers
        self._rows_end = rows_end
        self._windows: dict[str, Window] = {}
        """Of this shard's own segments."""

    def _remote(self, name: str) -> Window | None:
        """None: the segment is here. A segment that is not known yet is empty."""
        follower = self._followers.get(source_of(name))
        return None if follower is None else follower.windows.get(name, _EMPTY)

    def _window(self, name: str) -> Window | None:
        """None: it is read from the store."""
        found = self._remote(name)
        if found is None and name.startswith(CONNECTOR_PREFIX):
            return self._windows.get(name, _EMPTY)
        return found

    def begin(self, name: str) -> int:
        remote = self._remote(name)
        return self._own.begin(name) if remote is None else remote.begin

    def end(self, name: str) -> int:
        window = self._window(name)
        return self._own.end(name) if window is None else window.end

    def stored_end(self, name: str) -> int:
        remote = self._remote(name)
        return self._own.end(name) if remote is None else remote.durable

    def boundary(self, name: str, start: int, limit: int) -> int:
        window = self._window(name)
        return self._own.boundary(name, start, limit) if window is None else window.boundary(start, limit)

    def position(self, name: str, offset: int) -> int:
        window = self._window(name)
        return self._own.position(name, offset) if window is None else window.arrival(offset)

    def arrived_before(self, name: str, start: int, end: int, position: int) -> int:
        window = self._window(name)
        if window is None:
            return self._own.arrived_before(name, start, end, position)
        return window.arrived_before(start, end, position)

    async def heads(self, name: str, start: int, end: int) -> AsyncIterator[Heads]:
        window, is_remote = self._window(name), self._remote(name) is not None
        if window is None or (not is_remote and not window.base <= start <= end <= window.end):
            async for own in self._own.heads(name, start, end):
                yield own
        elif found := window.heads(start, end):
            yield Heads([(at, memoryview(head)) for at, head in found], found[-1][0])
            await asyncio.sleep(0)

    async def rows_end(self, name: str, start: int, end: int, rows_max: int) -> int:
        window = self._window(name)
        if window is None:
            return await self._own.rows_end(name, start, end, rows_max)
        if not name.startswith(CONNECTOR_PREFIX):  # its records have no heads with the number of rows
            return await self._rows_end(name, start, end, rows_max)
        at, rows = start, 0
        for after, head in window.heads(start, end):
            found = unpack_head(head)
            rows += 1 if found is None else found.count
            if rows > rows_max and at > start:
                return at
            at = after
        return end

    async def prepare(self, name: str, position: int, bytes_max: int) -> None:
        """Extend the window of one of this shard's own connectors."""
        window = self._windows.get(name)
        if window is None or not window.base <= position <= window.end:
            window = self._windows[name] = Window(position)
        window.trim(position)
        limit = min(self._own.end(name), position + bytes_max)
        if window.end >= limit:
            return
        start = max(window.end, self._own.begin(name))
        async for heads in self._own.heads(name, start, self._own.end(name)):
            window.add(start, ((at, arrival_of(head), bytes(head)) for at, head in heads.found))
            start = heads.end
            if start >= limit or window.bytes >= WINDOW_BYTES:
                return


class PlacedView:
    """Some sources are in other shards: `shards` has theirs."""

    def __init__(
        self,
        own: LocalView,
        followers: Mapping[str, Follower],
        shards: Mapping[str, int],
        rows_end: RowsEnd,
        has_room: Callable[[], None],
    ) -> None:
        """`has_room` is called when the pipeline has read something."""
        self._has_room = has_room
        self._own = own
        self._followers = followers
        self._shards = shards
        self._records = PlacedRecords(own.records, followers, rows_end)

    @property
    def records(self) -> RecordView:
        return self._records

    def segments(self, source: str) -> list[str]:
        follower = self._followers.get(source)
        return self._own.segments(source) if follower is None else follower.segments

    def all_segments(self, sources: Iterable[str]) -> list[str]:
        return [*dict.fromkeys(name for source in sources for name in self.segments(source))]

    def disorder_us(self, source: str) -> int:
        follower = self._followers.get(source)
        return self._own.disorder_us(source) if follower is None else follower.disorder_us

    async def open_at(self, source: str, at: Segments) -> OpenAt:
        follower = self._followers.get(source)
        if follower is None:
            return await self._own.open_at(source, at)
        opening = follower.opening
        if opening is None:
            raise NoSuchSegment(
                f"the streams of {source!r} in shard {self._shards[source]} are not known", "Try again."
            )
        return OpenAt(numbers("Q", opening.streams), opening.finished, opening.segments)

    def output_at(self, state: State, source: Source, at: int) -> OutputAt:
        follower = self._followers.get(str(source))
        if follower is None:
            return self._own.output_at(state, source, at)
        is_known, watermark = follower.row(at)
        is_registered = follower.output is None or follower.output.is_registered
        is_at_end = at >= self._records.stored_end(str(source.segment))
        return OutputAt(Row(watermark, {}) if is_known else None, is_registered, is_at_end)

    @property
    def blocked(self) -> str | None:
        return next((self._waits(source, one) for source, one in self._followers.items() if not one.is_ready), None)

    @property
    def problem(self) -> str | None:
        return next((self._waits(source, one) for source, one in self._followers.items() if one.problem), None)

    def lacks(self, upto: Segments) -> str | None:
        for source, follower in self._followers.items():
            for name, at in upto.items():
                if source_of(name) == source and self._records.end(name) < at:
                    return self._waits(source, follower)
        return None

    def _waits(self, source: str, follower: Follower) -> str:
        problem = follower.problem or "its records are on their way"
        return f"blocked: {source} waits for shard {self._shards[source]}: {problem}"

    async def prepare(self, positions: Segments, bytes_max: int) -> None:
        for name, at in positions.items():
            if name.startswith(CONNECTOR_PREFIX) and source_of(name) not in self._followers:
                await self._records.prepare(name, at, bytes_max)

    def read(self, positions: Segments) -> None:
        for source, follower in self._followers.items():
            follower.read({name: at for name, at in positions.items() if source_of(name) == source})
        self._has_room()


_EMPTY = Window()
