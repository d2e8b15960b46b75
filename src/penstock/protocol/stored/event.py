"""One stored event taken apart, for programs that read a few of them. Many at a time: `bulk`."""

from dataclasses import dataclass
from struct import Struct, error
from typing import Any

import msgpack

from penstock.core.errors import ProtocolError
from penstock.core.types import Buffer
from penstock.protocol.stored.layout import NO_TIME

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
    """In an output segment, `source` and `stream` say where it came from."""
    payload: bytes


def parse_event(data: Buffer) -> StoredEvent | None:
    """The data of a segment's event, as clients give them, taken apart; None if it only carries marks of streams.
    Raises ProtocolError for bytes that are no stored event.
    """
    if not data:
        return None
    view = memoryview(data)
    try:
        stream_id, event_id, time = _NUMBERS.unpack_from(view)
        key, rest = _short(view[_NUMBERS.size :])
        metadata, payload = _short(rest)
        told = msgpack.unpackb(metadata, unicode_errors="replace") if metadata else {}
    except (ValueError, error) as reason:
        raise ProtocolError(f"this is no stored event: {reason}") from None
    return StoredEvent(stream_id, event_id, None if time == NO_TIME else time, bytes(key), told, bytes(payload))


def _short(view: memoryview) -> tuple[memoryview, memoryview]:
    """The bytes behind a u16 length, and what follows them."""
    end = _SHORT.size + _SHORT.unpack_from(view)[0]
    if end > len(view):
        raise ValueError(f"it ends {end - len(view)} bytes too early")
    return view[_SHORT.size : end], view[end:]
