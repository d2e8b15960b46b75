"""Cuts a segment's bytes, as they are read piece by piece, into events."""

from penstock.client.segments.results import Event
from penstock.core.errors import ProtocolError
from penstock.core.types import Buffer
from penstock.protocol.segment import HEADER_SIZE, take_events

READ_BYTES = 2**20
"""How much to ask for at a time."""


class EventSplitter:
    """`offset` is where to read next. Holds at most the beginning of one event."""

    def __init__(self, start: int) -> None:
        self.offset = start
        self._rest: Buffer = b""

    def feed(self, data: Buffer) -> list[Event]:
        """The events that these bytes, read at `offset`, complete."""
        begin = self.offset - len(self._rest)
        self.offset += len(data)
        views, rest = take_events(b"".join((self._rest, data)) if self._rest else data)
        self._rest = bytes(rest)
        events = []
        for view in views:
            events.append(Event(begin, bytes(view)))
            begin += HEADER_SIZE + len(view)
        return events

    def check_whole(self) -> None:
        """ProtocolError if the bytes so far end inside an event."""
        if self._rest:
            raise ProtocolError(
                f"the segment ends inside the event at {self.offset - len(self._rest)}",
                "Its writer did not append whole events: use read.",
            )
