"""Letters as they lie in the segments of a pipeline's ports `late` and `err`: stored events whose metadata say why they
are there. Without that they are the events that they were.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from penstock.core.types import Buffer
from penstock.protocol.segment.frame import HEADER, HEADER_SIZE
from penstock.protocol.stored.event import StoredEvent, parse_event

LATE, ERR = "late", "err"
"""Ports: of events that missed their windows, and of events that could not be processed."""
LETTER_PORTS = (ERR, LATE)

REASON, SEGMENT, OFFSET, WATERMARK, BEHIND = "reason", "segment", "offset", "watermark", "behind_us"
_ADDED = (REASON, SEGMENT, OFFSET, WATERMARK, BEHIND)
"""Keys of metadata that a letter has beside its event's own."""


@dataclass(frozen=True, slots=True)
class Letter:
    """Fields are None where they are not known: another writer may have left them out."""

    start: int
    """Where it begins in its port's segment."""
    end: int
    event: StoredEvent
    """As it was, without what was added to its metadata."""
    reason: str
    segment: str | None
    """Where the event was read; None for a row that was no longer an event."""
    offset: int | None
    watermark: int | None
    """Of a late one: the watermark that it missed, in microseconds, and by how much."""
    behind_us: int | None


def letters_in(data: Buffer, offset: int) -> Iterator[Letter]:
    """Those that are whole in bytes that lie at `offset` in a segment, where an event begins. Raises ProtocolError."""
    view, at = memoryview(data), 0
    while len(view) - at >= HEADER_SIZE:
        end = at + HEADER_SIZE + int(HEADER.unpack_from(view, at)[1])
        if end > len(view):
            return
        event = parse_event(view[at + HEADER_SIZE : end])
        if event is not None:
            yield _letter(offset + at, offset + end, event)
        at = end


def _letter(start: int, end: int, event: StoredEvent) -> Letter:
    told = {key: event.metadata.get(key) for key in _ADDED}
    kept = {key: value for key, value in event.metadata.items() if key not in _ADDED}
    return Letter(
        start,
        end,
        replace(event, metadata=kept),
        _as(str, told[REASON]) or "",
        _as(str, told[SEGMENT]),
        _as(int, told[OFFSET]),
        _as(int, told[WATERMARK]),
        _as(int, told[BEHIND]),
    )


def _as(kind: type, value: object) -> Any:
    return value if isinstance(value, kind) else None
