"""The source: the parts shared by both kinds, the blocking source, and the asyncio source."""

import asyncio
import logging
import select
import ssl as tls
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, Callable, Iterable
from contextlib import suppress
from itertools import islice
from math import inf, isinf
from typing import Any, Generic, TypeVar

from penstock.client.coordinator import CoordinatorClient
from penstock.client.credentials import HTTP_PORT
from penstock.client.segments.failures import RETRY_SECONDS, TIMEOUT_SECONDS
from penstock.client.sockets import Waker
from penstock.client.source.connections import AsyncConnection, BlockingConnection
from penstock.client.source.failures import PORT, Lost, SourceFailed, parse_addresses
from penstock.client.source.feed import IteratorFeed, PumpThread, Supply, pump
from penstock.client.source.message import AsyncFactory, Factory, SourceStream
from penstock.client.source.session import BATCH_BYTES, Outflow, Reconnecting, SourceSession, Terms
from penstock.core.address import Address
from penstock.core.errors import LimitExceeded, RequestError, Unavailable
from penstock.protocol.connector import FRAME_SIZE_MAX, MIGRATING_VERSION, Hello, announce_window, encode, stream_id_of

F = TypeVar("F", bound=Callable[[int | None], Any])

STREAMS_MAX = 1000
"""Per source: each may have a file open and, in the asyncio version, a thread and `feed.SUPPLY_BYTES`."""

POLL_SECONDS = 0.2
"""How long after "nothing now" an iterator is asked again."""

DISCOVER_SECONDS = 1.0
"""How often new streams are looked for."""

logger = logging.getLogger("penstock.source")

OnAck = Callable[[str, int], object]


class SourceBase(ABC, Generic[F]):
    """Streams under one name. See `Source`."""

    def __init__(
        self,
        address: str = f"127.0.0.1:{PORT}",
        *,
        source: str,
        program: str = "penstock",
        cookie: bytes = b"",
        ssl: tls.SSLContext | None = None,
        on_ack: OnAck | None = None,
        poll_seconds: float = POLL_SECONDS,
        timeout_seconds: float = TIMEOUT_SECONDS,
        retry_seconds: float = RETRY_SECONDS,
        frame_size_max: int = FRAME_SIZE_MAX,
        http: str | None = None,
    ) -> None:
        hello = Hello(MIGRATING_VERSION, cookie, announce_window(program), source)
        encode(hello)  # raises if a value does not fit
        self.name = source
        self._terms = Terms(hello, frame_size_max, timeout_seconds, retry_seconds)
        self._reconnecting = Reconnecting(parse_addresses(address), retry_seconds)
        self._ssl = ssl
        self._http = http
        self._on_ack = on_ack
        self._poll_seconds = poll_seconds
        self._streams: dict[str, SourceStream] = {}
        self._find: Callable[[], Iterable[tuple[str, F]]] | None = None
        self._look_at = 0.0
        self._is_running = False
        self._is_stopped = False
        self._failure: str | None = None

    @property
    def streams(self) -> tuple[SourceStream, ...]:
        """Every stream so far, in the order in which they were added."""
        return tuple(self._streams.values())

    def stream(self, name: str, factory: F, *, stream_id: int | None = None) -> SourceStream:
        """Send this factory's messages as a stream; at any time, from any thread. The worker identifies a stream by its
        id, which is derived from its name by default.
        """
        if len(self._streams) >= STREAMS_MAX:
            raise LimitExceeded(f"a source has at most {STREAMS_MAX} streams", "Spread them over several sources.")
        added = SourceStream(name, stream_id_of(name) if stream_id is None else stream_id, factory)
        for other in self.streams:
            if other.name == name or other.stream_id == added.stream_id:
                raise RequestError(f"stream {name!r}: {other.name!r} has the same name or id", "Each needs its own.")
        self._streams[name] = added
        self._wake()
        return added

    def discover(self, find: Callable[[], Iterable[tuple[str, F]]]) -> None:
        """Look for streams repeatedly: `find` returns the name and factory of each that exists now, and new ones are
        added. `run` then never returns by itself.
        """
        self._find = find

    def fail(self, reason: str) -> None:
        """Report to the worker why this source cannot continue (an ERROR frame), close, and let `run` raise
        SourceFailed. May be called from any thread, including from factories, iterators and `on_ack`.
        """
        self._failure = reason
        self._wake()

    def stop(self) -> None:
        """Let `run` close the connection and return, soon. Unacknowledged messages are sent again by the next run.
        May be called from any thread.
        """
        self._is_stopped = True
        self._wake()

    @abstractmethod
    def _wake(self) -> None:
        """Wake up a waiting `run`."""

    def _prepare(self) -> None:
        if self._is_running:
            raise RequestError("this source is running already", "Create another one.")
        if not self._streams and self._find is None:
            raise RequestError("this source has no streams", "Add one first: source.stream(name, factory)")
        self._is_running = True
        self._look_at = 0.0

    def _end(self) -> None:
        self._is_running = self._is_stopped = False
        self._failure = None

    def _look(self, now: float) -> None:
        """Add the streams that `discover` finds, if it is time to look."""
        if self._find is None:
            self._look_at = inf
        elif now >= self._look_at:
            self._look_at = now + DISCOVER_SECONDS
            for name, factory in islice(self._find(), STREAMS_MAX + 1):
                if name not in self._streams:
                    self.stream(name, factory)

    def _offer(self, session: SourceSession, now: float) -> None:
        """Pass the session the streams that it does not know yet."""
        streams = self.streams
        for stream in streams[session.offered :]:
            session.add(stream, now)
        session.offered = len(streams)

    def _is_over(self) -> bool:
        """Whether there is nothing more to do. Raises SourceFailed after `fail`."""
        if self._failure is not None:
            raise SourceFailed(self._failure)
        return self._is_stopped or (self._find is None and all(stream.is_done for stream in self.streams))

    def _worker(self) -> CoordinatorClient:
        """The worker's HTTP side."""
        address = self._http or str(Address(self._reconnecting.address.host, HTTP_PORT))
        return CoordinatorClient(address, self._terms.retry_seconds, timeout_seconds=self._terms.timeout_seconds)

    def _declare(self, time_us: int, stream: str | None, after: int | None) -> None:
        known = self._streams.get(stream or "")
        with self._worker() as worker:
            worker.declare_watermark(self.name, time_us, stream if known is None else known.stream_id, after=after)

    def _finish(self) -> None:
        with self._worker() as worker:
            worker.end_source(self.name)

    def _report_acks(self, session: SourceSession) -> None:
        acked, session.acked = session.acked, {}
        if self._on_ack is not None:
            for stream, point_of_reference in acked.items():
                self._on_ack(stream.name, point_of_reference)

    def _left(self, session: SourceSession, now: float) -> None:
        """The connection has ended."""
        if session.was_useful(now):
            self._reconnecting.progressed()
        if session.target is not None:
            self._reconnecting.remember(session.target)
        elif not session.has_moved:  # a worker that is cut off from its store lets us in, and acknowledges nothing
            self._reconnecting.not_connected()

    def _pause(self, error: Lost, now: float) -> float:
        """How long to wait before the next connection. Raises the error when the time for retries is over."""
        pause = self._reconnecting.pause(error, now)
        logger.warning("source %r: %s; trying again in %.2f s", self.name, error, pause)
        return pause


def reason_of(error: Exception) -> str:
    """The text that the worker receives when the source ends with this error."""
    return str(error) if isinstance(error, SourceFailed) else f"{type(error).__name__}: {error}"


# The blocking source: for programs without an event loop.


class Source(SourceBase[Factory]):
    """Sends streams of messages to a worker, each message effectively once: after any interruption the worker reports
    what it has stored, and the factory is asked for the messages after that. Nothing is kept in memory for that.

        source = Source("127.0.0.1:7100", source="numbers")
        source.stream("even", lambda after: (Message(n, b"%d" % n) for n in range(0, 100, 2)))
        source.run()

    The address may be several, with commas between them, `"a:7100,b:7100"`: they are tried in order. Any worker of a
    cluster will do, because it sends the source to the one that has its shard, and a worker that is drained sends it to
    its successor.

    `on_ack(stream name, id)` is called when everything up to that id is complete; ids only increase. `timeout_seconds`:
    how long a worker may take to answer. `retry_seconds`: how long to retry without progress before Unavailable is
    raised, `math.inf` forever; a stream that another connection uses is requested for as long. A worker's ERROR is
    raised at once, as Refused. Exceptions of a factory or an iterator are reported to the worker and raised.

    Factories, iterators and `on_ack` run in the thread that called `run`: while an iterator waits, nothing is sent and
    no ACK is read. An iterator without a message should yield None. No threads are started.

    `cookie` is the worker's cookie; without one, the token in the file that PENSTOCK_TOKEN_FILE names is sent.

    `http` is the worker's HTTP address, which `finish` and `declare_watermark` use; by default port 7102 of the same
    machine.
    """

    _waker: Waker | None = None

    def run(self) -> None:
        """Send every stream until its iterator ends and its last message is acknowledged. Ctrl-C closes the connection,
        ends the iterators and propagates as KeyboardInterrupt.
        """
        self._prepare()
        self._waker = waker = Waker()
        try:
            while not self._is_over():
                self._attempt(waker)
        finally:
            self._end()
            self._waker = None
            waker.close()

    def finish(self) -> None:
        """Declare that the source has ended for good, so that the windows of all its readers close. Call it after `run`
        has returned. Messages sent later are stored, and late.
        """
        self._finish()

    def declare_watermark(self, time_us: int, stream: str | None = None, *, after: int | None = None) -> None:
        """Declare that no more events before this time, in microseconds since 1970, arrive on the stream; without a
        stream, on all open streams of this source. May be called from any thread. Messages sent before may still be in
        flight: pass the id of the stream's last message as `after`, and the worker waits for it. Do not call it with
        `after` in an iterator: the message would never be sent.
        """
        self._declare(time_us, stream, after)

    def _wake(self) -> None:
        waker = self._waker
        if waker is not None:
            waker.wake()

    def _attempt(self, waker: Waker) -> None:
        """One connection, those to which workers send us from there, and the pause after the last if it was lost."""
        try:
            connection: BlockingConnection | None = self._connect(waker)
            while connection is not None:
                connection = self._use(connection, waker)
        except Lost as error:
            if not self._is_over():
                self._sleep(self._pause(error, time.monotonic()), waker)

    def _use(self, connection: BlockingConnection, waker: Waker) -> BlockingConnection | None:
        """Returns the next connection if the worker has sent us elsewhere."""
        try:
            return self._follow(connection, waker) if self._serve(connection) else None
        finally:
            connection.close()
            self._left(connection.session, time.monotonic())

    def _follow(self, old: BlockingConnection, waker: Waker) -> BlockingConnection:
        """The connection to the worker to which the old one has sent us, which has answered. The old connection is open
        until then.
        """
        assert old.session.target is not None
        self._reconnecting.moved(old.session.target)
        new = self._connect(waker)
        try:
            self._await_answer(new)
        except BaseException:
            new.close()
            if not new.session.is_open:
                self._reconnecting.not_connected()
            raise
        old.session.migrated()
        old.farewell()
        return new

    def _await_answer(self, connection: BlockingConnection) -> None:
        """OK, or another MIGRATE. Raises Lost, and what a refusal raises."""
        session = connection.session
        while not self._is_over() and not session.is_open and session.target is None:
            connection.exchange(max(session.poll(time.monotonic()) - time.monotonic(), 0.0))

    def _connect(self, waker: Waker) -> BlockingConnection:
        try:
            return BlockingConnection(self._terms.with_token(), self._reconnecting.address, self._ssl, waker)
        except Unavailable:
            self._reconnecting.not_connected()
            raise

    def _sleep(self, seconds: float, waker: Waker) -> None:
        deadline = time.monotonic() + seconds
        while not self._is_over() and (left := deadline - time.monotonic()) > 0:
            select.select([waker], [], [], left)
            waker.clear()

    def _serve(self, connection: BlockingConnection) -> bool:
        """Returns whether the worker has sent us elsewhere."""
        session = connection.session
        outflow = Outflow(session, time.monotonic)
        try:
            while not self._is_over():
                if session.target is not None:
                    outflow.close()
                    now, is_sent = time.monotonic(), not connection.unsent_bytes
                    if session.must_leave(now) or (is_sent and session.may_leave(now)):
                        return True
                self._exchange(connection, self._advance(connection, outflow))
            connection.farewell()
            return False
        except Exception as error:
            if not connection.session.is_over and not isinstance(error, Lost):
                connection.session.fail(reason_of(error))
                connection.farewell()
            raise
        finally:
            outflow.close()

    def _exchange(self, connection: BlockingConnection, wait_seconds: float | None) -> None:
        try:
            connection.exchange(wait_seconds)
        finally:
            self._report_acks(connection.session)

    def _advance(self, connection: BlockingConnection, outflow: Outflow) -> float | None:
        """Pass the connection what may be sent; returns how long it may wait for more to do."""
        session = connection.session
        self._look(time.monotonic())
        self._offer(session, time.monotonic())
        opened, session.opened = session.opened, []
        for stream in opened:
            outflow.add(IteratorFeed(stream, self._poll_seconds, time.monotonic))
        due = session.poll(time.monotonic())
        outflow.fill(BATCH_BYTES - connection.unsent_bytes)
        if connection.unsent_bytes < BATCH_BYTES:
            due = min(due, outflow.due())
        due = min(due, self._look_at)
        return None if isinf(due) else max(due - time.monotonic(), 0.0)


# The asyncio source.


class AsyncSource(SourceBase[Factory | AsyncFactory]):
    """As `Source`, for one event loop, with factories of plain or of asynchronous iterators.

    A stream whose iterator waits blocks no other stream, and no ACK: an asynchronous iterator is awaited in a task, a
    plain one runs in a thread of its own. Factories, the function passed to `discover`, and `on_ack` are called in the
    loop and should not wait. Each stream reads ahead by at most `feed.SUPPLY_BYTES`.
    """

    _loop: asyncio.AbstractEventLoop | None = None

    async def run(self) -> None:
        """As `Source.run`. When it is cancelled it closes the connection and ends the iterators."""
        self._prepare()
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
            with suppress(RuntimeError):  # the loop was just closed
                loop.call_soon_threadsafe(self._changed.set)

    async def _attempt(self, loop: asyncio.AbstractEventLoop) -> None:
        """One connection, those to which workers send us from there, and the pause after the last if it was lost."""
        try:
            connection: AsyncConnection | None = await self._connect()
            while connection is not None:
                connection = await self._use(connection, loop)
        except Lost as error:
            if not self._is_over():
                await self._sleep(self._pause(error, loop.time()), loop)

    async def _use(self, connection: AsyncConnection, loop: asyncio.AbstractEventLoop) -> AsyncConnection | None:
        """Returns the next connection if the worker has sent us elsewhere."""
        try:
            return await self._follow(connection, loop) if await self._serve(connection, loop) else None
        finally:
            connection.close()
            await self._end_tasks()
            self._left(connection.session, loop.time())

    async def _follow(self, old: AsyncConnection, loop: asyncio.AbstractEventLoop) -> AsyncConnection:
        """As `Source._follow`."""
        assert old.session.target is not None
        self._reconnecting.moved(old.session.target)
        new = await self._connect()
        try:
            await self._await_answer(new, loop)
        except BaseException:
            new.close()
            if not new.session.is_open:
                self._reconnecting.not_connected()
            raise
        old.session.migrated()
        await old.farewell()
        return new

    async def _await_answer(self, connection: AsyncConnection, loop: asyncio.AbstractEventLoop) -> None:
        session = connection.session
        while not self._is_over() and not session.is_open and session.target is None:
            self._changed.clear()
            due = session.poll(loop.time())
            connection.write()
            await self._exchange(connection, due, loop)

    async def _exchange(self, connection: AsyncConnection, until: float, loop: asyncio.AbstractEventLoop) -> None:
        """Wait for a change. Raises what has ended the connection, also if that was while nobody served it: during the
        farewell of the one before.
        """
        if connection.lost is None:
            await self._wait(until, loop)
        self._report_acks(connection.session)
        if connection.lost is not None:
            raise connection.lost

    async def _connect(self) -> AsyncConnection:
        try:
            terms, address = self._terms.with_token(), self._reconnecting.address
            return await AsyncConnection.open(terms, address, self._ssl, self._changed)
        except Unavailable:
            self._reconnecting.not_connected()
            raise

    async def _sleep(self, seconds: float, loop: asyncio.AbstractEventLoop) -> None:
        deadline = loop.time() + seconds
        while not self._is_over() and loop.time() < deadline:
            self._changed.clear()
            await self._wait(deadline, loop)

    async def _wait(self, until: float, loop: asyncio.AbstractEventLoop) -> None:
        """Wait for a change. Yields to the loop in any case."""
        if until <= loop.time():
            await asyncio.sleep(0)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout_at(None if isinf(until) else until):
                await self._changed.wait()

    async def _serve(self, connection: AsyncConnection, loop: asyncio.AbstractEventLoop) -> bool:
        """Returns whether the worker has sent us elsewhere."""
        session = connection.session
        outflow = Outflow(session, loop.time)
        try:
            while not self._is_over():
                if session.target is not None:
                    outflow.close()
                    connection.write()
                    if session.may_leave(loop.time()):
                        return True
                self._changed.clear()
                await self._exchange(connection, self._advance(connection, outflow, loop), loop)
            await connection.farewell()
            return False
        except Exception as error:
            if not connection.session.is_over and not isinstance(error, Lost):
                connection.session.fail(reason_of(error))
                await connection.farewell()
            raise
        finally:
            outflow.close()

    def _advance(self, connection: AsyncConnection, outflow: Outflow, loop: asyncio.AbstractEventLoop) -> float:
        """Write what may be sent; returns when there is more to do."""
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
