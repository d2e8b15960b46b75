"""Dead letters in the segments of a pipeline's ports `late` and `err`: stored events whose metadata contain the reason.
Apart from that metadata, they are the original events.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from penstock.core.types import Buffer
from penstock.protocol.segment.frame import HEADER, HEADER_SIZE
from penstock.protocol.stored.event import StoredEvent, parse_event

LATE, ERR = "late", "err"
"""Ports: for events that missed their windows, and for events that could not be processed."""
DEAD_LETTER_PORTS = (ERR, LATE)

REASON, SEGMENT, OFFSET, WATERMARK, BEHIND = "reason", "segment", "offset", "watermark", "behind_us"
MESSAGE_ID = "message_id"
"""For a dead letter of a source: the id that the event has in its own stream."""
DERIVED = "derived"
"""Set for a row that had lost the position of its event: its value is not necessarily the event's own."""
REASON_CHARACTERS_MAX = 1_000
"""A reason is for people; with it, a dead letter's metadata must stay far below the limit for an event's metadata."""
REPLACED = "penstock.replaced"
"""What the event's own metadata have under the keys that are added, if it has any of them."""
_ADDED = (REASON, SEGMENT, OFFSET, WATERMARK, BEHIND, DERIVED, REPLACED)
"""Keys of metadata that a dead letter has in addition to its event's own."""


@dataclass(frozen=True, slots=True)
class StoredDeadLetter:
    """A dead letter. Fields are None if they are not known: another writer may have omitted them."""

    start: int
    """Where it starts in its port's segment."""
    end: int
    event: StoredEvent
    """The original event, without the added metadata."""
    reason: str
    segment: str | None
    """Where the event was read; None for a row that was no longer an event."""
    offset: int | None
    watermark: int | None
    """For a late event: the watermark that it missed, in microseconds, and by how much."""
    behind_us: int | None


def dead_letters_in(data: Buffer, offset: int) -> Iterator[StoredDeadLetter]:
    """The complete dead letters in bytes at `offset` of a segment, where an event starts. Raises ProtocolError."""
    view, at = memoryview(data), 0
    while len(view) - at >= HEADER_SIZE:
        end = at + HEADER_SIZE + int(HEADER.unpack_from(view, at)[1])
        if end > len(view):
            return
        event = parse_event(view[at + HEADER_SIZE : end])
        if event is not None:
            yield dead_letter_of(offset + at, offset + end, event)
        at = end


def dead_letter_of(start: int, end: int, event: StoredEvent) -> StoredDeadLetter:
    """From an event between two offsets of its port's segment."""
    added = {key: event.metadata.get(key) for key in _ADDED}
    own = _without_added(event.metadata)
    return StoredDeadLetter(
        start,
        end,
        replace(event, metadata=own),
        _as(str, added[REASON]) or "",
        _as(str, added[SEGMENT]),
        _as(int, added[OFFSET]),
        _as(int, added[WATERMARK]),
        _as(int, added[BEHIND]),
    )


def with_added(own: Mapping[str, Any], added: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata of a dead letter, from which `dead_letter_of` finds its event's own, in their order."""
    replaced = {key: value for key, value in own.items() if key in _ADDED}
    return {**own, **added, **({REPLACED: replaced} if replaced else {})}


def _without_added(metadata: Mapping[str, Any]) -> dict[str, Any]:
    given = metadata.get(REPLACED)
    replaced = given if isinstance(given, dict) else {}
    found = ((key, replaced.get(key, value) if key in _ADDED else value) for key, value in metadata.items())
    return {key: value for key, value in found if key not in _ADDED or key in replaced}


def _as(kind: type, value: object) -> Any:
    return value if isinstance(value, kind) else None
