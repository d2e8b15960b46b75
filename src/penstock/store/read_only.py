"""A journal that is only looked at: nothing is locked, repaired or written, also while a worker writes it."""

from collections.abc import Callable, Sequence
from typing import NoReturn

from penstock.core.errors import DiskFull, RequestError
from penstock.core.types import Buffer, Position
from penstock.store.chapters import ChapterReads, OpenChapters, chapter_bases
from penstock.store.files import Files
from penstock.store.journal import Recovered
from penstock.store.recovery import sound_records

_OPEN_FILES_MAX = 64


class ReadOnlyJournal(ChapterReads):
    """Implements `Journal`, as it was when this object was created. Raises RequestError for a directory without a
    journal, Damaged, UnreadableFormat.
    """

    proved = True
    failed = False
    has_dropped = False
    oldest_unsynced_seconds = 0.0

    def __init__(self, files: Files) -> None:
        bases = chapter_bases(files)
        if not bases:
            raise RequestError("the directory has no journal", "Name a worker's data directory: --data DIR")
        records = sound_records(files, bases)
        # A worker may drop any chapter meanwhile, except the last one.
        self._open = OpenChapters(files, _OPEN_FILES_MAX, lambda _: False)
        self._recovered = records.recovered
        self.chapters = tuple(bases)
        self.end = self.durable = records.entries[-1][1].end

    @property
    def chapter(self) -> Position:
        return self.chapters[-1]

    def take_recovered(self) -> Recovered:
        return self._recovered

    def wait(self, position: Position, timeout_seconds: float | None = None) -> None:
        pass

    def on_change(self, listener: Callable[[], None]) -> None:
        pass

    def check(self) -> None:
        pass

    def remove_dropped(self) -> None:
        pass

    def close(self) -> None:
        self._open.clear()

    # Nothing is written.

    def check_room(self, *, draining: bool) -> NoReturn:  # noqa: ARG002
        raise _refusal()

    def fits(self, length: int, closing: int) -> NoReturn:  # noqa: ARG002
        raise _refusal()

    def filled(self, closing: int) -> NoReturn:  # noqa: ARG002
        raise _refusal()

    def append(self, meta: bytes, buffers: Sequence[Buffer], length: int) -> NoReturn:  # noqa: ARG002
        raise _refusal()

    def turn(self, index: bytes, snapshot: bytes, *, room: int, draining: bool) -> NoReturn:  # noqa: ARG002
        raise _refusal()

    def drop(self, chapter: Position) -> NoReturn:  # noqa: ARG002
        raise _refusal()


def _refusal() -> DiskFull:
    """A store that cannot write continues with what it has read."""
    return DiskFull("the journal is only read", "Nothing is written.")
