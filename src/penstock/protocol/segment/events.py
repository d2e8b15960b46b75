"""Events as they lie in a segment: each one's data behind an 8-byte header, type 0 and length."""

from collections.abc import Iterable

from penstock.core.errors import LimitExceeded, ProtocolError
from penstock.core.types import Buffer
from penstock.protocol.segment.frame import EVENT, HEADER, HEADER_SIZE, PAYLOAD_SIZE_MAX


def frame_events(events: Iterable[Buffer]) -> bytes:
    """The events one after the other, each with its header."""
    parts: list[Buffer] = []
    for event in events:
        if len(event) > PAYLOAD_SIZE_MAX:
            raise LimitExceeded(f"an event of {len(event)} bytes is over the limit of {PAYLOAD_SIZE_MAX}")
        parts += (HEADER.pack(EVENT, len(event)), event)
    return b"".join(parts)


def split_events(data: Buffer) -> list[memoryview]:
    """The events' data, without copying it. ProtocolError unless the bytes are whole events and nothing else."""
    events, rest = take_events(data)
    if rest:
        raise ProtocolError(
            f"the event at byte {len(data) - len(rest)} is cut off after {len(rest)} bytes",
            "Read on from where that event begins.",
        )
    return events


def take_events(data: Buffer) -> tuple[list[memoryview], memoryview]:
    """The whole events at the start, and the bytes after them: the beginning of one more event, or nothing."""
    view = memoryview(data)
    events = []
    at, size = 0, len(view)
    while at + HEADER_SIZE <= size:
        kind, length = HEADER.unpack_from(view, at)
        if kind != EVENT or not 0 <= length <= PAYLOAD_SIZE_MAX:
            raise ProtocolError(
                f"no event begins at byte {at}: type {kind}, length {length}",
                "Read from an offset where an event begins.",
            )
        end = at + HEADER_SIZE + length
        if end > size:
            break
        events.append(view[at + HEADER_SIZE : end])
        at = end
    return events, view[at:]
