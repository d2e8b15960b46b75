"""Our own worker, driven with raw bytes of the connector protocol, as sources do."""

import socket
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle, islice
from random import Random
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from bench import events
from bench.contenders.penstock import Penstock
from bench.events import EVENT_BYTES
from bench.harness import BenchmarkFailed
from bench.load import RECEIVE_BYTES_MAX, SILENCE_SECONDS_MAX
from bench.processes import Server, connect
from penstock.cli.connect import get_json

# The few frames of the connector protocol that a load generator needs.
#
# They are made here and not by `penstock.protocol`, for the reason in `penstock.py`.

HELLO, OK, NOTIFY, NOTIFY_ACK, MESSAGE, ACK = 0, 1, 3, 4, 5, 6

HEAD = struct.Struct(">IB")
"""The length of what follows it, with the tag in it; the tag."""
MESSAGE_HEAD = struct.Struct(">IBQQqH")
"""Length, tag, stream id, message id, event time, length of the key (there is none)."""
CREDITS = struct.Struct(">I")

ID_AT = 13
"""Where a MESSAGE has its id."""

NUMBER_BYTES, PLACE_BYTES = 6, 2
"""Of a message id: the number of its batch, and its place in it. So ids grow from message to message, and those of a
whole batch are set with a few bytes that are the same in all of them."""
BATCH_MESSAGES_MAX = 1 << 8 * PLACE_BYTES


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack(">H", len(data)) + data


def frame(tag: int, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return HEAD.pack(len(body) + 1, tag) + body


def hello(instance: str, *, announces_window: bool = True) -> bytes:
    """Without a cookie. A program that announces no window gets a small one."""
    program = "bench;window=8388608" if announces_window else "bench"
    return frame(HELLO, text("0.0.1"), text(""), text(program), text(instance))


def notify(stream_id: int, name: str) -> bytes:
    return frame(NOTIFY, struct.pack(">Q", stream_id), text(name), bytes(8))


class Batch:
    """MESSAGE frames of one length, in one buffer that is sent again and again, each time with other ids."""

    def __init__(self, stream_ids: Sequence[int], payloads: Sequence[bytes]) -> None:
        self._size = MESSAGE_HEAD.size + len(payloads[0])
        self._count = len(payloads)
        self.data = bytearray().join(
            MESSAGE_HEAD.pack(self._size - 4, MESSAGE, stream_id, place, 0, 0) + payload
            for place, (stream_id, payload) in enumerate(zip(stream_ids, payloads, strict=True))
        )
        self._number = bytes(NUMBER_BYTES)

    def renumber(self, number: int) -> None:
        """Make the ids those of batch `number`. A slice that is assigned is a loop in C over all messages; mostly
        one or two of the number's bytes have changed.
        """
        digits = number.to_bytes(NUMBER_BYTES, "big")
        for at, (old, new) in enumerate(zip(self._number, digits, strict=True), ID_AT):
            if old != new:
                self.data[at :: self._size] = bytes((new,)) * self._count
        self._number = digits


class Answers:
    """Cuts what the worker sends into frames: how many NOTIFYs it accepted, and the credits that it gave."""

    def __init__(self) -> None:
        self._rest = b""
        self.opened = 0
        self.credits = 0
        self.unpaid = 0
        """How many of the next credits are for no message, and are not counted."""

    def receive(self, data: bytes) -> int:
        """Returns the credits in these bytes. Which streams an ACK names is passed over, however many."""
        data = self._rest + data
        at, before = 0, self.credits
        while len(data) - at >= HEAD.size:
            length, tag = HEAD.unpack_from(data, at)
            if len(data) - at < CREDITS.size + length:
                break
            self._take(tag, data, at + HEAD.size, length - 1)
            at += CREDITS.size + length
        self._rest = data[at:]
        return self.credits - before

    def _take(self, tag: int, data: bytes, at: int, length: int) -> None:
        if tag in (ACK, OK):
            granted = CREDITS.unpack_from(data, at)[0]
            unpaid = min(granted, self.unpaid)
            self.unpaid -= unpaid
            self.credits += granted - unpaid
        elif tag == NOTIFY_ACK and data[at]:
            self.opened += 1
        else:
            raise BenchmarkFailed(f"the worker answered with frame {tag}: {data[at : at + min(length, 200)]!r}")


NEW_SOURCE_CREDITS, SMALL_FRAMES_CREDITS = 2_048, 16_384
"""Of a window of 8 MiB: the credits of a session whose source has sent nothing yet, and once it has sent small
messages. Here a credit that comes back stands for a message that is durable, so those that are added are left out.
"""

WINDOW = 4
"""Batches that make up all credits of a session; so one is sent while others are being stored."""

STORED_BYTES = events.HEADER.size + 28 + events.EVENT_BYTES
"""A message in a segment: stream id, event id, time, lengths of key and metadata, payload."""


def spread(number: int) -> int:
    """The id of a stream: in practice they are hashes. The factor is odd, so that no two products are the same."""
    return (number + 1) * 0x9E3779B97F4A7C15 % 2**64


class IngestLink:
    """One session with its streams. A message is counted when its credit comes back: the worker sends it with the
    point of reference, once the message is durable.
    """

    def __init__(self, sock: socket.socket, answers: Answers, batches: list[Batch]) -> None:
        self.sock = sock
        self.acked = answers.receive
        self.events = len(batches[0].data) // (MESSAGE_HEAD.size + events.EVENT_BYTES)
        self._batches = cycle(batches)
        self._number = 0

    def batch(self) -> tuple[bytearray]:
        """A buffer's turn comes again when all of it is acknowledged: there are at least as many as in flight."""
        batch = next(self._batches)
        self._number += 1
        batch.renumber(self._number)
        return (batch.data,)


@dataclass(slots=True)
class Session:
    """One connection of a source. Credits are counted in messages: `granted` may be in flight at a time."""

    sock: socket.socket
    answers: Answers = field(default_factory=Answers)
    granted: int = 0
    spent: int = 0

    @classmethod
    def open(cls, port: int, source: str, stream_ids: Sequence[int], *, announces_window: bool = True) -> Self:
        """Returns when every NOTIFY is answered and its credit is back."""
        session = cls(connect(port))
        session.sock.settimeout(SILENCE_SECONDS_MAX)
        session.sock.sendall(hello(source, announces_window=announces_window))
        while not session.answers.credits:
            session.receive()
        session.granted = session.answers.credits
        session.send(b"".join(notify(stream_id, f"stream {stream_id}") for stream_id in stream_ids), len(stream_ids))
        while session.answers.opened < len(stream_ids) or session.in_flight > 0:
            session.receive()
        if session.granted == NEW_SOURCE_CREDITS:
            session.answers.unpaid = SMALL_FRAMES_CREDITS - NEW_SOURCE_CREDITS
        return session

    @property
    def in_flight(self) -> int:
        return self.granted - (self.answers.credits - self.spent)

    def send(self, data: memoryview | bytes, count: int) -> None:
        self.sock.sendall(data)
        self.spent += count

    def receive(self) -> None:
        data = self.sock.recv(RECEIVE_BYTES_MAX)
        if not data:
            raise BenchmarkFailed("the worker closed a connection")
        self.answers.receive(data)


@dataclass(frozen=True, slots=True)
class IngestTarget:
    """`streams` are shared out among `connections`; each sends to its own, in random order."""

    port: int
    source: str
    streams: int
    connections: int
    one_by_one: bool = False
    announces_window: bool = True
    is_json: bool = False

    def connect(self, index: int) -> IngestLink:
        stream_ids = [spread(number) for number in range(index, self.streams, self.connections)]
        session = Session.open(self.port, self.source, stream_ids, announces_window=self.announces_window)
        count = 1 if self.one_by_one else min(session.granted // WINDOW, BATCH_MESSAGES_MAX)
        return IngestLink(session.sock, session.answers, make_batches(stream_ids, count, is_json=self.is_json))


def make_batches(stream_ids: list[int], count: int, *, is_json: bool = False) -> list[Batch]:
    """As many batches of `count` messages as all streams need to have their turn, and no fewer than are in flight."""
    Random(len(stream_ids)).shuffle(stream_ids)
    turns, payloads = cycle(stream_ids), events.json_payloads(count) if is_json else events.payloads(count)
    number = max(WINDOW, -(-len(stream_ids) // count))
    return [Batch(list(islice(turns, count)), payloads) for _ in range(number)]


class Ingest(Penstock):
    """Our worker. All connections are sessions of one source, as the SDK's are: they announce a window."""

    name = "ingest"
    announces_window = True

    def __init__(self, connections: int, streams: int) -> None:
        super().__init__(events.STORED_BYTES, WINDOW, connections)
        self._streams = streams

    def load(self, server: Server) -> IngestTarget:  # type: ignore[override]
        return IngestTarget(
            server.ports["connector"],
            "load",
            self._streams,
            self._connections,
            announces_window=self.announces_window,
        )

    def probe(self, server: Server) -> IngestTarget:  # type: ignore[override]
        return IngestTarget(server.ports["connector"], "probe", 1, 1, one_by_one=True)

    def stored(self, server: Server) -> int:
        """How many messages were accepted, without duplicates. Raises BenchmarkFailed if the segments are too short for
        them.
        """
        found = status(server)
        retained = sum(source["retained_bytes"] for source in found["sources"].values())
        messages: int = found["source_totals"]["messages"]
        if retained < messages * STORED_BYTES:
            raise BenchmarkFailed(f"{messages} messages need more than the {retained} bytes that are stored")
        return messages


class PlainPrograms(Ingest):
    """Programs that announce no window, as all that were not written for us: 64 credits each."""

    name = "plain_programs"
    announces_window = False


class ManyStreams(Ingest):
    name = "many_streams"


class EventTimes(Ingest):
    """The worker finds the event time of each message in its data, which is JSON of the same size."""

    name = "event_times"
    options = ("--event-time", "ts")

    def load(self, server: Server) -> IngestTarget:  # type: ignore[override]
        return replace(super().load(server), is_json=True)

    def probe(self, server: Server) -> IngestTarget:  # type: ignore[override]
        return replace(super().probe(server), is_json=True)


def status(server: Server) -> dict[str, Any]:
    found: dict[str, Any] = get_json(f"127.0.0.1:{server.ports['http']}", "/status")
    return found


# Messages for Spark to read: noise that no two of them share, put in over the connector protocol.

KEY_BYTES = 8
KEYS = 10_000
STREAMS = 10
BEGAN_MS = 1_700_000_000_000
"""The first event time; it goes up by a millisecond with every message unless `per_ms` says otherwise."""

FRAME = np.dtype(
    [
        ("length", ">u4"),
        ("tag", "u1"),
        ("stream", ">u8"),
        ("id", ">u8"),
        ("time", ">i8"),
        ("key_length", ">u2"),
        ("key", f"S{KEY_BYTES}"),
        ("payload", f"V{EVENT_BYTES}"),
    ]
)


@dataclass(frozen=True, slots=True)
class Messages:
    """`count` messages of one source. `together` are sent at once, then their acknowledgement is awaited; None: as
    many as the worker takes.
    """

    source: str
    count: int
    streams: int = STREAMS
    together: int | None = None
    keys: int = KEYS
    per_ms: int = 1
    """Messages to a millisecond of event time."""

    def send(self, port: int) -> None:
        """All of them are durable when it returns."""
        session = Session.open(port, self.source, [spread(number) for number in range(self.streams)])
        run = self.together or max(1, session.granted // WINDOW)
        in_flight_max = run if self.together else session.granted
        with session.sock:
            for batch in self.batches(run):
                while session.in_flight + len(batch) > in_flight_max:
                    session.receive()
                session.send(batch.data, len(batch))
            while session.in_flight > 0:
                session.receive()

    def batches(self, size: int) -> Iterator[NDArray[np.void]]:
        """MESSAGE frames; the streams take turns, ids and event times go up."""
        noise = np.random.default_rng(self.count)
        streams = np.array([spread(number) for number in range(self.streams)], np.uint64)
        keys = np.array([f"k{number:07d}" for number in range(self.keys)], f"S{KEY_BYTES}")
        for start in range(0, self.count, size):
            numbers = np.arange(start, min(start + size, self.count))
            batch = np.zeros(len(numbers), FRAME)
            batch["length"], batch["tag"], batch["key_length"] = FRAME.itemsize - 4, MESSAGE, KEY_BYTES
            batch["stream"], batch["id"] = streams[numbers % self.streams], numbers
            batch["time"] = BEGAN_MS + numbers // self.per_ms
            batch["key"] = keys[noise.integers(self.keys, size=len(numbers))]
            batch["payload"] = np.frombuffer(noise.bytes(len(numbers) * EVENT_BYTES), f"V{EVENT_BYTES}")
            yield batch
