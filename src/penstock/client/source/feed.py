"""Messages between a pump, which waits for an iterator, and the connection, which does not wait for it."""

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator
from math import inf
from typing import Any

from penstock.client.source.message import Entry, Intake, SourceStream, Yielded, entry_size
from penstock.client.source.session import TURN_SECONDS
from penstock.core.errors import RequestError

SUPPLY_BYTES = 64 * 1024
"""Bytes that a stream may have waiting for credits before its iterator is paused, plus one message."""

SUPPLY_MESSAGES = 1024
"""The same limit for a stream of tiny messages: each costs more than its bytes."""


class Supply:
    """The messages of a stream while it is open. The pump `put`s, from any thread; the connection takes."""

    def __init__(self, stream: SourceStream, wake: Callable[[], None]) -> None:
        self.stream = stream
        self._wake = wake
        self._lock = threading.Lock()
        self._entries: deque[Entry] = deque()
        self._size = 0
        self._is_complete = False
        self._error: BaseException | None = None
        self.is_closed = False
        self.on_room: Callable[[], None] = lambda: None
        """Called when there is room again, or the supply is closed."""

    @property
    def has_room(self) -> bool:
        return self._size < SUPPLY_BYTES and len(self._entries) < SUPPLY_MESSAGES

    @property
    def is_ended(self) -> bool:
        return self._is_complete and not self._entries

    def put(self, entry: Entry) -> None:
        with self._lock:
            if not self.is_closed:
                self._entries.append(entry)
                self._size += entry_size(entry)
                if len(self._entries) == 1:
                    self._wake()

    def complete(self, error: BaseException | None = None) -> None:
        """The iterator has ended, or failed."""
        with self._lock:
            if not self.is_closed:
                self._is_complete = error is None
                self._error = error
                self._wake()

    def take(self, messages_max: int, bytes_max: int) -> list[Entry]:
        """Raises what the iterator raised, after all messages before that were taken."""
        if self._error is not None and not self._entries:
            raise self._error
        with self._lock:
            entries, size = self._pick(messages_max, bytes_max)
            self._size -= size
        if entries:
            self.on_room()
        return entries

    def due(self, has_credit: bool) -> float:
        can_move = has_credit if self._entries else self._is_complete or self._error is not None
        return 0.0 if can_move else inf

    def close(self) -> None:
        with self._lock:
            self.is_closed = True
            self._entries.clear()
            self._size = 0
        self.on_room()

    def _pick(self, messages_max: int, bytes_max: int) -> tuple[list[Entry], int]:
        entries: list[Entry] = []
        size = 0
        while self._entries and len(entries) < messages_max and size < bytes_max:
            entry = self._entries.popleft()
            entries.append(entry)
            size += entry_size(entry)
        return entries, size


# An iterator that runs in the thread that also serves the socket.


def open_iterator(stream: SourceStream) -> Iterator[Yielded]:
    """Ask the factory for the messages after the last one stored."""
    given = stream.factory(stream.stored)
    if isinstance(given, AsyncIterable):
        raise RequestError(f"stream {stream.name!r} is asynchronous", "Use AsyncSource, or pass a plain iterator.")
    return iter(given)


def close_iterator(iterator: Any) -> None:
    """Generators end now, not when they are garbage-collected: they may have files open."""
    close = getattr(iterator, "close", None)
    if close is not None:
        close()


class IteratorFeed:
    """Messages go straight to the socket. Without credit, only the next one is taken from the iterator: if there is
    none, the end can be sent, which needs no credit. While the iterator waits, everything waits.
    """

    def __init__(self, stream: SourceStream, poll_seconds: float, clock: Callable[[], float]) -> None:
        self.stream = stream
        self._iterator = open_iterator(stream)
        self._intake = Intake(stream.name, stream.stored)
        self._poll_seconds = poll_seconds
        self._clock = clock
        self._ask_at = 0.0
        self._next: Entry | None = None
        self._is_exhausted = False
        self._error: Exception | None = None

    @property
    def is_ended(self) -> bool:
        return self._is_exhausted and self._next is None

    def take(self, messages_max: int, bytes_max: int) -> list[Entry]:
        """Returns early if the iterator is slow: its messages so far are sent before it is asked again."""
        entries: list[Entry] = []
        if self._next is not None and messages_max > 0:
            entries.append(self._next)
            self._next = None
        if self._error is not None and not entries:
            raise self._error
        if self._error is None and len(entries) < max(messages_max, 1):
            try:
                self._take(entries, messages_max, bytes_max)
            except Exception as error:
                if not entries:
                    raise
                self._error = error  # messages before the error are sent first
        return entries

    def _take(self, entries: list[Entry], messages_max: int, bytes_max: int) -> None:
        size, until = sum(map(entry_size, entries)), self._clock() + TURN_SECONDS
        for given in self._iterator:
            if given is None:
                self._ask_at = self._clock() + self._poll_seconds
                return
            entry = self._intake.take(given)
            if entry is not None and messages_max == 0:
                self._next = entry
                return
            if entry is not None:
                entries.append(entry)
                size += entry_size(entry)
            if len(entries) >= messages_max > 0 or size >= bytes_max or self._clock() >= until:
                return
        self._is_exhausted = True

    def due(self, has_credit: bool) -> float:
        if self._next is not None:
            return 0.0 if has_credit else inf
        return self._ask_at

    def close(self) -> None:
        close_iterator(self._iterator)


# Pumps move messages from an iterator into a supply: a task for an asynchronous iterator, a thread for any other, which
# may wait as long as it likes without blocking the loop.

SKIPS_MAX = 256
"""Messages skipped before yielding to the loop: an iterator that never waits would otherwise block it."""


async def pump(supply: Supply, iterator: AsyncIterator[Yielded], poll_seconds: float) -> None:
    """Until the iterator ends, or the task is cancelled."""
    try:
        await _pump_all(supply, iterator, poll_seconds)
        supply.complete()
    except Exception as error:
        supply.complete(error)
    finally:
        close = getattr(iterator, "aclose", None)
        if close is not None:
            await close()


async def _pump_all(supply: Supply, iterator: AsyncIterator[Yielded], poll_seconds: float) -> None:
    room = asyncio.Event()
    supply.on_room = room.set
    intake = Intake(supply.stream.name, supply.stream.stored)
    async for given in iterator:
        if given is None:
            await asyncio.sleep(poll_seconds)
        elif (entry := intake.take(given)) is not None:
            supply.put(entry)
        elif intake.skipped % SKIPS_MAX == 0:
            await asyncio.sleep(0)
        while not supply.has_room:
            room.clear()
            await room.wait()


class PumpThread:
    """The thread of one stream, while the source runs: a stream never has two iterators at the same time. An iterator
    that waits forever occupies its thread, which does not keep the process alive.
    """

    def __init__(self, stream_name: str, poll_seconds: float) -> None:
        self._poll_seconds = poll_seconds
        self._changed = threading.Condition()
        self._next: tuple[Supply, Iterator[Yielded]] | None = None
        self._is_closed = False
        thread = threading.Thread(target=self._run, name=f"source stream {stream_name}", daemon=True)
        thread.start()

    def fill(self, supply: Supply, iterator: Iterator[Yielded]) -> None:
        """Fill this supply, once the iterator of the previous, closed one has ended."""
        supply.on_room = self._notify
        with self._changed:
            self._next = supply, iterator
            self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify()

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify()

    def _run(self) -> None:
        while (job := self._wait_for_job()) is not None:
            supply, iterator = job
            try:
                try:
                    if not supply.is_closed:
                        self._pump(supply, iterator)
                finally:
                    close_iterator(iterator)
                supply.complete()
            except BaseException as error:
                supply.complete(error)

    def _wait_for_job(self) -> tuple[Supply, Iterator[Yielded]] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._next is not None or self._is_closed)
            job, self._next = self._next, None
            return None if self._is_closed else job

    def _pump(self, supply: Supply, iterator: Iterator[Yielded]) -> None:
        """Until the iterator ends, or the supply is closed."""
        intake = Intake(supply.stream.name, supply.stream.stored)
        for given in iterator:
            if given is None:
                self._wait(lambda: supply.is_closed, self._poll_seconds)
            elif (entry := intake.take(given)) is not None:
                supply.put(entry)
            if not supply.has_room:
                self._wait(lambda: supply.has_room or supply.is_closed, None)
            if supply.is_closed:
                return

    def _wait(self, done: Callable[[], bool], seconds: float | None) -> None:
        with self._changed:
            self._changed.wait_for(done, seconds)
