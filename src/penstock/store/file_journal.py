"""The journal on a local disk: records queued by the store's thread, written and synced in groups by `commit`."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Condition, Lock
from typing import NamedTuple

from penstock.core.errors import DiskFull, PenstockError, StoreFailed
from penstock.core.sizes import show_size
from penstock.core.types import Buffer, Position
from penstock.store.chapters import ChapterReads, OpenChapters, chapter_name, file_offset
from penstock.store.files import File, Files
from penstock.store.journal import Recovered
from penstock.store.operations import Index, Snapshot, pack
from penstock.store.record import (
    CHAPTER_HEADER_BYTES,
    RECORD_HEADER_BYTES,
    TRAILER_BYTES,
    chapter_header,
    checksum,
    record_head,
    trailer,
)
from penstock.store.recovery import Opened, recover
from penstock.store.settings import StoreSettings
from penstock.store.spares import OUT_OF_SPACE, Spare, Spares

# The journal's steps on its files: write a group of records, or turn to the next chapter.


@dataclass(slots=True)
class WriteStep:
    """A group of records for one chapter: one write, one fsync. It grows until it is committed."""

    file: File
    offset: int
    buffers: list[Buffer]
    end: Position
    queued_at: float = field(default_factory=time.monotonic)
    """When its first record was queued."""

    def perform(self, _files: Files) -> bool:
        """False when there is no room: perform it again later. Raises OSError when the file can no longer
        be trusted.
        """
        if not _write(self.file, self.offset, self.buffers):
            return False
        self.file.sync()
        return True


class TurnStep(NamedTuple):
    """The end of one chapter and the beginning of the next."""

    old: File
    old_name: str
    old_size: int
    index_position: Position
    spare: Spare
    base: Position
    first: list[Buffer]
    end: Position
    queued_at: float

    def perform(self, files: Files) -> bool:
        """Like a WriteStep. The old chapter is complete and durable before the new one gets its name."""
        if not _write(self.old, self.old_size, [trailer(self.index_position)]):
            return False
        if not _write(self.spare.file, 0, self.first):
            return False
        self.old.truncate(self.old_size + TRAILER_BYTES)
        self.old.sync()
        self.spare.file.sync()
        files.rename(self.spare.name, chapter_name(self.base))
        files.settle(self.old_name)
        files.sync()
        return True


def _write(file: File, offset: int, buffers: list[Buffer]) -> bool:
    try:
        file.write(offset, buffers)
    except OSError as error:
        if error.errno not in OUT_OF_SPACE:
            raise
        return False
    return True


log = logging.getLogger(__name__)

# Room that a chapter needs beyond its records and index: the heads of the last records, the trailer, and the empty
# records that may be added before the store checks for room again (one when the journal becomes idle, one when it is
# opened).
_SLACK_BYTES = 1024
# A chapter is at least this many times as large as its snapshot, so that most of it is records.
_SNAPSHOT_SHARE = 4
_EMPTY = pack([])
_UNNAMED = "first-chapter"


class FileJournal(ChapterReads):
    """Implements `Journal`. `append` and `turn` queue steps, which `commit` performs in one thread."""

    def __init__(self, files: Files, settings: StoreSettings) -> None:
        self._files = files
        self._settings = settings
        self._changed = Condition()
        self._listeners: list[Callable[[], None]] = []
        self._steps: list[WriteStep | TurnStep] = []
        self._performing: WriteStep | TurnStep | None = None
        self._woken = False
        self._failure: StoreFailed | None = None
        self._is_full = False
        self._dropped: deque[Position] = deque()
        self._removing = Lock()
        self._is_closing = False
        self.observe_write: Callable[[float], None] = lambda _: None
        """Called with the seconds that each group of records took to write and to sync."""
        files.lock()
        try:
            self._take_over(recover(files, settings.chapter_bytes) or self._begin())
        except OSError as error:
            files.close()
            raise StoreFailed(f"the journal cannot be opened: {error}") from error
        except PenstockError:
            files.close()
            raise

    def _take_over(self, opened: Opened) -> None:
        self._recovered = opened.recovered
        self.chapters = opened.bases
        self._file, self._capacity = opened.file, opened.capacity
        self._chain, self._term = opened.chain, opened.term + 1
        self.end = self.durable = opened.end
        self._records = len(opened.recovered.entries)
        self.proved = opened.proved
        self._open = OpenChapters(self._files, self._settings.open_files_max, lambda base: base in self.chapters)
        self._open.put(self.chapter, self._file)
        for chapter in self.chapters[:-1]:  # a crash may have prevented it
            self._files.settle(chapter_name(chapter))
        self._spares = Spares(self._files, self._settings.chapter_bytes, self._settings.reserve_chapters)
        self._spares.fill()
        # The rest of the last chapter does not count as room: otherwise a restart on a full disk would admit sources,
        # only to close them at their first large append.
        self._is_full = not self._spares.has_one_for_ingest
        self.prove()

    def _begin(self) -> Opened:
        """The first chapter of a new journal, with an empty snapshot."""
        if _UNNAMED in self._files.list():
            self._files.remove(_UNNAMED)
        file = self._files.create(_UNNAMED)
        try:
            file.allocate(self._settings.chapter_bytes)
        except OSError as error:
            self._files.remove(_UNNAMED)
            if error.errno not in OUT_OF_SPACE:
                raise
            needed, free = self._settings.chapter_bytes, self._files.free_bytes()
            raise DiskFull(
                f"the disk has no room for a new journal: its first file needs {show_size(needed)}, and "
                f"{show_size(free)} is free",
                "Free space on the disk, and start the worker again.",
            ) from None
        head, _ = _snapshot_head(b"", chain=0, term=0, position=Position(0), durable=Position(0))
        file.write(0, [chapter_header(Position(0), 0), head])
        file.sync()
        self._files.rename(_UNNAMED, chapter_name(Position(0)))
        self._files.sync()
        opened = recover(self._files, self._settings.chapter_bytes)
        assert opened is not None
        return opened

    @property
    def chapter(self) -> Position:
        return self.chapters[-1]

    def take_recovered(self) -> Recovered:
        recovered, self._recovered = self._recovered, Recovered([], [])
        return recovered

    # Queueing: the store's thread.

    def check_room(self, *, draining: bool) -> None:
        self.check()
        if draining or (self._spares.reserve_is_whole and not self._is_full):
            return
        self._spares.fill()
        self._is_full = self._is_full and not self._spares.has_one_for_ingest
        if self._is_full or not self._spares.reserve_is_whole:
            raise self._disk_full()

    def _disk_full(self, chapter: int = 0) -> DiskFull:
        """`chapter`: the size that the next chapter must have, if a record is too large for an ordinary one."""
        needed = self._spares.missing_bytes + max(0, chapter - self._settings.chapter_bytes)
        free = self._files.free_bytes()
        reserve = show_size(self._settings.reserve_bytes)
        todo = f", so free at least {show_size(needed - free)}" if needed > free else ""
        return DiskFull(
            f"the disk has no room: the journal needs {show_size(needed)}, and {show_size(free)} is free{todo} "
            f"(the reserve of {reserve} is for draining alone)"
        )

    def fits(self, length: int, closing: int) -> bool:
        needed = length + closing + 2 * RECORD_HEADER_BYTES + _SLACK_BYTES
        used = file_offset(self.chapter, self.end)
        return used + needed <= self._capacity and self._records < self._settings.chapter_records_max

    def filled(self, closing: int) -> float:
        used = file_offset(self.chapter, self.end) + closing
        return max(used / self._capacity, self._records / self._settings.chapter_records_max)

    def append(self, meta: bytes, buffers: Sequence[Buffer], length: int) -> Position:
        with self._changed:
            self.check()
            head, self._chain = record_head(
                meta,
                chain=self._chain,
                term=self._term,
                position=self.end,
                durable=self.durable,
                data_length=length,
            )
            data = Position(self.end + len(head))
            self._queue([head, *buffers], Position(data + length))
            self.proved = False
            return data

    def _queue(self, buffers: list[Buffer], end: Position) -> None:
        last = self._steps[-1] if self._steps else None
        if isinstance(last, WriteStep):
            last.buffers.extend(buffers)
            last.end = end
        else:
            offset = file_offset(self.chapter, self.end)
            self._steps.append(WriteStep(self._file, offset, buffers, end))
            self._changed.notify_all()
        self._records += 1
        self.end = end

    def turn(self, index: bytes, snapshot: bytes, *, room: int, draining: bool) -> None:
        self.check()
        spare = self._take_spare(len(snapshot), room, draining=draining)
        with self._changed:
            index_position = self.end
            self.append(pack([Index(len(index), checksum([index]))]), [index], len(index))
            self._begin_chapter(spare, index_position, snapshot)

    def _take_spare(self, snapshot: int, room: int, *, draining: bool) -> Spare:
        least = CHAPTER_HEADER_BYTES + snapshot + 3 * _SLACK_BYTES + room
        wanted = least + (_SNAPSHOT_SHARE - 1) * snapshot
        spare = self._spares.take(wanted, least, draining=draining)
        if spare is None:
            self._spares.fill()
            spare = self._spares.take(wanted, least, draining=draining)
        if spare is None:
            self._is_full = not draining
            raise self._disk_full(least)
        return spare

    def _begin_chapter(self, spare: Spare, index_position: Position, snapshot: bytes) -> None:
        base, old, name = self.end, self._file, chapter_name(self.chapter)
        old_size = file_offset(self.chapter, self.end)
        header = chapter_header(base, self._chain)
        head, self._chain = _snapshot_head(
            snapshot, chain=self._chain, term=self._term, position=base, durable=self.durable
        )
        self.end = Position(base + len(head) + len(snapshot))
        first: list[Buffer] = [header, head, snapshot]
        step = TurnStep(old, name, old_size, index_position, spare, base, first, self.end, time.monotonic())
        self._steps.append(step)
        self.chapters = (*self.chapters, base)
        self._file, self._capacity, self._records = spare.file, spare.file.size(), 1
        self._open.put(base, spare.file)

    def prove(self) -> None:
        """Queue an empty record, unless something is queued already: on disk, it proves that everything before it is
        durable.
        """
        with self._changed:
            if self._steps or self.proved:
                return
            if self.fits(len(_EMPTY), 0):
                self.append(_EMPTY, [], 0)
            self.proved = True

    # Writing: one thread.

    def commit(self) -> bool:
        """Write and sync what is queued. False when the disk is full: nothing is lost, call again later. Raises
        StoreFailed when a write or an fsync fails; from then on all calls do.
        """
        self.check()
        with self._changed:
            steps, self._steps = self._steps, []
        for number, step in enumerate(steps):
            self._performing, began = step, time.monotonic()
            try:
                done = step.perform(self._files)
            except (OSError, StoreFailed) as error:
                raise self.fail(error) from error
            if not done:
                self._put_back(steps[number:])
                return False
            self.observe_write(time.monotonic() - began)
            self._publish(step.end)
        self._spares.fill()
        return True

    def _put_back(self, steps: list[WriteStep | TurnStep]) -> None:
        with self._changed:
            self._steps[:0] = steps
            self._performing = None

    def _publish(self, end: Position) -> None:
        with self._changed:
            self.durable = end
            self._performing = None
            self._changed.notify_all()
        self._notify()

    def fail(self, error: Exception) -> StoreFailed:
        """From now on nothing is accepted, and all waiting calls raise this error, which is returned."""
        if not isinstance(error, StoreFailed):
            error = StoreFailed(f"the disk refused a write or an fsync: {error}")
        with self._changed:
            self._failure = error
            self._changed.notify_all()
        self._notify()
        return error

    def _notify(self) -> None:
        for listener in self._listeners:
            try:
                listener()
            except Exception:
                # The listener's bug: it must not affect durability.
                log.exception("a listener to the journal failed")

    def wait_for_work(self, timeout_seconds: float | None) -> bool:
        """Wait until something is queued, the time is up, or `wake` is called. Returns whether something is queued."""
        with self._changed:
            self._changed.wait_for(lambda: self._steps or self._woken, timeout_seconds)
            self._woken = False
            return bool(self._steps)

    def wake(self) -> None:
        """Make `wait_for_work` return, now or at its next call."""
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    # Waiting and reading: any thread.

    def free_bytes(self) -> int:
        """Free bytes on the disk, which others may use too."""
        return self._files.free_bytes()

    @property
    def oldest_unsynced_seconds(self) -> float:
        with self._changed:
            oldest = self._performing or (self._steps[0] if self._steps else None)
        return 0.0 if oldest is None else time.monotonic() - oldest.queued_at

    @property
    def failed(self) -> bool:
        return self._failure is not None

    def check(self) -> None:
        if self._failure is not None:
            raise type(self._failure)(str(self._failure), self._failure.hint)

    def wait(self, position: Position, timeout_seconds: float | None = None) -> None:
        def settled() -> bool:
            return self.durable >= position or self.failed

        with self._changed:
            if not self._changed.wait_for(settled, timeout_seconds):
                raise TimeoutError(f"position {position} is not durable after {timeout_seconds} s")
        if self.durable < position:
            self.check()

    def on_change(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)

    def drop(self, chapter: Position) -> None:
        self.chapters = tuple(base for base in self.chapters if base != chapter)
        self._dropped.append(chapter)

    @property
    def has_dropped(self) -> bool:
        return bool(self._dropped)

    def remove_dropped(self) -> None:
        with self._removing:
            while self._dropped and not self._is_closing:  # the rest is found dead again at the next start
                with suppress(FileNotFoundError):
                    self._open.remove(self._dropped.popleft())
            if not self._is_closing:
                self._spares.fill()

    def close(self) -> None:
        """Close the files, without writing steps that are not committed. Waits for a file that another thread is
        removing, before it unlocks the directory: the next process must not find it.
        """
        self._is_closing = True
        with self._removing:
            self._open.clear()
            self._spares.close()
            self._file.close()
            self._files.close()


def _snapshot_head(
    snapshot: bytes, *, chain: int, term: int, position: Position, durable: Position
) -> tuple[bytes, int]:
    """The head of the record that contains the snapshot as its data, and the record's checksum."""
    meta = pack([Snapshot(len(snapshot), checksum([snapshot]))])
    return record_head(meta, chain=chain, term=term, position=position, durable=durable, data_length=len(snapshot))


# The thread that writes and syncs what the store has queued: many appends, one fsync.

# How long to wait before retrying a group that did not fit on the disk.
_RETRY_SECONDS = 0.2


class Committer:
    """Runs `journal.commit` until it is stopped or the journal fails. When the journal is idle, it proves the last
    records durable.
    """

    def __init__(self, journal: FileJournal, idle_proof_seconds: float | None) -> None:
        """`idle_proof_seconds`: None where no record can be torn, so that nothing has to be proved while it runs."""
        self._journal = journal
        self._idle_proof_seconds = idle_proof_seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-journal", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Write what is queued, prove it, and end."""
        self._stop.set()
        self._journal.wake()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._once()
            if self._journal.commit():
                self._journal.prove()
                self._journal.commit()
        except Exception as error:
            # Without this thread nothing becomes durable, so if it ends, all waiting calls must end too.
            if not self._journal.failed:
                self._journal.fail(error)
            log.critical("%s", error)

    def _once(self) -> None:
        journal = self._journal
        if journal.wait_for_work(None if journal.proved else self._idle_proof_seconds):
            if not journal.commit():
                self._stop.wait(_RETRY_SECONDS)
        else:
            journal.prove()
