"""A stream of a source, for as long as the source lives: connections come and go."""

from collections.abc import Callable
from typing import Any

from penstock.protocol.connector import NOTHING_YET, Notify, encode


class SourceStream:
    """What `stream` returns, and how far the stream has come. Read it; the source writes it."""

    def __init__(self, name: str, stream_id: int, factory: Callable[[int | None], Any]) -> None:
        encode(Notify(stream_id, name))  # raises for what does not fit
        self.name = name
        self.stream_id = stream_id
        self.factory = factory
        self.stored: int | None = None
        """The last id that the worker had stored when it opened the stream the last time; None: nothing."""
        self.first_stored: int | None = None
        """The same of the first time: where an earlier run had come to."""
        self.acknowledged: int | None = None
        """The last id that an ACK told to be complete; it only grows. None: there was no ACK yet."""
        self.sent = 0
        """Messages sent; those sent again after a lost connection count again."""
        self.was_opened = False
        self.is_done = False
        """The iterator has ended, and the worker has acknowledged its last message."""

    def opened(self, point_of_reference: int) -> bool:
        """The worker opened the stream. True if it has stored more than we knew."""
        stored = None if point_of_reference == NOTHING_YET else point_of_reference
        is_more = self.was_opened and stored is not None and (self.stored is None or stored > self.stored)
        if not self.was_opened:
            self.first_stored, self.was_opened = stored, True
        self.stored = stored
        return is_more

    def acked(self, point_of_reference: int) -> bool:
        """True if this moves the stream."""
        if self.acknowledged is not None and point_of_reference <= self.acknowledged:
            return False
        self.acknowledged = point_of_reference
        return True

    def __repr__(self) -> str:
        return f"SourceStream({self.name!r}, sent={self.sent}, acknowledged={self.acknowledged})"
