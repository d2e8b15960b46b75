"""Appenders to a segment: blocking, and for asyncio."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from types import TracebackType
from typing import Self
from uuid import UUID

from penstock.client.segments.connections import AsyncConnection, BlockingConnection, Session
from penstock.client.segments.failures import Interrupted, async_retrying, error_of, no_answer, retrying
from penstock.client.segments.window import AppendWindow
from penstock.core.errors import NoRoom, PenstockError, ProtocolError
from penstock.core.types import Buffer
from penstock.protocol.segment import (
    HEADER_SIZE,
    NO_EVENT_NUMBER,
    VERSIONED,
    AppendSetup,
    DataAppended,
    Failure,
    Reply,
    SetupAppend,
    encode_append,
    frame_events,
)

# A writer's appends to one segment, over as many connections as needed. No I/O.


def _ignore() -> None:
    pass


class Appending:
    """Set up, send blocks, take acknowledgements; after a failure or lost connection, set up again: the server accepts
    nothing more from a failed appender, and its reply to the set-up contains what it has stored.

    Each set-up has its own request id, which its blocks carry: replies to blocks of an earlier one are dropped.
    """

    def __init__(
        self, segment: str, writer_id: bytes, window: AppendWindow, on_change: Callable[[], None] = _ignore
    ) -> None:
        self.segment = segment
        self.writer_id = writer_id
        self.window = window
        self.is_open = False
        self.failure: PenstockError | None = None
        """Why it must be set up again; None before the first time, and while there is no failure."""
        self._on_change = on_change
        self._session: Session | None = None
        self._request_id = 0

    @property
    def must_set_up(self) -> bool:
        return self._session is None

    @property
    def is_healthy(self) -> bool:
        """Open, and there was room according to the last reply."""
        return self.is_open and not self.window.is_probing

    def set_up(self, session: Session) -> bytes:
        """The bytes to send to start, or to start again."""
        self.close()
        self.failure = None
        self._session = session
        self._request_id = session.expect(self)
        return VERSIONED.encode(SetupAppend(self.writer_id, self.segment, session.token, self._request_id))

    def take(self) -> list[Buffer]:
        """The next block, encoded; empty if there is none, or it may not be sent now."""
        block = self.window.take() if self.is_open else None
        if block is None:
            return []
        return encode_append(
            self.writer_id,
            block.data,
            event_count=block.event_count,
            event_number=block.event_number,
            request_id=self._request_id,
        )

    def close(self) -> None:
        """Accept no more replies."""
        if self._session is not None:
            self._session.forget(self._request_id)
            self._session = None
        self.is_open = False

    def on_reply(self, reply: Reply) -> None:
        try:
            self._take_reply(reply)
        except PenstockError as error:
            self._fail(error)
        self._on_change()

    def on_lost(self, error: PenstockError) -> None:
        self._fail(error)
        self._on_change()

    def _take_reply(self, reply: Reply) -> None:
        match reply:
            case DataAppended() if self.is_open:
                self.window.acknowledge(reply.acknowledged)
            case AppendSetup() if not self.is_open:
                self.window.set_up(None if reply.acknowledged == NO_EVENT_NUMBER else reply.acknowledged)
                self.is_open = True
            case Failure():
                raise error_of(reply)
            case _:
                raise ProtocolError(f"{type(reply).__name__} is not a reply to an append")

    def _fail(self, error: PenstockError) -> None:
        self.close()
        self.failure = error
        if isinstance(error, NoRoom):
            self.window.probe()


# Events in batches, so that the work per event is small.


def batches(events: Iterable[Buffer], block_bytes: int) -> Iterator[tuple[bytes, int]]:
    """The events with their headers, about a block at a time, and their number."""
    batch: list[Buffer] = []
    size = 0
    for event in events:
        size += HEADER_SIZE + len(event)
        if size > block_bytes and batch:
            yield frame_events(batch), len(batch)
            batch, size = [], HEADER_SIZE + len(event)
        batch.append(event)
    if batch:
        yield frame_events(batch), len(batch)


_SEND_AHEAD_BYTES = 2**20
"""Passed to the connection before it can send them, so that one system call sends several blocks."""


class AppenderState:
    """What both appenders report."""

    def __init__(self, appending: Appending) -> None:
        self._appending = appending
        self._window: AppendWindow = appending.window

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
    def buffered_bytes(self) -> int:
        """Bytes taken and not acknowledged."""
        return self._window.buffered_bytes


class Appender(AppenderState):
    """One writer's appends to one segment: stored once each, in order, despite lost connections and restarted workers.

    An event is sent when its block is full or on `flush`; it is stored when it is acknowledged, and buffered until
    then. At most `window_bytes` are buffered. `append` waits for room in the window. While the connection is lost, or
    the segment has no room, it retries for `retry_seconds` and then raises: then this event was not taken. If `flush`
    raises, everything taken stays buffered, and it may be called again. Leaving `with` on an error drops what is not
    acknowledged: a writer that returns with the same id finds in `last_number` where to continue.

    Not thread-safe.
    """

    def __init__(
        self, appending: Appending, connect: Callable[[], BlockingConnection], block_bytes: int, retry_seconds: float
    ) -> None:
        super().__init__(appending)
        self._connect = connect
        self._block_bytes = block_bytes
        self._retry_seconds = retry_seconds
        self._connection: BlockingConnection | None = None
        try:
            self._until(lambda: appending.is_open)
        except BaseException:
            self.close()
            raise
        self.last_number = self._window.acknowledged
        """The number of this writer's last event in the segment when it was opened; None if there is none."""

    def append(self, event: Buffer, *, number: int | None = None) -> int:
        """Take one event, copied. Returns its number, by default one more than the last one's; the first is 1."""
        framed = frame_events((event,))
        self._wait_for_room(len(framed))
        taken = self._window.add(framed, 1, number)
        self._pump()
        return taken

    def append_many(self, events: Iterable[Buffer]) -> int | None:
        """Take events, copied, with the next numbers; returns the last. If it raises, `taken` is the last one taken."""
        for framed, count in batches(events, self._block_bytes):
            self._wait_for_room(len(framed))
            self._window.add(framed, count)
            self._pump()
        return self._window.taken

    def append_block(self, framed: Buffer, event_count: int, *, number: int | None = None) -> int:
        """Take events that already have their headers, as one block: stored as a whole or not at all. Not copied: the
        buffer must not change until it is acknowledged. `number` is that of the last event.
        """
        self._wait_for_room(len(framed))
        taken = self._window.add_block(framed, event_count, number)
        self._pump()
        return taken

    def flush(self) -> None:
        """Wait until everything that was taken is acknowledged."""
        self._window.close_block()
        self._until(lambda: self._window.is_empty)

    def close(self) -> None:
        """Drop what is not acknowledged."""
        self._appending.close()
        self._disconnect()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.flush()
        finally:
            self.close()

    def _wait_for_room(self, size: int) -> None:
        if self._appending.is_healthy and self._window.has_room(size):
            return
        self._window.close_block()
        self._until(lambda: self._appending.is_healthy and self._window.has_room(size))

    def _pump(self) -> None:
        """Send and receive what is possible without waiting. The next call reports a failure: this event was taken."""
        if self._connection is None or not self._window.has_unsent:
            return
        try:
            self._hand_over(self._connection)
            self._connection.exchange(0)
        except PenstockError:
            self._disconnect()
        except BaseException:  # raised by a signal handler: it is not known what was sent
            self._disconnect()
            raise

    def _until(self, done: Callable[[], bool]) -> None:
        while not done():
            for attempt in retrying(self._retry_seconds, Interrupted, NoRoom):
                with attempt:
                    self._advance(done)

    def _advance(self, done: Callable[[], bool]) -> None:
        """Raises the error that stopped it, unless there was progress: then the retry time restarts."""
        before = self._window.acknowledged
        try:
            self._exchange(done)
        except (Interrupted, NoRoom):
            if self._window.acknowledged == before:
                raise

    def _exchange(self, done: Callable[[], bool]) -> None:
        connection = self._connected()
        while not done():
            self._hand_over(connection)
            try:
                connection.exchange(connection.timeout_seconds)
            except BaseException:
                self._disconnect()
                raise
            if self._appending.failure is not None:
                raise self._appending.failure

    def _connected(self) -> BlockingConnection:
        if self._connection is None:
            self._connection = self._connect()
        if self._appending.must_set_up:
            self._connection.send([self._appending.set_up(self._connection.session)])
        return self._connection

    def _hand_over(self, connection: BlockingConnection) -> None:
        while connection.unsent_bytes < _SEND_AHEAD_BYTES and (parts := self._appending.take()):
            connection.send(parts)

    def _disconnect(self) -> None:
        self._appending.close()
        if self._connection is not None:
            self._connection.close()
            self._connection = None


# Appends to a segment, for asyncio.


class AsyncAppender(AppenderState):
    """As `Appender`, with two differences. An event is sent at once if none is in flight, else together with those that
    arrive until one is acknowledged: this needs no flush. And several tasks may append: each event is appended whole,
    in the order in which they get room.

    No task runs in the background: the next `append` or `flush` replaces a lost connection.
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
        super().__init__(Appending(segment, writer_id, window, self._on_change))
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
        """Ask the worker for this writer's last number; the client has already done this."""
        await self._until(lambda: self._appending.is_open)
        self.last_number = self._window.acknowledged
        return self

    async def append(self, event: Buffer, *, number: int | None = None) -> int:
        """Take one event, copied. Returns its number, by default one more than the last one's; the first is 1."""
        framed = frame_events((event,))
        await self._wait_for_room(len(framed))
        taken = self._window.add(framed, 1, number)
        self._send()
        return taken

    async def append_many(self, events: Iterable[Buffer]) -> int | None:
        """Take events, copied, with the next numbers; returns the last. If it raises, `taken` is the last one taken."""
        for framed, count in batches(events, self._block_bytes):
            await self._wait_for_room(len(framed))
            self._window.add(framed, count)
            self._send()
        return self._window.taken

    async def append_block(self, framed: Buffer, event_count: int, *, number: int | None = None) -> int:
        """Take events that already have their headers, as one block: stored as a whole or not at all. Not copied: the
        buffer must not change until it is acknowledged. `number` is that of the last event.
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
        """Drop what is not acknowledged."""
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
        """Send what may be sent. One block is sent even if the transport is full: its acknowledgement wakes us up
        again.
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
        """Raises the error that stopped it, unless there was progress: then the retry time restarts."""
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
