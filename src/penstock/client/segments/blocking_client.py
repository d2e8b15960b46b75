"""The blocking client: for programs without an event loop, Spark's executors among them."""

import ssl as tls
from collections.abc import Generator, Iterable
from types import TracebackType
from typing import Any, Self, TypeVar
from uuid import uuid4

from penstock.client.segments import operations
from penstock.client.segments.address import PORT, Address
from penstock.client.segments.appending import Appending
from penstock.client.segments.blocking_appender import Appender
from penstock.client.segments.blocking_connection import BlockingConnection
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
from penstock.client.segments.retrying import RETRY_SECONDS, TIMEOUT_SECONDS, retrying
from penstock.client.segments.window import BLOCK_BYTES, WINDOW_BYTES, AppendWindow
from penstock.core.errors import PenstockError, ProtocolError
from penstock.protocol.segment import Reply

T = TypeVar("T")


class SegmentClient:
    """Connects when it is first used, and again whenever the connection is lost. Each appender has its own connection.

    `timeout_seconds`: a worker that owes a reply and is silent for so long counts as lost. `retry_seconds`: how long to
    try again before Unavailable is raised; 0 tries once. What is repeated and what is not: see `operations`.

    No threads are started, and it is not for use by several threads at once: give each its own.
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
        self._connection: BlockingConnection | None = None

    def create(self, name: str, *, quota_bytes: int | None = None, exist_ok: bool = False) -> None:
        """Make a segment. With `exist_ok` it may be there already; a quota is set in any case."""
        self._run(operations.create(name, quota_bytes, exist_ok))

    def delete(self, name: str, *, missing_ok: bool = False) -> None:
        self._run(operations.delete(name, missing_ok))

    def info(self, name: str) -> SegmentInfo:
        return self._run(operations.info(name))

    def seal(self, name: str) -> None:
        """Let the segment take no more bytes; it is well if it is sealed already."""
        self._run(operations.seal(name))

    def truncate(self, name: str, offset: int) -> None:
        """Give up the bytes below `offset`; it is well if they are gone already."""
        self._run(operations.truncate(name, offset))

    def attribute(self, name: str, key: Key) -> int | None:
        """None if it is not there."""
        return self._run(operations.attribute(name, key))

    def set_attribute(self, name: str, key: Key, value: int, *, expected: Expected = ANY) -> bool:
        """False, and nothing is changed, if the value is not the `expected` one; None expects that there is none."""
        return self._run(operations.set_attribute(name, key, value, expected))

    def merge(self, target: str, source: str, updates: Iterable[AttributeUpdate] = ()) -> int:
        """Make the source's bytes the target's next ones, update the target's attributes, and remove the source: all
        of it or nothing. Returns the target's new length.
        """
        return self._run(operations.merge(target, source, updates))

    def read(self, name: str, offset: int, length: int, *, wait: bool = True) -> ReadResult:
        """Some of the bytes at `offset`, about `length` at most. At the tail the worker waits some 20 s for data, then
        answers without; unless `wait` is False, which costs one more round trip.
        """
        return self._run(operations.read(name, offset, length, wait))

    def events(self, name: str, start: int = 0, *, follow: bool = False) -> Generator[Event, None, None]:
        """The events from `start` on, where one must begin, up to where the segment ends now; or with `follow` those to
        come as well, until it is sealed.
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
        """Append as the writer of this id, a new one if it is None. `create` makes the segment if it is not there."""
        if create:
            self.create(name, exist_ok=True)
        writer = key_bytes(uuid4() if writer_id is None else writer_id)
        appending = Appending(name, writer, AppendWindow(window_bytes, block_bytes))
        return Appender(appending, self._connect, block_bytes, self._retry_seconds)

    def close(self) -> None:
        """Appenders stay open: they have connections of their own."""
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
        try:
            call = next(operation)
            while True:
                try:
                    result = self._call(call)
                except PenstockError as error:
                    call = operation.throw(error)
                else:
                    call = operation.send(result)
        except StopIteration as done:
            value: T = done.value
            return value

    def _call(self, call: Call[T]) -> T:
        attempts = Attempts(call)
        for attempt in retrying(self._retry_seconds, Interrupted):
            with attempt:
                return self._try(attempts)
        raise AssertionError("tenacity returns or raises")

    def _try(self, attempts: Attempts[T]) -> T:
        if self._connection is None:
            self._connection = self._connect()
        try:
            return attempts.result(self._ask(self._connection, attempts))
        except Interrupted as error:
            self.close()
            raise attempts.interrupted(error) from error
        except BaseException as error:
            if not isinstance(error, PenstockError) or isinstance(error, ProtocolError):
                self.close()
            raise

    def _ask(self, connection: BlockingConnection, attempts: Attempts[Any]) -> Reply:
        answer = _Answer()
        request_id = connection.session.expect(answer)
        try:
            connection.send([attempts.encode(request_id)])
            connection.exchange_until(lambda: answer.reply is not None, attempts.call.wait_seconds)
        finally:
            connection.session.forget(request_id)
        assert answer.reply is not None
        return answer.reply

    def _connect(self) -> BlockingConnection:
        return BlockingConnection(self._address, self._ssl, self._timeout_seconds)


class _Answer:
    """Keeps the reply; that there will be none is raised by the connection itself."""

    def __init__(self) -> None:
        self.reply: Reply | None = None

    def on_reply(self, reply: Reply) -> None:
        self.reply = reply

    def on_lost(self, error: PenstockError) -> None:
        pass
