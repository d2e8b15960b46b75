"""Listens for the segment protocol and keeps what all connections share."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from penstock.segment_server.connection import SegmentConnection
from penstock.segment_server.counters import Counters
from penstock.segment_server.settings import ServerSettings
from penstock.segment_server.tail import TailReads
from penstock.store.durability import Durability
from penstock.store.store import SegmentStore

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
