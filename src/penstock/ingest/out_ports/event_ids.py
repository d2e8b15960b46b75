"""The ids of a stream's events, and where the events of an id are stored. Pure.

A stream that resumes is sent as raw bytes: the id of its last event determines where to resume. A cut is a position in
the raw bytes such that all records before it have been emitted and none after it has.

    id = cut << 20                 everything up to the cut is stored: resume there
    id = (cut << 20) + n           and n events after it, because one call's events did not fit into one record:
                                   resume at the cut, and skip the first n events

The events of one call that reaches a cut are numbered backwards from it: they are never visible in part.
"""

from bisect import bisect_left
from typing import NamedTuple

from penstock.core.errors import LimitExceeded
from penstock.core.types import Offset, Position

CUT_BITS = 20
SINCE_MAX = (1 << CUT_BITS) - 1
"""The most events after a cut and before the next one."""

PLACES_MAX = 256
"""Records that a stream remembers, however far its pipelines lag. Beyond it, two neighbours are merged: an event then
counts as complete when the later record is.
"""


def position(last_id: int) -> int:
    """The cut to resume from. The last id is 0 if there is none yet."""
    return last_id >> CUT_BITS


def since(last_id: int) -> int:
    """How many of the events after that cut are stored already."""
    return last_id & SINCE_MAX


def counted(last_id: int, count: int) -> range:
    """Ids of events that are merely counted."""
    return range(last_id + 1, last_id + count + 1)


def reaching(last_id: int, count: int, cut: int) -> range:
    """Ids of one or more events that are stored in one step and reach the cut. Raises LimitExceeded."""
    end = cut << CUT_BITS
    return range(end - count + 1, end + 1) if last_id + count <= end else going_on(last_id, count)


def going_on(last_id: int, count: int) -> range:
    """Ids of events that are stored before the others of the same call. Raises LimitExceeded."""
    if since(last_id) + count > SINCE_MAX:
        raise LimitExceeded(
            f"more than {SINCE_MAX} events without a place to resume from",
            "Use interceptors that produce fewer events per byte.",
        )
    return counted(last_id, count)


class Place(NamedTuple):
    """The place of the record that has the events up to this id."""

    last_id: int
    position: Position
    """In the journal."""
    end: Offset
    """In the segment."""


class Places:
    """Where the events of one stream are stored, in order."""

    def __init__(self) -> None:
        self._places: list[Place] = []

    def __len__(self) -> int:
        return len(self._places)

    def add(self, place: Place) -> None:
        self._places.append(place)

    def extend(self, last_id: int, position: Position) -> None:
        """The last event counts as durable only when the journal is durable up to this position: dead letters of the
        same bytes are stored there.
        """
        if self._places:
            self._places[-1] = self._places[-1]._replace(position=position)
        else:
            self._places.append(Place(last_id, position, Offset(0)))

    def advance(self, last_id: int, position: Position) -> None:
        """The stream continues after this id, without an event: it is complete when the last event before it is."""
        if self._places:
            self._places[-1] = Place(last_id, position, self._places[-1].end)
        else:
            self._places.append(Place(last_id, position, Offset(0)))

    def prune(self, durable: Position, completed: float) -> None:
        """When there are more than PLACES_MAX: forget completed records, and bound the number of the others."""
        self._places = [p for p in self._places if p.position > durable or p.end > completed]
        if len(self._places) > PLACES_MAX:
            last = self._places[-1]
            self._places = self._places[1::2]
            if self._places[-1] is not last:
                self._places.append(last)

    def find(self, event_id: int) -> Place | None:
        """The record with the event, or a later one; None: it was completed long ago, or is not stored."""
        at = bisect_left(self._places, event_id, key=lambda place: place.last_id)
        return self._places[at] if at < len(self._places) else None
