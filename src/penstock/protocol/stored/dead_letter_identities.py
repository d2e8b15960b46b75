"""Which events the dead letters in some bytes were made of. It loads the compiled kernels."""

from dataclasses import dataclass
from sys import intern
from typing import Any, TypeAlias

import msgspec

from penstock.core.types import Buffer
from penstock.protocol.stored.bulk import Wanted, decode

Identity: TypeAlias = tuple[str, int, int]
"""The same for all rows that were made of one event: its position; for a derived row, its source, stream and message
id."""


@dataclass(frozen=True, slots=True)
class Identified:
    """Whole dead letters at the start of some bytes."""

    starts: list[int]
    """Where each starts in its segment, and where the last one ends."""
    identities: list[Identity | None]
    """None if it is not known."""


def identified_in(data: Buffer, offset: int) -> Identified:
    """The dead letters in bytes at `offset` of a segment, where one starts. Raises Damaged.

    Only what identifies an event is parsed: an epoch may have millions of late events.
    """
    events = decode(data, offset, wanted=_METADATA)
    assert events.metadata is not None
    assert events.stream_ids is not None
    assert events.event_ids is not None
    ids = zip(events.metadata.rows(), events.stream_ids.tolist(), events.event_ids.tolist(), strict=True)
    return Identified([*events.offsets.tolist(), events.end], [_identity(*one) for one in ids])


class _Place(msgspec.Struct):
    """Of a dead letter's metadata, what identifies its event."""

    segment: Any = None
    offset: Any = None
    source: Any = None


_place = msgspec.msgpack.Decoder(_Place)
_METADATA = Wanted(keys=False, values=False, origins=False, metadata=True)


def _identity(metadata: bytes, stream_id: int, event_id: int) -> Identity | None:
    place = _place.decode(metadata) if metadata else _Place()
    if isinstance(place.segment, str) and isinstance(place.offset, int):
        return intern(place.segment), place.offset, 0
    return (str(place.source), stream_id, event_id) if event_id else None
