"""The load generator: connections that append, probe or read back, driven by processes of their own.

The loops are the same for every contender, so that what differs between contenders is their servers. They run apart
from the server under test and from the progress display.
"""

import gc
import multiprocessing
import selectors
import signal
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Generic, Protocol, Self, TypeVar, cast

from bench.harness import BenchmarkFailed
from penstock.core.types import Buffer

RECEIVE_BYTES_MAX = 1 << 18
"""Acknowledgements are small; this takes all there are of the wordiest contender (Redis)."""

READ_BYTES_MAX = 32 << 20
"""What is read again and again: the same amount from all, whoever has stored more."""

SILENCE_SECONDS_MAX = 15.0
"""A server that acknowledges nothing for so long has lost something."""

ANSWER_SECONDS_MAX = 60.0
"""More than the limits of most jobs allow: then the generator itself is stuck."""

R = TypeVar("R")


class Link(Protocol):
    """One connection of the load generator. It does the least that a driver can do: buffers are
    built beforehand, and no Python runs per event.
    """

    sock: socket.socket
    events: int
    """Events in one batch."""

    def batch(self) -> Sequence[Buffer]:
        """The next batch's bytes. Up to the contender's window are in flight at a time."""
        ...

    def acked(self, data: bytes) -> int:
        """The number of events that these bytes from the server acknowledge."""
        ...


class Reader(Protocol):
    """One connection that reads back what was written, a request at a time."""

    sock: socket.socket
    size: int
    """Bytes there are to read."""

    def read(self, offset: int, into: memoryview) -> int:
        """Ask for `len(into)` bytes at `offset` (below `size`), and return how many came."""
        ...


class Target(Protocol):
    """How a generator process connects; a plain description that can be sent to it."""

    def connect(self, index: int) -> Link: ...


class ReadTarget(Protocol):
    """The same for reading."""

    def connect_reader(self) -> Reader: ...


# The inner loops


@dataclass(frozen=True, slots=True)
class Load:
    """`events` were acknowledged inside the measured `seconds`, `total` from start to end."""

    events: int
    seconds: float
    total: int


class Feed:
    """One connection under load: keeps up to `window` batches in flight."""

    __slots__ = ("_acked", "_batch", "_limit", "_pending", "_size", "_sock", "in_flight")

    def __init__(self, link: Link, window: int) -> None:
        link.sock.setblocking(False)
        self._sock = link.sock
        self._acked = link.acked
        self._batch = link.batch
        self._size = link.events
        self._limit = link.events * window
        self._pending: list[memoryview] = []
        self.in_flight = 0

    def send(self) -> bool:
        """Send all that the window and the socket allow; True if the socket is what holds."""
        while True:
            while self.in_flight + self._size <= self._limit:
                self._pending += map(memoryview, self._batch())
                self.in_flight += self._size
            if not self._pending:
                return False
            try:
                self._forget(self._sock.sendmsg(self._pending))
            except BlockingIOError:
                return True

    def _forget(self, sent: int) -> None:
        pending = self._pending
        done = 0
        while done < len(pending) and sent >= len(pending[done]):
            sent -= len(pending[done])
            done += 1
        del pending[:done]
        if sent:
            pending[0] = pending[0][sent:]

    def receive(self) -> int:
        data = self._sock.recv(RECEIVE_BYTES_MAX)
        if not data:
            raise BenchmarkFailed("the server closed a connection under load")
        events = self._acked(data)
        self.in_flight -= events
        return events

    def close_window(self) -> None:
        self._limit = 0


def drive(links: Sequence[Link], window: int, start: float, end: float) -> Load:
    """Load the links until `end`, count what is acknowledged from `start` on (both on the
    monotonic clock), then wait for what is still in flight.
    """
    feeds = [Feed(link, window) for link in links]
    with selectors.DefaultSelector() as selector:
        for feed, link in zip(feeds, links, strict=True):
            selector.register(link.sock, selectors.EVENT_READ | selectors.EVENT_WRITE, feed)
        before, began = _pump(selector, start)
        events, ended = _pump(selector, end)
        for feed in feeds:
            feed.close_window()
        rest = _drain(selector, feeds)
    return Load(events, ended - began, before + events + rest)


def _pump(selector: selectors.BaseSelector, until: float) -> tuple[int, float]:
    """Keep the windows full until then; returns the events acknowledged, and the time."""
    events = 0
    now = heard = time.monotonic()
    while now < until:
        acked = _turn(selector)
        now = time.monotonic()
        if acked:
            events += acked
            heard = now
        elif now - heard > SILENCE_SECONDS_MAX:
            raise BenchmarkFailed(f"nothing acknowledged for {SILENCE_SECONDS_MAX:.0f} s")
    return events, now


def _drain(selector: selectors.BaseSelector, feeds: Sequence[Feed]) -> int:
    events = 0
    deadline = time.monotonic() + SILENCE_SECONDS_MAX
    while any(feed.in_flight for feed in feeds):
        events += _turn(selector)
        if time.monotonic() > deadline:
            lost = sum(feed.in_flight for feed in feeds)
            raise BenchmarkFailed(f"{lost} events were never acknowledged")
    return events


def _turn(selector: selectors.BaseSelector) -> int:
    events = 0
    for key, mask in selector.select(0.1):
        feed: Feed = key.data
        if mask & selectors.EVENT_READ:
            events += feed.receive()
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if feed.send() else 0)
        if wanted != key.events:
            selector.modify(key.fileobj, wanted, feed)
    return events


def probe(link: Link, seconds: float) -> list[float]:
    """The milliseconds from sending one event to its acknowledgement, one after the other."""
    link.sock.settimeout(SILENCE_SECONDS_MAX)
    end = time.monotonic() + seconds
    latencies_ms: list[float] = []
    while time.monotonic() < end:
        parts = link.batch()
        began = time.perf_counter()
        link.sock.sendmsg(parts)
        while not link.acked(link.sock.recv(RECEIVE_BYTES_MAX)):
            pass
        latencies_ms.append((time.perf_counter() - began) * 1_000)
    return latencies_ms


def read_back(reader: Reader, request_bytes: int, seconds: float) -> tuple[int, float]:
    """Read from beginning to end, again and again; returns the bytes read, and the seconds. The
    first time does not count: it brings what is read into the page cache.
    """
    size = min(reader.size, READ_BYTES_MAX)
    if not size:
        raise BenchmarkFailed("there is nothing to read")
    buffer = memoryview(bytearray(request_bytes))
    _read_once(reader, size, buffer)
    total = 0
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        total += _read_once(reader, size, buffer)
    return total, time.monotonic() - began


def _read_once(reader: Reader, size: int, buffer: memoryview) -> int:
    offset = 0
    while offset < size:
        offset += reader.read(offset, buffer[: size - offset])
    return offset


def receive_exactly(sock: socket.socket, into: memoryview) -> None:
    while into:
        count = sock.recv_into(into, len(into), socket.MSG_WAITALL)
        if not count:
            raise BenchmarkFailed("the server closed a connection in the middle of a reply")
        into = into[count:]


# Jobs and the processes that run them

_connected: list[Link] = []
"""In a generator process: the connections that wait for the load."""


@dataclass(frozen=True, slots=True)
class ConnectJob:
    """Before the load, since some contenders have much to say on connecting."""

    target: Target
    indices: range

    def __call__(self) -> None:
        _disconnect()
        _connected.extend(self.target.connect(index) for index in self.indices)


@dataclass(frozen=True, slots=True)
class LoadJob:
    window: int
    start: float
    end: float

    def __call__(self) -> Load:
        try:
            return drive(_connected, self.window, self.start, self.end)
        finally:
            _disconnect()


def _disconnect() -> None:
    while _connected:
        _connected.pop().sock.close()


@dataclass(frozen=True, slots=True)
class ProbeJob:
    target: Target
    seconds: float

    def __call__(self) -> list[float]:
        link = self.target.connect(0)
        with link.sock:
            return probe(link, self.seconds)


@dataclass(frozen=True, slots=True)
class ReadJob:
    target: ReadTarget
    request_bytes: int
    seconds: float

    def __call__(self) -> tuple[int, float]:
        reader = self.target.connect_reader()
        with reader.sock:
            return read_back(reader, self.request_bytes, self.seconds)


@dataclass(frozen=True, slots=True)
class Failure:
    error: Exception


class Worker(Generic[R]):
    """One generator process; takes one job at a time."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def begin(self, job: Callable[[], R]) -> None:
        self._pipe.send(job)

    def finish(self, seconds_max: float = ANSWER_SECONDS_MAX) -> R:
        """What the job returns, or raises. Raises BenchmarkFailed if it takes longer than that."""
        try:
            if not self._pipe.poll(seconds_max):
                raise BenchmarkFailed("the load generator does not answer")
            answer = self._pipe.recv()
        except EOFError:
            raise BenchmarkFailed("the load generator died") from None
        if isinstance(answer, Failure):
            raise answer.error
        return cast("R", answer)

    def stop(self) -> None:
        self._pipe.close()
        self._process.kill()
        self._process.join()


def serve(pipe: Connection) -> None:
    """A generator process: jobs in, results out, until its parent has gone. Ctrl-C is for the
    parent; collections of garbage would be pauses in the load, and there is next to none.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.disable()
    while True:
        try:
            job: Callable[[], object] = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send(job())
        except Exception as error:
            pipe.send(Failure(error))


class Generators:
    """All generator processes of one benchmark; the connections are shared out among them."""

    def __init__(self, processes: int = 1) -> None:
        self._workers: list[Worker[object]] = [Worker() for _ in range(processes)]

    def connect(self, target: Target, connections: int) -> None:
        """Make the connections of the next load."""
        for number, worker in enumerate(self._workers):
            worker.begin(ConnectJob(target, range(number, connections, len(self._workers))))
        for worker in self._workers:
            worker.finish()

    def load(self, window: int, warmup_s: float, measure_s: float) -> Load:
        """Load the connections that were made; the warm-up begins now. They are closed afterwards."""
        start = time.monotonic() + warmup_s
        for worker in self._workers:
            worker.begin(LoadJob(window, start, start + measure_s))
        loads = [cast("Load", worker.finish()) for worker in self._workers]
        events = sum(load.events for load in loads)
        total = sum(load.total for load in loads)
        return Load(events, max(load.seconds for load in loads), total)

    def run(self, job: Callable[[], R]) -> R:
        """One job on one generator, the others idle."""
        worker = cast("Worker[R]", self._workers[0])
        worker.begin(job)
        return worker.finish()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for worker in self._workers:
            worker.stop()
