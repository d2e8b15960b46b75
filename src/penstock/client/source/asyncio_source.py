"""The asyncio source."""

import asyncio
from collections.abc import AsyncIterable
from contextlib import suppress
from math import isinf

from penstock.client.source.asyncio_connection import AsyncConnection
from penstock.client.source.base import SourceBase, reason_of
from penstock.client.source.failures import Lost
from penstock.client.source.message import AsyncFactory, Factory
from penstock.client.source.outflow import Outflow
from penstock.client.source.pumps import PumpThread, pump
from penstock.client.source.stream import SourceStream
from penstock.client.source.supply import Supply
from penstock.core.errors import Unavailable


class AsyncSource(SourceBase[Factory | AsyncFactory]):
    """As `Source`, for one event loop, with factories of plain or of asynchronous iterators.

    A stream whose iterator waits holds up no other, and no ACK: an asynchronous one is awaited in a task, a plain one
    is asked in a thread of its own. Factories, what `discover` was given, and `on_ack` are called in the loop and
    should not wait. Each stream reads ahead by `supply.SUPPLY_BYTES` at most.
    """

    _loop: asyncio.AbstractEventLoop | None = None

    async def run(self) -> None:
        """As `Source.run`. When it is cancelled it closes the connection and ends the iterators."""
        self._begin()
        self._changed = asyncio.Event()
        self._threads: dict[SourceStream, PumpThread] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        try:
            while not self._is_over():
                await self._attempt(self._loop)
        finally:
            self._end()
            self._loop = None
            for thread in self._threads.values():
                thread.close()

    async def finish(self) -> None:
        """As `Source.finish`."""
        await asyncio.to_thread(self._finish)

    async def declare_watermark(self, time_us: int, stream: str | None = None, *, after: int | None = None) -> None:
        """As `Source.declare_watermark`."""
        await asyncio.to_thread(self._declare, time_us, stream, after)

    def _wake(self) -> None:
        loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):  # the loop was closed in this moment
                loop.call_soon_threadsafe(self._changed.set)

    async def _attempt(self, loop: asyncio.AbstractEventLoop) -> None:
        """One connection, and the pause after it if it was lost."""
        try:
            connection = await self._connect()
            try:
                await self._serve(connection, loop)
            finally:
                connection.close()
                await self._end_tasks()
                if connection.session.was_useful(loop.time()):
                    self._reconnecting.progressed()
        except Lost as error:
            if not self._is_over():
                await self._sleep(self._pause(error, loop.time()), loop)

    async def _connect(self) -> AsyncConnection:
        try:
            return await AsyncConnection.open(self._terms, self._reconnecting.address, self._ssl, self._changed)
        except Unavailable:
            self._reconnecting.not_connected()
            raise

    async def _sleep(self, seconds: float, loop: asyncio.AbstractEventLoop) -> None:
        deadline = loop.time() + seconds
        while not self._is_over() and loop.time() < deadline:
            self._changed.clear()
            await self._wait(deadline, loop)

    async def _wait(self, until: float, loop: asyncio.AbstractEventLoop) -> None:
        """For a change. The loop has its turn in any case."""
        if until <= loop.time():
            await asyncio.sleep(0)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout_at(None if isinf(until) else until):
                await self._changed.wait()

    async def _serve(self, connection: AsyncConnection, loop: asyncio.AbstractEventLoop) -> None:
        outflow = Outflow(connection.session, loop.time)
        try:
            while not self._is_over():
                self._changed.clear()
                await self._wait(self._advance(connection, outflow, loop), loop)
                self._tell_acks(connection.session)
                if connection.lost is not None:
                    raise connection.lost
            await connection.farewell()
        except Exception as error:
            if not connection.session.is_over and not isinstance(error, Lost):
                connection.session.fail(reason_of(error))
                await connection.farewell()
            raise
        finally:
            outflow.close()

    def _advance(self, connection: AsyncConnection, outflow: Outflow, loop: asyncio.AbstractEventLoop) -> float:
        """Write what may be sent, and say when there is more to do."""
        session = connection.session
        self._look(loop.time())
        self._offer(session, loop.time())
        opened, session.opened = session.opened, []
        for stream in opened:
            outflow.add(self._start(stream))
        due = session.poll(loop.time())
        outflow.fill(connection.room_bytes)
        connection.write()
        if connection.room_bytes:
            due = min(due, outflow.due())
        return min(due, self._look_at)

    def _start(self, stream: SourceStream) -> Supply:
        given = stream.factory(stream.stored)
        supply = Supply(stream, self._wake)
        if isinstance(given, AsyncIterable):
            task = asyncio.create_task(pump(supply, aiter(given), self._poll_seconds))
            self._tasks.add(task)
        else:
            if stream not in self._threads:
                self._threads[stream] = PumpThread(stream.name, self._poll_seconds)
            self._threads[stream].fill(supply, iter(given))
        return supply

    async def _end_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
