"""Stored events, parsed in plain Python: an independent implementation of the format."""

import struct
from collections.abc import Iterator
from typing import NamedTuple

_HEADER = struct.Struct(">ii")
_HEAD = struct.Struct(">QQq")
_SIZE = struct.Struct(">H")


class StoredEvent(NamedTuple):
    stream_id: int
    event_id: int
    event_time: int
    key: bytes
    metadata: bytes
    payload: bytes


def parse_data(data: bytes) -> StoredEvent:
    """One event's data, after its header."""
    stream_id, event_id, event_time = _HEAD.unpack_from(data)
    key, at = _counted(data, _HEAD.size)
    metadata, at = _counted(data, at)
    return StoredEvent(stream_id, event_id, event_time, key, metadata, data[at:])


def _counted(data: bytes, at: int) -> tuple[bytes, int]:
    start = at + _SIZE.size
    end = start + _SIZE.unpack_from(data, at)[0]
    assert end <= len(data)
    return data[start:end], end


def parse(data: bytes) -> Iterator[StoredEvent]:
    """A segment's events, in order. Events without data, which carry marks, are skipped."""
    at = 0
    while at < len(data):
        kind, length = _HEADER.unpack_from(data, at)
        assert kind == 0
        at += _HEADER.size
        assert at + length <= len(data)
        if length:
            yield parse_data(data[at : at + length])
        at += length
