"""Parsing of single stored events, for programs that read a few of them. For many at a time, see `bulk`."""

from dataclasses import dataclass
from struct import Struct, error
from typing import Any

from penstock.core.errors import ProtocolError
from penstock.core.types import Buffer
from penstock.protocol.segment.frame import HEADER_SIZE, PAYLOAD_SIZE_MAX
from penstock.protocol.stored.metadata import unpack_metadata

# The bytes of a stored event: the one definition of its layout.
#
#    0           i32 type 0 · i32 length     an Event's header, as in the segment protocol
#    8           u64 stream id · u64 event id · i64 event time in µs
#    32          sb key                      sb: u16 length, then that many bytes
#    34 + k      sb metadata                 empty, or a map in msgpack
#    36 + k + m  payload                     up to the event's end
#
# All numbers are big-endian. An event of length 0 only carries a record's marks: readers skip it. Metadata is a
# map from str to anything. In an output segment its `source` and `stream`, both str, name the origin of the event;
# the ids are then those of the origin, else 0.
#
# A raw event is the header and data: all of the data is the value, even if it is empty.

HEAD = Struct(">iiQQqH")
"""A stored event up to its key: type 0, length, stream id, event id, event time, length of the key."""

KEY_START = HEAD.size
"""From an event's start to its key."""

LENGTH_MIN = KEY_START - HEADER_SIZE + 2
"""The length field of a stored event with neither key nor metadata nor payload."""

LENGTH_MAX = PAYLOAD_SIZE_MAX
"""The largest length field of any event."""

SHORT_MAX = 2**16 - 1
"""Bytes of a key, and of metadata, at most."""

NO_TIME = -(2**63)
"""The event time of an event that has none."""

END_OF_TIME = 253_402_300_799_999_999
"""9999-12-31T23:59:59.999999Z: the watermark where everything that was read has ended. No watermark is higher."""

SOURCE, STREAM = "source", "stream"
"""Keys of metadata: the origin's source, and the name of its stream."""


_NUMBERS = Struct(">QQq")
_SHORT = Struct(">H")


@dataclass(frozen=True, slots=True)
class StoredEvent:
    stream_id: int
    event_id: int
    event_time: int | None
    """In microseconds since 1970."""
    key: bytes
    metadata: dict[str, Any]
    """In an output segment, `source` and `stream` name the event's origin."""
    payload: bytes


def parse_event(data: Buffer) -> StoredEvent | None:
    """Parse the data of a segment's event, as clients return it; None if it only carries marks of streams.
    Raises ProtocolError for bytes that are not a stored event.
    """
    if not data:
        return None
    view = memoryview(data)
    try:
        stream_id, event_id, time = _NUMBERS.unpack_from(view)
        key, rest = _short(view[_NUMBERS.size :])
        metadata, payload = _short(rest)
        fields = unpack_metadata(metadata)
    except (ValueError, error) as reason:
        raise ProtocolError(f"not a valid stored event: {reason}") from None
    return StoredEvent(stream_id, event_id, None if time == NO_TIME else time, bytes(key), fields, bytes(payload))


def _short(view: memoryview) -> tuple[memoryview, memoryview]:
    """The bytes after a u16 length, and what follows them."""
    end = _SHORT.size + _SHORT.unpack_from(view)[0]
    if end > len(view):
        raise ValueError(f"it ends {end - len(view)} bytes too early")
    return view[_SHORT.size : end], view[end:]
