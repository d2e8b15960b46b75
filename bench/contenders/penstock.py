"""Our own server, driven with raw bytes of the segment protocol."""

import os
import socket
import struct
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from bench import events
from bench.contender import Contender
from bench.harness import BenchmarkFailed
from bench.load import receive_exactly
from bench.processes import START_SECONDS_MAX, Server, connect, ports_file, start_server

# The few messages of the segment protocol that a load generator needs, in its versioned dialect.
#
# They are made here and not by `penstock.protocol`: a benchmark that shares the codec with the server would not see
# it change, and the generator must cost no more than those of other contenders.

HELLO, SETUP_APPEND, APPEND_SETUP, BEGIN_BLOCK, END_BLOCK = -127, 1, 2, 3, 4
DATA_APPENDED, READ_SEGMENT, SEGMENT_READ, GET_INFO, INFO = 7, 9, 10, 11, 12
CREATE_SEGMENT, SEGMENT_CREATED, NO_SUCH_SEGMENT = 20, 21, 53

HEAD = struct.Struct(">ii")
LONG = struct.Struct(">q")
END_FRAME = struct.Struct(">ii 16s ii iqq")
"""Type, length, writer, size of whole events, length of further data (none), number of events,
last event number, request."""

ACKED_AT = HEAD.size + 16
"""Where DataAppended has its event number: after the writer."""

WRITE_OFFSET_FROM_END = 2 * LONG.size
"""Where SegmentInfo has the write offset; the start offset follows it."""


def frame(kind: int, *parts: bytes) -> bytes:
    payload = b"".join(parts)
    return HEAD.pack(kind, len(payload)) + payload


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack(">H", len(data)) + data


def hello() -> bytes:
    return frame(HELLO, struct.pack(">ii", 17, 5))


def create_segment(request: int, segment: str, token: str = "") -> bytes:
    """No scaling, no rollover."""
    scale = struct.pack(">ib", 0, 0)
    return frame(CREATE_SEGMENT, LONG.pack(request), text(segment), scale, text(token), LONG.pack(0))


def setup_append(request: int, writer: bytes, segment: str, token: str = "") -> bytes:
    return frame(SETUP_APPEND, LONG.pack(request), writer, text(segment), text(token))


def begin_block(writer: bytes, block: bytes) -> bytes:
    return frame(BEGIN_BLOCK, writer, block)


def end_block(writer: bytes, size: int, count: int, last: int) -> bytes:
    """`last` numbers the request, too."""
    length = END_FRAME.size - HEAD.size
    return END_FRAME.pack(END_BLOCK, length, writer, size, 0, count, last, last)


def read_segment(segment: str, offset: int, length: int, token: str = "") -> bytes:
    where = struct.pack(">qi", offset, length)
    return frame(READ_SEGMENT, text(segment), where, text(token), LONG.pack(offset))


def get_info(segment: str, token: str = "") -> bytes:
    return frame(GET_INFO, LONG.pack(0), text(segment), text(token))


def receive(sock: socket.socket) -> tuple[int, bytes]:
    """The next frame's type and payload."""
    head = bytearray(HEAD.size)
    receive_exactly(sock, memoryview(head))
    kind, length = HEAD.unpack(head)
    payload = bytearray(length)
    receive_exactly(sock, memoryview(payload))
    return kind, bytes(payload)


def ask(sock: socket.socket, request: bytes, expected: int) -> bytes:
    sock.sendall(request)
    kind, payload = receive(sock)
    if kind != expected:
        raise unexpected(kind, payload)
    return payload


def unexpected(kind: int, payload: bytes) -> BenchmarkFailed:
    return BenchmarkFailed(f"the worker answered with message {kind}: {payload[:200]!r}")


def segment_bytes(sock: socket.socket, segment: str, token: str) -> int:
    """How long the segment is; 0 if there is none."""
    sock.sendall(get_info(segment, token))
    kind, payload = receive(sock)
    if kind == NO_SUCH_SEGMENT:
        return 0
    if kind != INFO:
        raise unexpected(kind, payload)
    (size,) = LONG.unpack_from(payload, len(payload) - WRITE_OFFSET_FROM_END)
    return int(size)


FREE_PORTS = ("--connector-port", "0", "--segment-port", "0", "--http-port", "0")


class SegmentLink:
    """One writer with one segment. A batch is a block that is always the same, and a short frame
    that ends it. Events are numbered from 1, so that an acknowledged number is a count.
    """

    def __init__(self, sock: socket.socket, writer: bytes, block: bytes) -> None:
        self.sock = sock
        self.events = len(block) // events.STORED_BYTES
        self._writer = writer
        self._size = len(block)
        self._begin = begin_block(writer, block)
        self._last = 0
        self._acked = 0
        self._rest = b""

    def batch(self) -> tuple[bytes, bytes]:
        self._last += self.events
        return self._begin, end_block(self._writer, self._size, self.events, self._last)

    def acked(self, data: bytes) -> int:
        data = self._rest + data
        at, before = 0, self._acked
        while len(data) - at >= HEAD.size:
            kind, length = HEAD.unpack_from(data, at)
            if len(data) - at < HEAD.size + length:
                break
            if kind != DATA_APPENDED:
                raise unexpected(kind, data[at + HEAD.size :])
            (self._acked,) = LONG.unpack_from(data, at + ACKED_AT)
            at += HEAD.size + length
        self._rest = data[at:]
        return self._acked - before


class SegmentReader:
    """Exactly one reply to a request: a head that is always as long, data, and the request."""

    def __init__(self, sock: socket.socket, segment: str, token: str = "") -> None:
        self.sock = sock
        self._segment = segment
        self._token = token
        self.size = segment_bytes(sock, segment, token)
        head_bytes = HEAD.size + len(text(segment)) + struct.calcsize(">q??i")
        self._head = memoryview(bytearray(head_bytes))
        self._tail = memoryview(bytearray(LONG.size))

    def read(self, offset: int, into: memoryview) -> int:
        self.sock.sendall(read_segment(self._segment, offset, len(into), self._token))
        receive_exactly(self.sock, self._head)
        kind, _ = HEAD.unpack_from(self._head)
        if kind != SEGMENT_READ:
            raise unexpected(kind, bytes(self._head))
        (count,) = struct.unpack_from(">i", self._head, len(self._head) - 4)
        if not count:
            raise BenchmarkFailed(f"no bytes at {offset} of {self.size} in {self._segment}")
        receive_exactly(self.sock, into[:count])
        receive_exactly(self.sock, self._tail)
        return int(count)


@dataclass(frozen=True, slots=True)
class SegmentTarget:
    port: int
    events: int
    name: str
    token: str

    def connect(self, index: int) -> SegmentLink:
        sock = greet(self.port)
        segment = f"{self.name}/{index}"
        writer = uuid.uuid4().bytes
        ask(sock, create_segment(1, segment, self.token), SEGMENT_CREATED)
        ask(sock, setup_append(2, writer, segment, self.token), APPEND_SETUP)
        return SegmentLink(sock, writer, events.block(self.events))

    def connect_reader(self) -> SegmentReader:
        return SegmentReader(greet(self.port), f"{self.name}/0", self.token)


def greet(port: int) -> socket.socket:
    sock = connect(port)
    ask(sock, hello(), HELLO)
    return sock


class Penstock(Contender):
    """Our worker; one segment per connection."""

    name = "penstock"
    options: ClassVar[tuple[str, ...]] = ()
    """More options of the worker."""
    start_seconds_max: ClassVar[float] = START_SECONDS_MAX

    def __init__(self, block_bytes: int, window: int, connections: int) -> None:
        self._events = events.events_in(block_bytes)
        self._connections = connections
        self.window = window

    def start(self, directory: Path) -> Server:
        data = directory / "data"
        # The load generator counts messages by the credits that come back: none are withheld in its favour or others'.
        arguments = ["worker", "--data", str(data), *FREE_PORTS, "--in-flight", "1GiB", "--file-root", "/"]
        command = [sys.executable, "-m", "penstock", *arguments, *self.options]
        server = start_server(command, directory, ports_file(data / "ports.json"), self.start_seconds_max)
        self._token = (data / "token").read_text().strip()
        os.environ["PENSTOCK_TOKEN_FILE"] = str(data / "token")  # of all clients, also in other processes
        return server

    def load(self, server: Server) -> SegmentTarget:
        return SegmentTarget(server.ports["segment"], self._events, "bench/load", self._token)

    def probe(self, server: Server) -> SegmentTarget:
        return SegmentTarget(server.ports["segment"], 1, "bench/probe", self._token)

    def reading(self, server: Server) -> SegmentTarget:
        return self.load(server)

    def stored(self, server: Server) -> int:
        names = [f"bench/load/{index}" for index in range(self._connections)]
        with greet(server.ports["segment"]) as sock:
            sizes = [segment_bytes(sock, name, self._token) for name in [*names, "bench/probe/0"]]
        return sum(sizes) // events.STORED_BYTES
