"""The few frames of the connector protocol that a load generator needs.

They are made here and not by `penstock.protocol`, as those of the segment protocol are (`segment_frames.py`).
"""

import struct
from collections.abc import Sequence

from penstock.bench.contender import BenchmarkFailed

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


def hello(instance: str) -> bytes:
    """With no cookie."""
    return frame(HELLO, text("0.0.1"), text(""), text("penstock bench"), text(instance))


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
            self.credits += CREDITS.unpack_from(data, at)[0]
        elif tag == NOTIFY_ACK and data[at]:
            self.opened += 1
        else:
            raise BenchmarkFailed(f"the worker answered with frame {tag}: {data[at : at + min(length, 200)]!r}")
