"""The segment clients: blocking, for programs without an event loop such as Spark's executors, and for asyncio."""

import asyncio
import ssl as tls
from collections.abc import AsyncGenerator, Generator, Iterable
from functools import cached_property
from types import TracebackType
from typing import Generic, Self, TypeVar
from uuid import uuid4

from penstock.client.segments import operations
from penstock.client.segments.appenders import Appender, Appending, AsyncAppender
from penstock.client.segments.connections import AsyncConnection, BlockingConnection
from penstock.client.segments.failures import (
    ANY,
    RETRY_SECONDS,
    TIMEOUT_SECONDS,
    AttributeUpdate,
    Event,
    Expected,
    Interrupted,
    Key,
    ReadResult,
    SegmentInfo,
    WrongProcess,
    async_retrying,
    key_bytes,
    retrying,
)
from penstock.client.segments.operations import Attempts, Call, Operation
from penstock.client.segments.window import BLOCK_BYTES, WINDOW_BYTES, AppendWindow
from penstock.client.steps import run_steps, run_steps_async
from penstock.core.address import PORT, Address
from penstock.core.errors import PenstockError, ProtocolError
from penstock.core.types import Buffer
from penstock.protocol.segment import HEADER_SIZE, take_events

# Splits a segment's bytes, read piece by piece, into events.

HOPS_MAX = 3
"""How often one call follows a segment from one process of a cluster to another."""

READ_BYTES = 2**20
"""How much to request at a time."""


class EventSplitter:
    """`offset` is where to read next. Buffers at most the start of one event."""

    def __init__(self, start: int) -> None:
        self.offset = start
        self._rest: Buffer = b""

    def feed(self, data: Buffer) -> list[Event]:
        """The events that these bytes, read at `offset`, complete."""
        begin = self.offset - len(self._rest)
        self.offset += len(data)
        views, rest = take_events(b"".join((self._rest, data)) if self._rest else data)
        self._rest = bytes(rest)
        events = []
        for view in views:
            events.append(Event(begin, bytes(view)))
            begin += HEADER_SIZE + len(view)
        return events

    def check_whole(self) -> None:
        """Raises ProtocolError if the bytes so far end inside an event."""
        if self._rest:
            raise ProtocolError(
                f"the segment ends inside the event at {self.offset - len(self._rest)}",
                "Its writer did not append whole events: use read.",
            )


T = TypeVar("T")


C = TypeVar("C")


class _ClientBase(Generic[C]):
    def __init__(
        self,
        address: str = f"127.0.0.1:{PORT}",
        *,
        ssl: tls.SSLContext | None = None,
        token: str | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        self._address = self._named = Address.parse(address)
        self._ssl = ssl
        self._token = token
        self._timeout_seconds = timeout_seconds
        self._retry_seconds = retry_seconds
        self._connection: C | None = None

    def _follow(self, error: Interrupted) -> bool:
        """Whether to try again at once: another process of the cluster has the segment. It is asked from then on, until
        it does not answer.
        """
        is_moved = isinstance(error, WrongProcess)
        self._address = Address.parse(error.address) if isinstance(error, WrongProcess) else self._named
        return is_moved


class SegmentClient(_ClientBase[BlockingConnection]):
    """Connects on first use, and reconnects whenever the connection is lost. Each appender has its own connection.

    `token`: by default that in the file that PENSTOCK_TOKEN_FILE names, read for each connection. What the worker does
    not allow raises Unauthenticated or Forbidden at once.

    `timeout_seconds`: a worker that owes a reply and is silent for this long counts as lost. `retry_seconds`: how long
    to retry before Unavailable is raised; 0 tries once. For what is repeated and what is not, see `operations`.

    Starts no threads, and is not thread-safe: use one client per thread.
    """

    def create(self, name: str, *, quota_bytes: int | None = None, exist_ok: bool = False) -> None:
        """Create a segment. With `exist_ok` it may already exist; a quota is set in any case."""
        self._run(operations.create(name, quota_bytes, exist_ok))

    def delete(self, name: str, *, missing_ok: bool = False) -> None:
        self._run(operations.delete(name, missing_ok))

    def info(self, name: str) -> SegmentInfo:
        return self._run(operations.info(name))

    def seal(self, name: str) -> None:
        """Make the segment accept no more bytes. Succeeds if it is already sealed."""
        self._run(operations.seal(name))

    def truncate(self, name: str, offset: int) -> None:
        """Delete the bytes below `offset`. Succeeds if they are already gone."""
        self._run(operations.truncate(name, offset))

    def attribute(self, name: str, key: Key) -> int | None:
        """None if it does not exist."""
        return self._run(operations.attribute(name, key))

    def set_attribute(self, name: str, key: Key, value: int, *, expected: Expected = ANY) -> bool:
        """Returns False, and changes nothing, if the value is not `expected`; None expects that there is none."""
        return self._run(operations.set_attribute(name, key, value, expected))

    def merge(self, target: str, source: str, updates: Iterable[AttributeUpdate] = ()) -> int:
        """Append the source's bytes to the target, update the target's attributes, and remove the source, atomically.
        Returns the target's new length.
        """
        return self._run(operations.merge(target, source, updates))

    def read(self, name: str, offset: int, length: int, *, wait: bool = True) -> ReadResult:
        """Some of the bytes at `offset`, about `length` at most. At the tail the worker waits some 20 s for data, then
        answers without any; not if `wait` is False, which costs one more round trip.
        """
        return self._run(operations.read(name, offset, length, wait))

    def events(self, name: str, start: int = 0, *, follow: bool = False) -> Generator[Event, None, None]:
        """The events from `start` on, where one must start, up to where the segment ends now; with `follow` also future
        events, until it is sealed.
        """
        splitter = EventSplitter(start)
        end = None if follow else self.info(name).length
        while end is None or splitter.offset < end:
            length = READ_BYTES if end is None else min(READ_BYTES, end - splitter.offset)
            result = self.read(name, splitter.offset, length)
            yield from splitter.feed(result.data)
            if result.end_of_segment:
                splitter.check_whole()
                return

    def appender(
        self,
        name: str,
        writer_id: Key | None = None,
        *,
        window_bytes: int = WINDOW_BYTES,
        block_bytes: int = BLOCK_BYTES,
        create: bool = False,
    ) -> Appender:
        """Append as the writer with this id; None for a new writer. `create` creates the segment if it is missing."""
        if create:
            self.create(name, exist_ok=True)
        writer = key_bytes(uuid4() if writer_id is None else writer_id)
        appending = Appending(name, writer, AppendWindow(window_bytes, block_bytes))
        return Appender(appending, self._connect, block_bytes, self._retry_seconds)

    def close(self) -> None:
        """Appenders stay open: they have their own connections."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, operation: Operation[T]) -> T:
        return run_steps(operation, self._call)

    def _call(self, call: Call[T]) -> T:
        reply: T = retrying(self._retry_seconds, Interrupted)(self._try, Attempts(call))
        return reply

    def _try(self, attempts: Attempts[T], hops: int = HOPS_MAX) -> T:
        if self._connection is None:
            self._connection = self._connect()
        try:
            return attempts.result(self._connection.ask(attempts.encode, attempts.call.wait_seconds))
        except Interrupted as error:
            self.close()
            if self._follow(error) and hops:
                return self._try(attempts, hops - 1)
            raise attempts.interrupted(error) from error
        except BaseException as error:
            if not isinstance(error, PenstockError) or isinstance(error, ProtocolError):
                self.close()
            raise

    def _connect(self) -> BlockingConnection:
        return BlockingConnection(self._address, self._ssl, self._timeout_seconds, self._token)


# The asyncio client.


class AsyncSegmentClient(_ClientBase[AsyncConnection]):
    """As `SegmentClient`, for one event loop. Calls and appenders share a connection, and any number of tasks may use
    it at the same time.
    """

    @cached_property
    def _connecting(self) -> asyncio.Lock:
        return asyncio.Lock()

    async def create(self, name: str, *, quota_bytes: int | None = None, exist_ok: bool = False) -> None:
        """Create a segment. With `exist_ok` it may already exist; a quota is set in any case."""
        await self._run(operations.create(name, quota_bytes, exist_ok))

    async def delete(self, name: str, *, missing_ok: bool = False) -> None:
        await self._run(operations.delete(name, missing_ok))

    async def info(self, name: str) -> SegmentInfo:
        return await self._run(operations.info(name))

    async def seal(self, name: str) -> None:
        """Make the segment accept no more bytes. Succeeds if it is already sealed."""
        await self._run(operations.seal(name))

    async def truncate(self, name: str, offset: int) -> None:
        """Delete the bytes below `offset`. Succeeds if they are already gone."""
        await self._run(operations.truncate(name, offset))

    async def attribute(self, name: str, key: Key) -> int | None:
        """None if it does not exist."""
        return await self._run(operations.attribute(name, key))

    async def set_attribute(self, name: str, key: Key, value: int, *, expected: Expected = ANY) -> bool:
        """Returns False, and changes nothing, if the value is not `expected`; None expects that there is none."""
        return await self._run(operations.set_attribute(name, key, value, expected))

    async def merge(self, target: str, source: str, updates: Iterable[AttributeUpdate] = ()) -> int:
        """Append the source's bytes to the target, update the target's attributes, and remove the source, atomically.
        Returns the target's new length.
        """
        return await self._run(operations.merge(target, source, updates))

    async def read(self, name: str, offset: int, length: int, *, wait: bool = True) -> ReadResult:
        """Some of the bytes at `offset`, about `length` at most. At the tail the worker waits some 20 s for data, then
        answers without any; not if `wait` is False, which costs one more round trip.
        """
        return await self._run(operations.read(name, offset, length, wait))

    async def events(self, name: str, start: int = 0, *, follow: bool = False) -> AsyncGenerator[Event, None]:
        """The events from `start` on, where one must start, up to where the segment ends now; with `follow` also future
        events, until it is sealed.
        """
        splitter = EventSplitter(start)
        end = None if follow else (await self.info(name)).length
        while end is None or splitter.offset < end:
            length = READ_BYTES if end is None else min(READ_BYTES, end - splitter.offset)
            result = await self.read(name, splitter.offset, length)
            for event in splitter.feed(result.data):
                yield event
            if result.end_of_segment:
                splitter.check_whole()
                return

    async def appender(
        self,
        name: str,
        writer_id: Key | None = None,
        *,
        window_bytes: int = WINDOW_BYTES,
        block_bytes: int = BLOCK_BYTES,
        create: bool = False,
    ) -> AsyncAppender:
        """Append as the writer with this id; None for a new writer. `create` creates the segment if it is missing."""
        if create:
            await self.create(name, exist_ok=True)
        appender = AsyncAppender(
            name,
            key_bytes(uuid4() if writer_id is None else writer_id),
            AppendWindow(window_bytes, block_bytes),
            self._connected,
            block_bytes=block_bytes,
            timeout_seconds=self._timeout_seconds,
            retry_seconds=self._retry_seconds,
        )
        return await appender.open()

    async def close(self) -> None:
        """Close appenders first: they use the same connection, and would reconnect."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _run(self, operation: Operation[T]) -> T:
        return await run_steps_async(operation, self._call)

    async def _call(self, call: Call[T]) -> T:
        reply: T = await async_retrying(self._retry_seconds, Interrupted)(self._try, Attempts(call))
        return reply

    async def _try(self, attempts: Attempts[T], hops: int = HOPS_MAX) -> T:
        connection = await self._connected()
        try:
            return attempts.result(await connection.ask(attempts, self._timeout_seconds + attempts.call.wait_seconds))
        except Interrupted as error:
            if self._follow(error) and hops:
                await self.close()
                return await self._try(attempts, hops - 1)
            raise attempts.interrupted(error) from error

    async def _connected(self) -> AsyncConnection:
        """All tasks wait for the one that connects."""
        async with self._connecting:
            if self._connection is None or self._connection.lost is not None:
                self._connection = await AsyncConnection.open(
                    self._address, self._ssl, self._timeout_seconds, self._token
                )
            return self._connection
