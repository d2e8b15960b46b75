"""`windows.ordered` in plain Python, event by event: slow, and plainly right. It shares nothing with the engine."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.protocol.stored.event import END_OF_TIME


@dataclass(frozen=True)
class Event:
    """`number` is unique, and grows as events are read. `stream` and `message` are None where a frame lacks them."""

    time: int
    key: Any
    stream: int | None
    message: int | None
    number: int

    @property
    def place(self) -> tuple[int, ...]:
        """Null sorts first."""
        ids = (-(2**63) if each is None else each for each in (self.stream, self.message))
        return (self.time, *ids, self.number)


@dataclass
class OrderReference:
    """The events that wait for the watermark."""

    held: list[Event] = field(default_factory=list)

    def epoch(self, events: Sequence[Event], before: int | None, after: int | None) -> tuple[list[Event], list[Event]]:
        """What it emits, in order over all keys, and what was late."""
        late = [event for event in events if _passed(event, before)]
        self.held += [event for event in events if not _passed(event, before)]
        ready = sorted((event for event in self.held if _passed(event, after)), key=lambda event: event.place)
        self.held = [event for event in self.held if not _passed(event, after)]
        return ready, late


def _passed(event: Event, watermark: int | None) -> bool:
    """No more events before the watermark will come; at the end of time, none at all."""
    return watermark is not None and (event.time < watermark or watermark == END_OF_TIME)
