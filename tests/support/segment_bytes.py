"""Bytes of the segment protocol that only its other side writes or reads: appends in the document's dialect, and whole
events taken apart.
"""

from penstock.core.errors import ProtocolError
from penstock.core.types import Buffer
from penstock.protocol.segment import DOCUMENT, BeginAppendBlock, EndAppendBlock, take_events


def encode_append_at(writer_id: bytes, data: Buffer, *, offset: int) -> list[Buffer]:
    """An append as a block of the document's dialect; `offset` is what this writer has written before it."""
    size = len(data)
    begin = DOCUMENT.encode(BeginAppendBlock(writer_id, offset, size))
    end = DOCUMENT.encode(EndAppendBlock(writer_id, offset + size, size))
    return [begin, data, end]


def split_events(data: Buffer) -> list[memoryview]:
    """The events' data, without copying it. ProtocolError unless the bytes are whole events and nothing else."""
    events, rest = take_events(data)
    if rest:
        raise ProtocolError(
            f"the event at byte {len(data) - len(rest)} is cut off after {len(rest)} bytes",
            "Read on from where that event begins.",
        )
    return events
