"""The few messages of the segment protocol that a load generator needs, in its versioned dialect.

They are made here and not by `penstock.protocol`: a benchmark that shares the codec with the server
would not see it change, and the generator must cost no more than those of other contenders.
"""

import socket
import struct

from penstock.bench.contender import BenchmarkFailed
from penstock.bench.drive import receive_exactly

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


def create_segment(request: int, segment: str) -> bytes:
    """No scaling, no rollover, no token."""
    scale = struct.pack(">ib", 0, 0)
    return frame(CREATE_SEGMENT, LONG.pack(request), text(segment), scale, text(""), LONG.pack(0))


def setup_append(request: int, writer: bytes, segment: str) -> bytes:
    return frame(SETUP_APPEND, LONG.pack(request), writer, text(segment), text(""))


def begin_block(writer: bytes, block: bytes) -> bytes:
    return frame(BEGIN_BLOCK, writer, block)


def end_block(writer: bytes, size: int, count: int, last: int) -> bytes:
    """`last` numbers the request, too."""
    length = END_FRAME.size - HEAD.size
    return END_FRAME.pack(END_BLOCK, length, writer, size, 0, count, last, last)


def read_segment(segment: str, offset: int, length: int) -> bytes:
    where = struct.pack(">qi", offset, length)
    return frame(READ_SEGMENT, text(segment), where, text(""), LONG.pack(offset))


def get_info(segment: str) -> bytes:
    return frame(GET_INFO, LONG.pack(0), text(segment), text(""))


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


def segment_bytes(sock: socket.socket, segment: str) -> int:
    """How long the segment is; 0 if there is none."""
    sock.sendall(get_info(segment))
    kind, payload = receive(sock)
    if kind == NO_SUCH_SEGMENT:
        return 0
    if kind != INFO:
        raise unexpected(kind, payload)
    (size,) = LONG.unpack_from(payload, len(payload) - WRITE_OFFSET_FROM_END)
    return int(size)
