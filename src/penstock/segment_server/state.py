"""What all connections of a segment server share: the store, the limits, and who waits for what."""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import asdict
from typing import Protocol

from penstock.access.file import AccessControl
from penstock.access.refusals import RefusalPace, Refusals
from penstock.core.connection_limits import ConnectionLimits
from penstock.core.types import Position
from penstock.protocol.api.status import SegmentServerStatus
from penstock.segment_server.caller import CheckStaging
from penstock.segment_server.settings import Counters, ServerSettings
from penstock.segment_server.tables import Tables
from penstock.store.index import ClosedIndex
from penstock.store.journal import Durability
from penstock.store.store import SegmentStore


class Connection(Protocol):
    """What the server does with a connection."""

    def flush(self) -> None:
        """Send the replies that may be sent."""

    def throttle(self) -> None:
        """Pause or resume reading, as its limits allow."""

    def stop_reading(self) -> None:
        """Accept no more requests; those accepted are still answered."""

    def end_if_silent(self, now: float) -> None:
        """Close it if its peer has been silent for longer than its state allows."""

    @property
    def idle_since(self) -> float | None:
        """As `Guest` of `core.connection_limits`."""

    @property
    def is_authenticated(self) -> bool:
        """As `Guest`."""

    def evict(self) -> None:
        """As `Guest`."""

    def end_if_revoked(self) -> None:
        """Close it if its peer's access was revoked or changed."""

    def close(self) -> None:
        """Close it once everything is sent."""

    def abort(self) -> None:
        """Close it at once."""


Locate = Callable[[str], Awaitable[str]]
"""The segment address of the process that has this segment, which is not here; "" if no other has it either."""


class TailReads:
    """Reads that wait at a segment's tail until there is data, the segment ends, or their time is up. Each is woken
    once.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, wait_seconds: float) -> None:
        self._loop = loop
        self._wait_seconds = wait_seconds
        self._waiting: dict[str, dict[int, Callable[[], None]]] = defaultdict(dict)
        self._next = 0

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def wait(self, segment: str, answer: Callable[[], None]) -> Callable[[], None]:
        """Call `answer` when the segment changes or the time is up. Returns what cancels it."""
        number = self._next = self._next + 1
        timer = self._loop.call_later(self._wait_seconds, lambda: self._wake_one(segment, number))

        def woken() -> None:
            timer.cancel()
            answer()

        self._waiting[segment][number] = woken

        def cancel() -> None:
            timer.cancel()
            self._remove(segment, number)

        return cancel

    def wake(self, segment: str) -> None:
        for woken in self._waiting.pop(segment, {}).values():
            woken()

    def wake_all(self) -> None:
        for segment in list(self._waiting):
            self.wake(segment)

    def _wake_one(self, segment: str, number: int) -> None:
        woken = self._remove(segment, number)
        if woken is not None:
            woken()

    def _remove(self, segment: str, number: int) -> Callable[[], None] | None:
        waiting = self._waiting.get(segment)
        if waiting is None:
            return None
        woken = waiting.pop(number, None)
        if not waiting:
            self._waiting.pop(segment, None)
        return woken


class ServerState:
    """One for each server. Connections report to it; all of it belongs to one event loop."""

    def __init__(
        self,
        store: SegmentStore,
        durability: Durability,
        settings: ServerSettings,
        access: AccessControl,
        refusals: Refusals,
    ) -> None:
        self.store = store
        self.tables = Tables(store)
        self.access = access
        self.refusals = refusals
        self.check_staging: CheckStaging = lambda _: None
        self.locate: Locate | None = None
        self.claim: Locate | None = None
        self.settings = settings
        self.counters = Counters()
        self.loop = asyncio.get_running_loop()
        self.durability = durability
        self.durability.after_each_group(self._after_group)
        self.tail = TailReads(self.loop, settings.tail_wait_seconds)
        self.read_pool = ThreadPoolExecutor(settings.read_threads, "penstock-read")
        self.fetch_pool = ThreadPoolExecutor(settings.fetch_threads, "penstock-fetch")
        self._index_loads: dict[Position, asyncio.Future[ClosedIndex]] = {}
        self.connections: set[Connection] = set()
        self._limits = ConnectionLimits(settings.connections_max, settings.address_max)
        self.refusal_pace = RefusalPace()
        self.paused: set[Connection] = set()
        self.to_flush: set[Connection] = set()
        self._unacknowledged = 0
        self._flush_called = False
        self._last_closed: asyncio.Event | None = None

    def opened(self, connection: Connection, address: str) -> bool:
        """False when there are too many, and none of them is idle."""
        if not self._limits.admit(connection, address):
            self.counters.connections_refused += 1
            return False
        self.counters.connections += 1
        self.connections.add(connection)
        return True

    def closed(self, connection: Connection) -> None:
        self._limits.leave(connection)
        self.connections.discard(connection)
        self.paused.discard(connection)
        self.to_flush.discard(connection)
        if self._last_closed is not None and not self.connections:
            self._last_closed.set()

    def pool(self, *, is_here: bool) -> Executor:
        """For a read, by whether it need not wait for a network."""
        return self.read_pool if is_here else self.fetch_pool

    def load_index(self, chapter: Position) -> "asyncio.Future[ClosedIndex]":
        """All who wait for the index of a chapter share one load."""
        found = self._index_loads.get(chapter)
        if found is None:
            indexes = self.store.indexes
            pool = self.pool(is_here=indexes.is_here(chapter))
            found = self._index_loads[chapter] = self.loop.run_in_executor(pool, indexes.load, chapter)
            found.add_done_callback(lambda _: self._index_loads.pop(chapter))
        return found

    def taken(self, size: int) -> None:
        self._unacknowledged += size

    def released(self, size: int) -> None:
        self._unacknowledged -= size

    @property
    def is_full(self) -> bool:
        return self._unacknowledged > self.settings.unacknowledged_bytes_total_max

    def status(self) -> SegmentServerStatus:
        return SegmentServerStatus(
            open_connections=len(self.connections),
            paused_connections=len(self.paused),
            unacknowledged_bytes=self._unacknowledged,
            tail_reads=len(self.tail),
            **asdict(self.counters),
        )

    def flush_soon(self) -> None:
        if not self._flush_called:
            self._flush_called = True
            self.loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_called = False
        flushing, self.to_flush = self.to_flush, set()
        for connection in flushing:
            connection.flush()

    def _after_group(self) -> None:
        for name in self.store.grown():
            self.tail.wake(name)
        self._flush()
        for connection in list(self.paused):
            connection.throttle()

    async def all_closed(self) -> None:
        """Return when no connection is open."""
        if self.connections:
            self._last_closed = asyncio.Event()
            await self._last_closed.wait()
