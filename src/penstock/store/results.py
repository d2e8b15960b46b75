"""What the store's calls return."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from penstock.core.types import Offset, Position
from penstock.store.reading import Piece
from penstock.store.segment import Segment


class Appended(NamedTuple):
    """`end` is the segment's length after the append; it is durable once the journal is, up to `position`."""

    end: Offset
    position: Position
    stored: bool
    """False for a number that was stored before: the append is acknowledged again, and nothing is added."""


class Located(NamedTuple):
    """Where the bytes of a read are; `fetch` brings them, from any thread."""

    pieces: list[Piece]
    at_tail: bool
    end_of_segment: bool


class Record(NamedTuple):
    """Where one append's bytes begin and end in their segment; what was truncated of them counts."""

    start: Offset
    end: Offset


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    name: str
    number: int
    """Never used again: a segment of the same name that is made later has another one."""
    start: int
    length: int
    sealed: bool
    writers: int
    attributes: Mapping[bytes, int]
    damage: str | None


def info_of(segment: Segment) -> SegmentInfo:
    return SegmentInfo(
        name=segment.name,
        number=segment.id,
        start=segment.start,
        length=segment.durable,
        sealed=segment.sealed,
        writers=len(segment.writers or ()),
        attributes=dict(segment.attributes or {}),
        damage=segment.damage.reason if segment.damage else None,
    )
