"""Our own server, driven with raw bytes of the segment protocol."""

import socket
import struct
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path

from penstock.bench import events
from penstock.bench.contender import BenchmarkFailed, Contender
from penstock.bench.contenders import segment_frames as frames
from penstock.bench.contenders.segment_frames import HEAD, LONG, ask, unexpected
from penstock.bench.drive import receive_exactly
from penstock.bench.process import Server, connect, ports_file, start_server

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
        self._begin = frames.begin_block(writer, block)
        self._last = 0
        self._acked = 0
        self._rest = b""

    def batch(self) -> tuple[bytes, bytes]:
        self._last += self.events
        return self._begin, frames.end_block(self._writer, self._size, self.events, self._last)

    def acked(self, data: bytes) -> int:
        data = self._rest + data
        at, before = 0, self._acked
        while len(data) - at >= HEAD.size:
            kind, length = HEAD.unpack_from(data, at)
            if len(data) - at < HEAD.size + length:
                break
            if kind != frames.DATA_APPENDED:
                raise unexpected(kind, data[at + HEAD.size :])
            (self._acked,) = LONG.unpack_from(data, at + frames.ACKED_AT)
            at += HEAD.size + length
        self._rest = data[at:]
        return self._acked - before


class SegmentReader:
    """Exactly one reply to a request: a head that is always as long, data, and the request."""

    def __init__(self, sock: socket.socket, segment: str) -> None:
        self.sock = sock
        self._segment = segment
        self.size = frames.segment_bytes(sock, segment)
        head_bytes = HEAD.size + len(frames.text(segment)) + struct.calcsize(">q??i")
        self._head = memoryview(bytearray(head_bytes))
        self._tail = memoryview(bytearray(LONG.size))

    def read(self, offset: int, into: memoryview) -> int:
        self.sock.sendall(frames.read_segment(self._segment, offset, len(into)))
        receive_exactly(self.sock, self._head)
        kind, _ = HEAD.unpack_from(self._head)
        if kind != frames.SEGMENT_READ:
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

    def connect(self, index: int) -> SegmentLink:
        sock = greet(self.port)
        segment = f"{self.name}/{index}"
        writer = uuid.uuid4().bytes
        ask(sock, frames.create_segment(1, segment), frames.SEGMENT_CREATED)
        ask(sock, frames.setup_append(2, writer, segment), frames.APPEND_SETUP)
        return SegmentLink(sock, writer, events.block(self.events))

    def connect_reader(self) -> SegmentReader:
        return SegmentReader(greet(self.port), f"{self.name}/0")


def greet(port: int) -> socket.socket:
    sock = connect(port)
    ask(sock, frames.hello(), frames.HELLO)
    return sock


class Penstock(Contender):
    """Our worker; one segment per connection."""

    name = "penstock"

    def __init__(self, block_bytes: int, window: int, connections: int) -> None:
        self._events = events.events_in(block_bytes)
        self._connections = connections
        self.window = window

    def start(self, directory: Path) -> Server:
        data = directory / "data"
        arguments = ["worker", "--data", str(data), *FREE_PORTS]
        command = [sys.executable, "-m", "penstock", *arguments]
        return start_server(command, directory, ports_file(data / "ports.json"))

    def load(self, server: Server) -> SegmentTarget:
        return SegmentTarget(server.ports["segment"], self._events, "bench/load")

    def probe(self, server: Server) -> SegmentTarget:
        return SegmentTarget(server.ports["segment"], 1, "bench/probe")

    def reading(self, server: Server) -> SegmentTarget:
        return self.load(server)

    def stored(self, server: Server) -> int:
        names = [f"bench/load/{index}" for index in range(self._connections)]
        with greet(server.ports["segment"]) as sock:
            sizes = [frames.segment_bytes(sock, name) for name in [*names, "bench/probe/0"]]
        return sum(sizes) // events.STORED_BYTES
