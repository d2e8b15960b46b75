"""Where a stream's events lie: which place in the journal and in its segment must be reached for an event's sake."""

from bisect import bisect_left
from typing import NamedTuple

from penstock.core.types import Offset, Position

PLACES_MAX = 256
"""Records that a stream remembers, however far behind its pipelines are. When there are more, two neighbours become
one: an event is then told to be complete with the next record's.
"""


class Place(NamedTuple):
    """Of the record that holds the events up to this id."""

    last_id: int
    position: Position
    end: Offset


class Places:
    """Of one stream, in order."""

    def __init__(self) -> None:
        self._places: list[Place] = []

    def __len__(self) -> int:
        return len(self._places)

    def add(self, place: Place) -> None:
        self._places.append(place)

    def prune(self, durable: Position, completed: float) -> None:
        """What is done is not looked up again; the rest is kept in bounds."""
        if len(self._places) <= PLACES_MAX:
            return
        self._places = [p for p in self._places if p.position > durable or p.end > completed]
        if len(self._places) > PLACES_MAX:
            last = self._places[-1]
            self._places = self._places[1::2]
            if self._places[-1] is not last:
                self._places.append(last)

    def find(self, event_id: int) -> Place | None:
        """The record that holds the event, or a later one; None: it was done long ago, or is not stored."""
        at = bisect_left(self._places, event_id, key=lambda place: place.last_id)
        return self._places[at] if at < len(self._places) else None
