"""Listens for the segment protocol and keeps what all connections share."""

import asyncio
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from penstock.segment_server.connection import SegmentConnection
from penstock.segment_server.settings import Counters, ServerSettings
from penstock.store.journal import Durability
from penstock.store.store import SegmentStore

# Reads that wait at a segment's tail until there is data, the segment ends, or their time is up.


class TailReads:
    """Waiting reads by segment. Each is woken once."""

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


_SWEEP_SECONDS = 1.0


class SegmentServer:
    """Serves one store, in one event loop. Nothing is acknowledged before it is durable."""

    def __init__(self, store: SegmentStore, durability: Durability, settings: ServerSettings) -> None:
        self.store = store
        self.settings = settings
        self.counters = Counters()
        self.loop = asyncio.get_running_loop()
        self.durability = durability
        self.durability.after_each_group(self._after_group)
        self.tail = TailReads(self.loop, settings.tail_wait_seconds)
        self.read_pool = ThreadPoolExecutor(settings.read_threads, "penstock-read")
        self.paused: set[SegmentConnection] = set()
        self.to_flush: set[SegmentConnection] = set()
        self._connections: set[SegmentConnection] = set()
        self._unacknowledged = 0
        self._flush_called = False
        self._last_closed: asyncio.Event | None = None

    async def start(self) -> int:
        """Listen; returns the port."""
        settings = self.settings
        self._listener = await self.loop.create_server(
            lambda: SegmentConnection(self), settings.host, settings.port, ssl=settings.ssl, backlog=1024
        )
        self._sweep = self.loop.create_task(self._sweep_stalled())
        port: int = self._listener.sockets[0].getsockname()[1]
        return port

    async def stop(self) -> None:
        """Take nothing new, acknowledge what was taken, and close."""
        self._listener.close()
        self._sweep.cancel()
        self.tail.wake_all()
        for connection in list(self._connections):
            connection.stop_reading()
        with suppress(TimeoutError):
            async with asyncio.timeout(self.settings.drain_seconds):
                await self.durability.caught_up()
                for connection in list(self._connections):
                    connection.flush()
                    connection.close()
                await self._all_closed()
        for connection in list(self._connections):
            connection.abort()
        await asyncio.sleep(0)
        self.read_pool.shutdown(wait=False, cancel_futures=True)

    async def _all_closed(self) -> None:
        if self._connections:
            self._last_closed = asyncio.Event()
            await self._last_closed.wait()

    # What connections report.

    def opened(self, connection: SegmentConnection) -> bool:
        """False when there are too many."""
        if len(self._connections) >= self.settings.connections_max:
            self.counters.connections_refused += 1
            return False
        self.counters.connections += 1
        self._connections.add(connection)
        return True

    def closed(self, connection: SegmentConnection) -> None:
        self._connections.discard(connection)
        self.paused.discard(connection)
        self.to_flush.discard(connection)
        if self._last_closed is not None and not self._connections:
            self._last_closed.set()

    def taken(self, size: int) -> None:
        self._unacknowledged += size

    def released(self, size: int) -> None:
        self._unacknowledged -= size

    @property
    def is_full(self) -> bool:
        return self._unacknowledged > self.settings.unacknowledged_bytes_total_max

    def gauges(self) -> dict[str, int]:
        return {
            "open_connections": len(self._connections),
            "paused_connections": len(self.paused),
            "unacknowledged_bytes": self._unacknowledged,
            "tail_reads": len(self.tail),
        }

    def status(self) -> dict[str, int]:
        return self.gauges() | self.counters.as_dict()

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

    async def _sweep_stalled(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            for connection in list(self._connections):
                connection.end_if_stalled(self.loop.time())
