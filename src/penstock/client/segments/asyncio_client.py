"""The asyncio client."""

import asyncio
import ssl as tls
from collections.abc import AsyncGenerator, Iterable
from types import TracebackType
from typing import Self, TypeVar
from uuid import uuid4

from penstock.client.segments import operations
from penstock.client.segments.address import PORT, Address
from penstock.client.segments.asyncio_appender import AsyncAppender
from penstock.client.segments.asyncio_connection import AsyncConnection
from penstock.client.segments.calls import Attempts, Call
from penstock.client.segments.event_splitter import READ_BYTES, EventSplitter
from penstock.client.segments.failures import Interrupted
from penstock.client.segments.operations import Operation
from penstock.client.segments.results import (
    ANY,
    AttributeUpdate,
    Event,
    Expected,
    Key,
    ReadResult,
    SegmentInfo,
    key_bytes,
)
from penstock.client.segments.retrying import RETRY_SECONDS, TIMEOUT_SECONDS, async_retrying
from penstock.client.segments.window import BLOCK_BYTES, WINDOW_BYTES, AppendWindow
from penstock.core.errors import PenstockError

T = TypeVar("T")


class AsyncSegmentClient:
    """As `SegmentClient`, for one event loop. Calls and appenders share a connection, and any number of tasks may use
    it at the same time.
    """

    def __init__(
        self,
        address: str = f"127.0.0.1:{PORT}",
        *,
        ssl: tls.SSLContext | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        self._address = Address.parse(address)
        self._ssl = ssl
        self._timeout_seconds = timeout_seconds
        self._retry_seconds = retry_seconds
        self._connection: AsyncConnection | None = None
        self._connecting = asyncio.Lock()

    async def create(self, name: str, *, quota_bytes: int | None = None, exist_ok: bool = False) -> None:
        """Make a segment. With `exist_ok` it may be there already; a quota is set in any case."""
        await self._run(operations.create(name, quota_bytes, exist_ok))

    async def delete(self, name: str, *, missing_ok: bool = False) -> None:
        await self._run(operations.delete(name, missing_ok))

    async def info(self, name: str) -> SegmentInfo:
        return await self._run(operations.info(name))

    async def seal(self, name: str) -> None:
        """Let the segment take no more bytes; it is well if it is sealed already."""
        await self._run(operations.seal(name))

    async def truncate(self, name: str, offset: int) -> None:
        """Give up the bytes below `offset`; it is well if they are gone already."""
        await self._run(operations.truncate(name, offset))

    async def attribute(self, name: str, key: Key) -> int | None:
        """None if it is not there."""
        return await self._run(operations.attribute(name, key))

    async def set_attribute(self, name: str, key: Key, value: int, *, expected: Expected = ANY) -> bool:
        """False, and nothing is changed, if the value is not the `expected` one; None expects that there is none."""
        return await self._run(operations.set_attribute(name, key, value, expected))

    async def merge(self, target: str, source: str, updates: Iterable[AttributeUpdate] = ()) -> int:
        """Make the source's bytes the target's next ones, update the target's attributes, and remove the source: all
        of it or nothing. Returns the target's new length.
        """
        return await self._run(operations.merge(target, source, updates))

    async def read(self, name: str, offset: int, length: int, *, wait: bool = True) -> ReadResult:
        """Some of the bytes at `offset`, about `length` at most. At the tail the worker waits some 20 s for data, then
        answers without; unless `wait` is False, which costs one more round trip.
        """
        return await self._run(operations.read(name, offset, length, wait))

    async def events(self, name: str, start: int = 0, *, follow: bool = False) -> AsyncGenerator[Event, None]:
        """The events from `start` on, where one must begin, up to where the segment ends now; or with `follow` those to
        come as well, until it is sealed.
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
        """Append as the writer of this id, a new one if it is None. `create` makes the segment if it is not there."""
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
        """Close appenders first: they use the same connection, and would connect anew."""
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
        try:
            call = next(operation)
            while True:
                try:
                    result = await self._call(call)
                except PenstockError as error:
                    call = operation.throw(error)
                else:
                    call = operation.send(result)
        except StopIteration as done:
            value: T = done.value
            return value

    async def _call(self, call: Call[T]) -> T:
        attempts = Attempts(call)
        async for attempt in async_retrying(self._retry_seconds, Interrupted):
            with attempt:
                return await self._try(attempts)
        raise AssertionError("tenacity returns or raises")

    async def _try(self, attempts: Attempts[T]) -> T:
        connection = await self._connected()
        try:
            return attempts.result(await connection.ask(attempts, self._timeout_seconds + attempts.call.wait_seconds))
        except Interrupted as error:
            raise attempts.interrupted(error) from error

    async def _connected(self) -> AsyncConnection:
        """Everybody waits for the one who connects."""
        async with self._connecting:
            if self._connection is None or self._connection.lost is not None:
                self._connection = await AsyncConnection.open(self._address, self._ssl, self._timeout_seconds)
            return self._connection
