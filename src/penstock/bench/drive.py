"""The generator's inner loops: append under load, one event in flight, read back.

They run in a process of their own (see `generator.py`), the same for every contender, so that
what differs between contenders is their servers.
"""

import selectors
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.bench.contender import BenchmarkFailed, Link, Reader

RECEIVE_BYTES_MAX = 1 << 18
"""Acknowledgements are small; this takes all there are of the wordiest contender (Redis)."""

READ_BYTES_MAX = 32 << 20
"""What is read again and again: the same amount from all, whoever has stored more."""

SILENCE_SECONDS_MAX = 15.0
"""A server that acknowledges nothing for so long has lost something."""


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
