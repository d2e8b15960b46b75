"""Source storage: what the streams of one `out` port share of their source, and what they wait for."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from itertools import count
from typing import Any, NamedTuple

from penstock.connectors.api import StreamRef
from penstock.connectors.registry import Chains
from penstock.core.errors import NoRoom
from penstock.core.types import Position
from penstock.ingest.batch import Batch, Placed, Values, record_slices, shared_batch
from penstock.ingest.catalog import SourceCatalog
from penstock.ingest.completion import Completion
from penstock.ingest.in_flight import Share
from penstock.ingest.known_streams import COUNT_MAX, ephemeral_id
from penstock.ingest.settings import AckMode
from penstock.ingest.source_log import Companion, SourceLog
from penstock.ingest.worker_sources import DeadLetters
from penstock.protocol.stored.head import Mark
from penstock.store.journal import Durability

WINDOW_BYTES = 8 << 20
"""The same as for a session of the connector protocol. A single send may exceed it."""

LOOK_SECONDS = 0.05
"""Between two checks for room, while a stream waits: pipelines make room a few times a second."""

_CHECK_SECONDS = 0.2


class Window:
    """Limits what a port has stored that is not durable yet: the memory that its peers may occupy."""

    def __init__(
        self, durability: Durability, check: Callable[[], None], share: Share, size: int = WINDOW_BYTES
    ) -> None:
        """`check` raises StoreFailed if nothing will become durable any more."""
        self._durability = durability
        self._check = check
        self._share = share
        self._size = size
        self._open = asyncio.Event()
        self._open.set()

    @property
    def is_open(self) -> bool:
        return self._share.in_flight_bytes < self._size and self._share.has_room

    async def wait(self) -> None:
        """Return when the window may be open. Raises StoreFailed."""
        while not self.is_open:
            self._check()
            self._open.clear()  # others may have used up the shared budget since it was set
            with suppress(TimeoutError):
                async with asyncio.timeout(_CHECK_SECONDS):
                    await self._open.wait()

    def sent(self, position: Position, size: int) -> None:
        """These bytes are durable when the journal is, up to this position."""
        self._share.received(size)
        self._durability.after(position, partial(self._settled, size))

    def _settled(self, size: int) -> None:
        self._share.settled(size)
        if self.is_open:
            self._open.set()


class Room:
    """Room in a source: within its quota, and on the disk. Many streams wait for it together."""

    def __init__(self, log: SourceLog, check: Callable[[], None]) -> None:
        """`check` raises StoreFailed if there will never be room again."""
        self._log = log
        self._check = check
        self._looking: asyncio.Task[None] | None = None

    @property
    def there(self) -> bool:
        """Whether there is room. Computed on every call, in a few microseconds."""
        return self._log.has_room()

    async def wait(self) -> None:
        """Return when there may be room. One task checks on behalf of all waiting streams. Raises StoreFailed."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        await asyncio.shield(self._looking)

    async def _look(self) -> None:
        await asyncio.sleep(LOOK_SECONDS)
        while not self.there:
            self._check()
            await asyncio.sleep(LOOK_SECONDS)

    def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()


class CompletedOffsets:
    """Waits until every pipeline has completed what is stored. A wait is cancelled with its caller."""

    def __init__(self, completion: Completion) -> None:
        self._completion = completion
        self._waiting: defaultdict[int, list[tuple[int, int, asyncio.Future[None]]]] = defaultdict(list)
        self._numbers = count()
        completion.watch(self._moved)

    def close(self) -> None:
        self._completion.unwatch(self._moved)

    async def reached(self, route: int, end: int) -> None:
        """Return when the segment is completed up to this offset."""
        if end > self._completion.completed(route):
            done = asyncio.get_running_loop().create_future()
            heappush(self._waiting[route], (end, next(self._numbers), done))
            await done

    def _moved(self) -> None:
        for route, heap in self._waiting.items():
            passed = self._completion.completed(route)
            while heap and heap[0][0] <= passed:
                done = heappop(heap)[2]
                if not done.done():
                    done.set_result(None)


class EphemeralIds:
    """Ids for streams that cannot resume, from the source's incarnation, which is durable before the first of them and
    is raised again when its ids are used up.
    """

    def __init__(self, log: SourceLog, durability: Durability, count_max: int = COUNT_MAX) -> None:
        self._log = log
        self._durability = durability
        self._count_max = count_max
        self._count = count_max
        self._raising = asyncio.Lock()

    async def begin(self) -> None:
        """Raise the incarnation now. Waits for room on the disk."""
        async with self._raising:
            await self._raise()

    async def next_id(self) -> int:
        """An id that was never used."""
        while True:
            async with self._raising:
                if self._count >= self._count_max:
                    await self._raise()
            self._count += 1
            found = ephemeral_id(self._log.streams.incarnation, self._count)
            if found not in self._log.streams:
                return found

    async def _raise(self) -> None:
        while True:
            try:
                self._log.raise_incarnation()
                break
            except NoRoom:
                await asyncio.sleep(LOOK_SECONDS)
        await self._durability.caught_up()
        self._count = 0


@dataclass(slots=True)
class PortCounters:
    """Counters of the connector's own streams, since its host was created."""

    events: int = 0
    bytes: int = 0
    """Bytes of events, as they are stored."""
    duplicates: int = 0
    streams: int = 0
    """Streams that were opened."""
    failures: int = 0
    """Failures of the connector's `run`."""


class Record(NamedTuple):
    """What is stored at once: events of a stream, and dead letters."""

    batch: Batch
    beside: Companion | None = None
    untimed: int = 0
    """Events without a usable event time in their data."""
    reason: str = ""
    """That of the first of them."""


class Appending(NamedTuple):
    """Events of one stream, and `marks` before them. `stored` is called in the step in which they are stored, with
    where they are.
    """

    route: int
    stream_id: int
    values: Values
    marks: Callable[[], list[Mark]]
    stored: Callable[[Placed], None]
    done: asyncio.Future[None]


class SharedRecords:
    """Streams that store events in the same turn of the event loop share a record of each segment: with many
    connections there is one record for many of them, and not one for each. What is stored, and in which order within a
    stream, stays the same.
    """

    def __init__(self, log: SourceLog, count: Callable[[int, int, Position], None]) -> None:
        """`count` gets the number, the size and the position of what was appended."""
        self._log = log
        self._count = count
        self._waiting: list[Appending] = []

    async def append(
        self,
        route: int,
        stream_id: int,
        values: Values,
        marks: Callable[[], list[Mark]],
        stored: Callable[[Placed], None],
    ) -> None:
        """Raises NoRoom with nothing stored. If it is cancelled, all of it is stored, or nothing. A stream has one at a
        time.
        """
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_soon(self._flush)
        appending = Appending(route, stream_id, values, marks, stored, loop.create_future())
        self._waiting.append(appending)
        await appending.done

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        by_route: dict[int, list[Appending]] = {}
        for appending in waiting:
            if not appending.done.done():  # it was not cancelled
                by_route.setdefault(appending.route, []).append(appending)
        for group in by_route.values():
            sizes = [one.values.stored_size() for one in group]
            for rows in record_slices(sizes):
                self._store(group[rows])

    def _store(self, group: Sequence[Appending]) -> None:
        try:
            batch = self._batch(group)
            (placed,) = self._log.append([batch])
        except Exception as error:
            if len(group) == 1 or isinstance(error, NoRoom):
                for one in group:
                    one.done.set_exception(error)
                return
            for one in group:  # what is wrong with one of them does not concern the others
                self._store([one])
            return
        for one in group:
            one.stored(placed)
            one.done.set_result(None)
        self._count(batch.events, len(batch.data), placed.position)

    def _batch(self, group: Sequence[Appending]) -> Batch:
        """No clock mark may come between an event's time of arrival and its position in the journal."""
        times = self._log.times
        arrival = times.clock.now()
        for is_arrival in {isinstance(one.values.times_us, int) for one in group}:
            times.record(own_times=not is_arrival)
        return shared_batch(
            group[0].route,
            [(one.stream_id, one.values) for one in group],
            [mark for one in group for mark in one.marks()],
            arrival,
        )


class SourceStorage:
    """Opens the source, or creates it. `draining` is set when nothing more is read. Raises Damaged."""

    def __init__(
        self,
        sources: SourceCatalog,
        name: str,
        chains: Chains,
        counters: PortCounters,
        dead_letters: DeadLetters,
        draining: asyncio.Event,
    ) -> None:
        check = sources.store.journal.check
        self._sources = sources
        self._counters = counters
        self._completion = sources.completion(name)
        self.log = sources.configured(name)
        self.chains = chains
        self.dead_letters = dead_letters
        self.draining = draining
        self.window = Window(sources.durability, check, sources.in_flight.share())
        self.room = Room(self.log, check)
        self.completed_offsets = CompletedOffsets(self._completion)
        self.ids = EphemeralIds(self.log, sources.durability)
        self.records = SharedRecords(self.log, self._appended)
        self._known_room = False
        self._awaited: tuple[Position, asyncio.Event] | None = None
        self.has_many_streams = False
        """Whether several streams are open, which may share records."""

    @property
    def has_interceptors(self) -> bool:
        return bool(self.chains.towards_us)

    @property
    def durable_position(self) -> Position:
        return self._sources.store.journal.durable

    @property
    def end_position(self) -> Position:
        """The end of what is stored, durable or not."""
        return self._sources.store.journal.end

    def completed(self, route: int) -> float:
        """Up to where every pipeline has completed the segment."""
        return self._completion.completed(route)

    @property
    def has_room(self) -> bool:
        """Whether there is room in the window and in the source. Streams ask before everything that they send: the
        answer yes holds until something is stored, or the turn of the event loop ends.
        """
        if self._known_room:
            return self.window.is_open
        found = self.window.is_open and self.room.there
        if found:
            self._known_room = True
            asyncio.get_running_loop().call_soon(self._forget_room)
        return found

    def _forget_room(self) -> None:
        self._known_room = False

    def stored(self, events: int, size: int, position: Position, beside: Companion | None = None) -> None:
        """Count what was appended. It occupies the window until it is durable."""
        if beside is not None:
            size_beside = len(beside.batch.data)
            self.window.sent(position, size_beside)
            self.dead_letters.stored(beside)
        self._appended(events, size, position)

    def _appended(self, events: int, size: int, position: Position) -> None:
        self._known_room = False
        self.window.sent(position, size)
        self._counters.events += events
        self._counters.bytes += size
        for counters in (self._sources.counters, self.log.counters):
            counters.messages += events
            counters.message_bytes += size
        self.log.snapshot_if_due()

    async def dead_letter(
        self, data: bytes, reason: str, stream: StreamRef, name: str, metadata: Mapping[str, Any]
    ) -> None:
        """Store a dead letter. Waits for room in the window, because dead letters occupy memory like events."""
        await self.window.wait()
        await self.dead_letters.write(data, reason, stream, name, metadata)
        self.window.sent(self._sources.store.journal.end, len(data))

    def skipped(self, duplicates: int) -> None:
        for counters in (self._counters, self._sources.counters, self.log.counters):
            counters.duplicates += duplicates

    async def durable(self, position: Position) -> None:
        if self._awaited is None or self._awaited[0] != position:  # many streams wait for the same record
            self._awaited = position, asyncio.Event()
            self._sources.durability.after(position, self._awaited[1].set)
        await self._awaited[1].wait()

    async def wait_for_room(self) -> None:
        """Return when there may be room in the window and in the source, or when nothing more is read."""
        if not self.window.is_open:
            await self.window.wait()
            return
        waiting = [asyncio.ensure_future(self.room.wait()), asyncio.ensure_future(self.draining.wait())]
        try:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()
        for task in done:
            task.result()

    def close(self) -> None:
        self.completed_offsets.close()
        self.room.close()


class StoredTogether:
    """Implements `connectors.api.Together`."""

    def __init__(self, storage: SourceStorage, count: int) -> None:
        self.ids: list[int | None] = [None] * count
        self._storage = storage
        self._position: Position | None = None
        self._ends: dict[int, int] = {}

    def placed(self, route: int, placed: Placed) -> None:
        """Some of the events are there; later ones are behind them."""
        self._position, self._ends[route] = placed.position, placed.end

    async def complete(self) -> None:
        storage = self._storage
        if self._position is not None:
            await storage.durable(self._position)
        if storage.log.settings.ack is AckMode.CHECKPOINT:
            for route, end in self._ends.items():
                await storage.completed_offsets.reached(route, end)
