"""An iterator, asked in the thread that also serves the socket."""

from collections.abc import AsyncIterable, Callable, Iterator
from math import inf
from typing import Any

from penstock.client.source.message import Entry, Given, Intake, entry_size
from penstock.client.source.outflow import TURN_SECONDS
from penstock.client.source.stream import SourceStream
from penstock.core.errors import RequestError


def open_iterator(stream: SourceStream) -> Iterator[Given]:
    """Ask the factory for what comes after the last message stored."""
    given = stream.factory(stream.stored)
    if isinstance(given, AsyncIterable):
        raise RequestError(f"stream {stream.name!r} is asynchronous", "Use AsyncSource, or give a plain iterator.")
    return iter(given)


def close_iterator(iterator: Any) -> None:
    """Generators end now, not when they are collected: they may hold files."""
    close = getattr(iterator, "close", None)
    if close is not None:
        close()


class IteratorFeed:
    """Nothing is held: what was taken goes to the socket. While the iterator waits, everything waits."""

    def __init__(self, stream: SourceStream, poll_seconds: float, clock: Callable[[], float]) -> None:
        self.stream = stream
        self._iterator = open_iterator(stream)
        self._intake = Intake(stream.name, stream.stored)
        self._poll_seconds = poll_seconds
        self._clock = clock
        self._ask_at = 0.0
        self._is_ended = False
        self._error: Exception | None = None

    @property
    def is_ended(self) -> bool:
        return self._is_ended

    def take(self, messages_max: int, bytes_max: int) -> list[Entry]:
        """Ends early when the iterator is slow: then what it gave is sent before it is asked again."""
        if self._error is not None:
            raise self._error
        entries: list[Entry] = []
        try:
            self._take(entries, messages_max, bytes_max)
        except Exception as error:
            if not entries:
                raise
            self._error = error  # what the iterator gave before is sent first
        return entries

    def _take(self, entries: list[Entry], messages_max: int, bytes_max: int) -> None:
        size, until = 0, self._clock() + TURN_SECONDS
        for given in self._iterator:
            if given is None:
                self._ask_at = self._clock() + self._poll_seconds
                return
            entry = self._intake.take(given)
            if entry is not None:
                entries.append(entry)
                size += entry_size(entry)
            if len(entries) >= messages_max or size >= bytes_max or self._clock() >= until:
                return
        self._is_ended = True

    def due(self, has_credit: bool) -> float:
        return self._ask_at if has_credit else inf

    def close(self) -> None:
        close_iterator(self._iterator)
