"""What the store needs from a journal. `file_journal.py` implements it with local files; a replicated log could as
well.

A journal is a sequence of records addressed by position alone. It is divided into chapters, each starting with a
snapshot of the table of segments and ending with an index of its own bytes, so that only the last chapter is read to
open it.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

from penstock.core.types import Buffer, Position
from penstock.store.files import LocalFile, RemoteFile
from penstock.store.record import Entry, Found


class Damage(NamedTuple):
    """Stored bytes that fail their checksum."""

    file: str
    offset: int
    position: Position
    end: Position
    entry: Entry | None
    """The record, where its header could be read."""

    def __str__(self) -> str:
        return f"{self.file} is damaged at offset {self.offset} ({self.end - self.position} bytes of records)"


class Recovered(NamedTuple):
    """What was found on opening: the records from a snapshot on, in order, and the damage among them."""

    entries: Sequence[tuple[Position, Entry]]
    """Each with the chapter it is in."""

    damage: Sequence[Damage]


class Journal(Protocol):
    """One writer, any number of readers. Opening a journal takes it over with a higher term."""

    @property
    def chapter(self) -> Position:
        """Where the chapter that is being written starts."""
        ...

    @property
    def chapters(self) -> tuple[Position, ...]: ...

    @property
    def end(self) -> Position:
        """Where the next record will start."""
        ...

    @property
    def durable(self) -> Position:
        """Everything before it is durable."""
        ...

    def take_recovered(self) -> Recovered:
        """What was found on opening. Can be taken once only, because it may be large."""
        ...

    def check_room(self, *, draining: bool) -> None:
        """Raise DiskFull unless a record may be appended. Only a `draining` one may use the reserve."""
        ...

    def fits(self, length: int, closing: int) -> bool:
        """Whether a record of this length still fits into the chapter, together with the closing record."""
        ...

    def filled(self, closing: int) -> float:
        """The share of the chapter that is used, including a closing record of that length. At 1, the chapter must
        turn.
        """
        ...

    def append(self, meta: bytes, buffers: Sequence[Buffer], length: int) -> Position:
        """Queue one record with `length` bytes of data, and return where they start. The buffers must not change.
        It is durable when `durable` has reached the `end` that this call leaves.
        """
        ...

    def turn(self, index: bytes, snapshot: bytes, *, room: int, draining: bool) -> None:
        """Close the chapter with its index, and start the next with the snapshot and room for `room` bytes more,
        records and their part of the index.
        Raises DiskFull, with nothing changed, when there is no space for it.
        """
        ...

    def read(self, chapter: Position, position: Position, length: int) -> bytes:
        """Exactly these bytes of a chapter, from any thread. LookupError when the chapter has been dropped."""
        ...

    def read_index(self, chapter: Position) -> bytes:
        """A closed chapter's index. Raises Damaged."""
        ...

    def is_here(self, chapter: Position, position: Position, length: int) -> bool:
        """Whether these bytes of a chapter can be read without waiting for a network."""
        ...

    def mend(self, chapter: Position) -> bool:
        """What was read from the chapter fails its checksum. Returns whether it is worth reading again, because there
        is another copy of it.
        """
        ...

    def scan(self, chapter: Position) -> Iterator[Found]:
        """A chapter's records, read from its beginning."""
        ...

    def drop(self, chapter: Position) -> None:
        """Forget a closed chapter. Its file is left to `remove_dropped`."""
        ...

    @property
    def has_dropped(self) -> bool:
        """Whether `remove_dropped` has something to do."""
        ...

    def remove_dropped(self) -> None:
        """Free the space of dropped chapters. This may take a second on a busy disk; any thread may call it."""
        ...

    def chapter_bytes(self, chapter: Position) -> int: ...

    def wait(self, position: Position, timeout_seconds: float | None = None) -> None:
        """Return when everything before `position` is durable. Raises StoreFailed, or TimeoutError."""
        ...

    def on_change(self, listener: Callable[[], None]) -> None:
        """Register a function that the journal's thread calls whenever `durable` has grown or the journal
        has failed.
        """
        ...

    def locate(self, chapter: Position, position: Position) -> str:
        """File and offset, for people."""
        ...

    def local_file(self, chapter: Position) -> LocalFile | None:
        """The file that has the chapter, if other processes of this machine can find it."""
        ...

    def remote_file(self, chapter: Position) -> RemoteFile | None:
        """The object that has the chapter, if it is closed and other machines can find it."""
        ...

    def local_offset(self, chapter: Position, position: Position) -> int:
        """Where the position is in that file, and in that object."""
        ...

    @property
    def oldest_unsynced_seconds(self) -> float:
        """How long the oldest record that is not yet durable has waited; 0 if all are durable."""
        ...

    @property
    def failed(self) -> bool:
        """A write or an fsync has failed: nothing more can become durable."""
        ...

    def check(self) -> None:
        """Raise StoreFailed if the journal has failed."""
        ...

    def close(self) -> None: ...


# Runs what must wait until the journal is durable up to a position, in the event loop, in order.

# Actions to run before yielding to the loop: this many take about a millisecond.
_ACTIONS_PER_TURN = 500

log = logging.getLogger(__name__)


class Durability:
    """`after(position, action)` runs the action once everything before the position is durable: at once if it is, also
    while other actions wait for later positions. Actions of one position run in their order.
    """

    def __init__(self, journal: Journal, loop: asyncio.AbstractEventLoop, on_failure: Callable[[], None]) -> None:
        self._journal = journal
        self._loop = loop
        self._on_failure = on_failure
        self._waiting: deque[tuple[Position, Callable[[], None]]] = deque()
        self._afterwards: list[Callable[[], None]] = []
        self._called = False
        journal.on_change(self._wake)

    def after(self, position: Position, action: Callable[[], None]) -> None:
        if position <= self._journal.durable and (not self._waiting or position < self._waiting[0][0]):
            action()
        else:
            self._waiting.append((position, action))

    async def caught_up(self) -> None:
        """Return when everything that is queued now is durable and the actions up to there have run; at once if the
        journal has failed.
        """
        if not self._journal.failed:
            done = asyncio.Event()
            self.after(self._journal.end, done.set)
            await done.wait()

    def after_each_group(self, action: Callable[[], None]) -> None:
        """Run it once after each group of actions."""
        self._afterwards.append(action)

    def _wake(self) -> None:
        """Runs in the journal's thread. One call into the loop serves many groups."""
        if not self._called:
            self._called = True
            self._loop.call_soon_threadsafe(self._advance)

    def _advance(self) -> None:
        self._called = False
        durable = self._journal.durable
        for _ in range(_ACTIONS_PER_TURN):
            if not self._waiting or self._waiting[0][0] > durable:
                break
            self._run(self._waiting.popleft()[1])
        else:
            self._wake()
        for action in self._afterwards:
            self._run(action)
        if self._journal.failed:
            self._on_failure()

    def _run(self, action: Callable[[], None]) -> None:
        """An action that fails must not prevent the acknowledgement of others."""
        try:
            action()
        except Exception:
            log.exception("an action that waited for the disk has failed")
