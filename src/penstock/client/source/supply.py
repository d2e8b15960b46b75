"""Messages between a pump, which waits for an iterator, and the connection, which does not wait for it."""

import threading
from collections import deque
from collections.abc import Callable
from math import inf

from penstock.client.source.message import Entry, entry_size
from penstock.client.source.stream import SourceStream

SUPPLY_BYTES = 64 * 1024
"""What a stream may have waiting for credits before its iterator is asked for more; and one message."""

SUPPLY_MESSAGES = 1024
"""The same for a stream of tiny messages: each costs more than its bytes."""


class Supply:
    """One opening of one stream. The pump `put`s, from whatever thread; the connection takes."""

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
        """Raises what the iterator raised, after all that it gave before."""
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
