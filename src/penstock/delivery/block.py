"""Part of an epoch's output on its way to a sink: events as columns, and their message ids."""

from dataclasses import dataclass

from penstock.protocol.stored.bulk import Bytes, Column, Events


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Whole events, at least one. A message's id is the number of payload bytes before it in the sink's history, so
    that the next id is the id plus the length of the payload.
    """

    events: Events
    first_id: int

    def __len__(self) -> int:
        return len(self.events)

    @property
    def end_id(self) -> int:
        """The id of the message behind the last one."""
        offsets = self.values.offsets
        return self.first_id + int(offsets[len(self)]) - int(offsets[0])

    @property
    def times(self) -> Column:
        """In microseconds, or NO_TIME."""
        assert self.events.event_times is not None
        return self.events.event_times

    @property
    def keys(self) -> Bytes:
        assert self.events.keys is not None
        return self.events.keys

    @property
    def values(self) -> Bytes:
        assert self.events.values is not None
        return self.events.values
