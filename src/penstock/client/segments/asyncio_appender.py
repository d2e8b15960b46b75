"""Appends to a segment, for asyncio."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from types import TracebackType
from typing import Self
from uuid import UUID

from penstock.client.segments.appending import Appending
from penstock.client.segments.asyncio_connection import AsyncConnection
from penstock.client.segments.batches import batches
from penstock.client.segments.failures import Interrupted, no_answer
from penstock.client.segments.retrying import async_retrying
from penstock.client.segments.window import AppendWindow
from penstock.core.errors import NoRoom
from penstock.core.types import Buffer
from penstock.protocol.segment import frame_events


class AsyncAppender:
    """As `Appender`, with two differences. An event leaves at once when none is on its way, else with those that come
    until one is acknowledged: there is no need to flush for that. And several tasks may append: each event goes in
    whole, in the order in which they get room.

    No task runs in the background: a lost connection is mended by the next `append` or `flush`.
    """

    def __init__(
        self,
        segment: str,
        writer_id: bytes,
        window: AppendWindow,
        connect: Callable[[], Awaitable[AsyncConnection]],
        *,
        block_bytes: int,
        timeout_seconds: float,
        retry_seconds: float,
    ) -> None:
        self._appending = Appending(segment, writer_id, window, self._on_change)
        self._window = window
        self._connect = connect
        self._block_bytes = block_bytes
        self._timeout_seconds = timeout_seconds
        self._retry_seconds = retry_seconds
        self._connection: AsyncConnection | None = None
        self._changed = asyncio.Event()
        self._mending = asyncio.Lock()
        self.last_number: int | None = None
        """The number of this writer's last event in the segment when it was opened; None if there is none."""

    async def open(self) -> Self:
        """Ask the worker where this writer stands; the client has done this."""
        await self._until(lambda: self._appending.is_open)
        self.last_number = self._window.acknowledged
        return self

    @property
    def writer_id(self) -> UUID:
        return UUID(bytes=self._appending.writer_id)

    @property
    def acknowledged(self) -> int | None:
        """The number of the last event that is known to be stored; None if there is none."""
        return self._window.acknowledged

    @property
    def taken(self) -> int | None:
        """The number of the last event that was taken, stored or not; None if there is none."""
        return self._window.taken

    @property
    def bytes_held(self) -> int:
        """Bytes taken and not acknowledged."""
        return self._window.bytes_held

    async def append(self, event: Buffer, *, number: int | None = None) -> int:
        """Take one event, copied. Returns its number, by default one more than the last one's; the first is 1."""
        framed = frame_events((event,))
        await self._wait_for_room(len(framed))
        taken = self._window.add(framed, 1, number)
        self._send()
        return taken

    async def append_many(self, events: Iterable[Buffer]) -> int | None:
        """Take events, copied, with the next numbers; returns the last. If it raises, `taken` says how far it got."""
        for framed, count in batches(events, self._block_bytes):
            await self._wait_for_room(len(framed))
            self._window.add(framed, count)
            self._send()
        return self._window.taken

    async def append_block(self, framed: Buffer, event_count: int, *, number: int | None = None) -> int:
        """Take events that have their headers already, as one block: stored as a whole or not at all. Not copied: the
        buffer must stay as it is until it is acknowledged. `number` is that of the last event.
        """
        await self._wait_for_room(len(framed))
        taken = self._window.add_block(framed, event_count, number)
        self._send()
        return taken

    async def flush(self) -> None:
        """Wait until everything that was taken so far is acknowledged."""
        self._window.close_block()
        target = self._window.taken
        await self._until(lambda: self._window.is_stored(target))

    async def close(self) -> None:
        """Drops what is not acknowledged."""
        self._appending.close()
        self._connection = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                await self.flush()
        finally:
            await self.close()

    async def _wait_for_room(self, size: int) -> None:
        while not (self._appending.is_healthy and self._window.has_room(size)):
            self._window.close_block()
            await self._until(lambda: self._appending.is_healthy and self._window.has_room(size))

    def _on_change(self) -> None:
        self._changed.set()
        self._send()

    def _send(self) -> None:
        """Send what may be sent. One block goes out even when the transport is full: its acknowledgement is what wakes
        us again.
        """
        connection = self._connection
        if connection is None or not self._appending.is_open:
            return
        if self._window.is_idle:
            self._window.close_block()
        while (self._window.is_idle or not connection.is_write_blocked) and (parts := self._appending.take()):
            connection.write(parts)

    async def _until(self, done: Callable[[], bool]) -> None:
        async with self._mending:
            while not done():
                async for attempt in async_retrying(self._retry_seconds, Interrupted, NoRoom):
                    with attempt:
                        await self._advance(done)

    async def _advance(self, done: Callable[[], bool]) -> None:
        """Raises what stopped it, unless there was progress: then the time to try again begins anew."""
        before = self._window.acknowledged
        try:
            await self._exchange(done)
        except (Interrupted, NoRoom):
            if self._window.acknowledged == before:
                raise

    async def _exchange(self, done: Callable[[], bool]) -> None:
        connection = await self._connected()
        while not done():
            self._changed.clear()
            self._send()
            await self._wait(connection)
            if self._appending.failure is not None:
                raise self._appending.failure

    async def _connected(self) -> AsyncConnection:
        self._connection = connection = await self._connect()
        if self._appending.must_set_up:
            connection.write([self._appending.set_up(connection.session)])
        return connection

    async def _wait(self, connection: AsyncConnection) -> None:
        try:
            async with asyncio.timeout(self._timeout_seconds):
                await self._changed.wait()
        except TimeoutError:
            connection.abort(no_answer(connection.session.address, self._timeout_seconds))
