"""The bytes of a stored event: the one place that says where its parts lie.

    0        i32 type 0 · i32 length                  an Event's header, as in the segment protocol
    8        u64 stream id · u64 event id · i64 event time in µs
    32       sb key                                   sb: u16 length, then so many bytes
    34 + k   sb metadata                              empty, or a map in msgpack
    36 + k + m   payload, up to the event's end

All numbers are big-endian. An event of length 0 only carries a record's marks: readers pass over it. Metadata is a
map from str to anything. In an output segment its `source` and `stream`, both str, say where the event came from; the
ids are then those of the origin, else 0.

A raw event is the header and data: all of it is the value, also when it is empty.
"""

from struct import Struct

from penstock.protocol.segment.frame import HEADER_SIZE, PAYLOAD_SIZE_MAX

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
