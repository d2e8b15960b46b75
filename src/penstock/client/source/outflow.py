"""Which stream sends next: each has its turn, and a turn is one batch at most."""

from collections.abc import Callable
from math import inf
from typing import Protocol

from penstock.client.source.message import Entry
from penstock.client.source.session import SourceSession
from penstock.client.source.stream import SourceStream

BATCH_BYTES = 256 * 1024
"""Frames for one write: large enough that the cost of the call does not count, small enough to take turns."""

BATCH_MESSAGES = 2048
"""In one turn: a stream of tiny messages lets the others come."""

TURN_SECONDS = 0.01
"""After so long what was taken is sent and the socket is read, even if the batch is small."""


class Feed(Protocol):
    """The messages of an open stream."""

    stream: SourceStream

    @property
    def is_ended(self) -> bool:
        """There is nothing more to take."""

    def take(self, messages_max: int, bytes_max: int) -> list[Entry]:
        """What there is now, up to the limits; at least one message if there is any, even a large one."""

    def due(self, has_credit: bool) -> float:
        """From when on a turn is of use; inf: not until something changes."""

    def close(self) -> None:
        """Nothing more is taken. Does nothing the second time."""


class Outflow:
    """The feeds of one connection; whose last turn is the longest ago comes first."""

    def __init__(self, session: SourceSession, clock: Callable[[], float]) -> None:
        self._session = session
        self._clock = clock
        self._feeds: dict[Feed, None] = {}

    def add(self, feed: Feed) -> None:
        self._feeds[feed] = None

    def fill(self, room_bytes: int) -> None:
        """Give each stream that has something to send one turn at most, until the room, the credits or the time of a
        turn are used up.
        """
        until = self._clock() + TURN_SECONDS
        for feed in list(self._feeds):
            now = self._clock()
            if room_bytes <= 0 or now >= until:
                return
            if feed.due(self._session.credits > 0) <= now:
                room_bytes -= self._turn(feed, room_bytes)

    def due(self) -> float:
        """When `fill` is of use again."""
        has_credit = self._session.credits > 0
        return min((feed.due(has_credit) for feed in self._feeds), default=inf)

    def close(self) -> None:
        while self._feeds:
            self._feeds.popitem()[0].close()

    def _turn(self, feed: Feed, room_bytes: int) -> int:
        entries = feed.take(min(self._session.credits, BATCH_MESSAGES), min(room_bytes, BATCH_BYTES))
        size = self._session.send(feed.stream, entries) if entries else 0
        del self._feeds[feed]
        if feed.is_ended:
            feed.close()
            self._session.end(feed.stream)
        else:
            self._feeds[feed] = None
        return size
