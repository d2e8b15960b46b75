"""The journal on a local disk: records queued by the store's thread, written and synced in groups by `commit`."""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from threading import Condition
from typing import NamedTuple

from penstock.core.errors import Damaged, DiskFull, StoreFailed
from penstock.core.types import Buffer, Position
from penstock.store.chapters import (
    OUT_OF_SPACE,
    OpenChapters,
    Spare,
    Spares,
    chapter_name,
    file_offset,
    read_header,
)
from penstock.store.files import File, Files
from penstock.store.journal import Recovered
from penstock.store.operations import Index, Snapshot, pack, unpack
from penstock.store.record import (
    CHAPTER_HEADER_BYTES,
    RECORD_HEADER_BYTES,
    TRAILER_BYTES,
    ChapterHeader,
    chapter_header,
    checksum,
    head_is_sound,
    parse_record_header,
    parse_trailer,
    record_head,
    trailer,
)
from penstock.store.recovery import Opened, recover
from penstock.store.scan import Found, scan
from penstock.store.settings import StoreSettings

# Room beside a chapter's records: the heads of its last ones, an empty record, the trailer.
_SLACK_BYTES = 1024
_EMPTY = pack([])


class _Write(NamedTuple):
    """A group of records for one chapter: one write, one fsync."""

    file: File
    offset: int
    buffers: list[Buffer]
    end: Position


class _Turn(NamedTuple):
    """The end of one chapter and the beginning of the next."""

    old: File
    old_size: int
    index_position: Position
    spare: Spare
    base: Position
    first: bytes
    end: Position


class FileJournal:
    """Implements `Journal`. `append` and `turn` queue; `commit` does, in one thread, what was queued."""

    def __init__(self, files: Files, settings: StoreSettings) -> None:
        self._files = files
        self._settings = settings
        self._changed = Condition()
        self._listeners: list[Callable[[], None]] = []
        self._steps: list[_Write | _Turn] = []
        self._failure: StoreFailed | None = None
        files.lock()
        opened = recover(files, settings.chapter_bytes) or self._begin()
        self._recovered = opened.recovered
        self.chapters = opened.bases
        self._file, self._capacity = opened.file, opened.capacity
        self._chain, self._term = opened.chain, opened.term + 1
        self.end = self.durable = opened.end
        self._records = len(opened.recovered.entries)
        self.proved = False
        self._open = OpenChapters(files, settings.open_files_max)
        self._open.put(self.chapter, self._file)
        self._spares = Spares(files, settings.chapter_bytes, settings.reserve_chapters)
        self._spares.fill()
        self.prove()

    def _begin(self) -> Opened:
        """The first chapter of a new journal, with an empty snapshot."""
        name = chapter_name(Position(0))
        unnamed = "new" + name
        if unnamed in self._files.list():
            self._files.remove(unnamed)
        file = self._files.create(unnamed)
        try:
            file.allocate(self._settings.chapter_bytes)
        except OSError as error:
            if error.errno not in OUT_OF_SPACE:
                raise
            raise DiskFull("there is no room for a new journal's first file") from None
        head, _ = _snapshot_record(b"", chain=0, term=0, position=Position(0), durable=Position(0))
        file.write(0, [chapter_header(Position(0), 0), head])
        file.sync()
        self._files.rename(unnamed, name)
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

    def room_for(self, length: int, *, draining: bool) -> None:
        self.check()
        if draining or self._spares.reserve_is_whole:
            return
        self._spares.fill()
        if not self._spares.reserve_is_whole:
            raise DiskFull(
                f"the disk has no room: {length} bytes refused, to keep the reserve of "
                f"{self._settings.reserve_bytes} bytes for draining"
            )

    def fits(self, length: int, closing: int) -> bool:
        needed = length + closing + 2 * RECORD_HEADER_BYTES + _SLACK_BYTES
        used = file_offset(self.chapter, self.end)
        return used + needed <= self._capacity and self._records < self._settings.chapter_records_max

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
            self._changed.notify_all()
            return data

    def _queue(self, buffers: list[Buffer], end: Position) -> None:
        last = self._steps[-1] if self._steps else None
        if isinstance(last, _Write):
            last.buffers.extend(buffers)
            self._steps[-1] = last._replace(end=end)
        else:
            offset = file_offset(self.chapter, self.end)
            self._steps.append(_Write(self._file, offset, buffers, end))
        self._records += 1
        self.end = end

    def turn(self, index: bytes, snapshot: bytes, *, room: int, draining: bool) -> None:
        size = CHAPTER_HEADER_BYTES + len(snapshot) + 3 * _SLACK_BYTES + room
        spare = self._spares.take(size, draining=draining)
        if spare is None:
            self._spares.fill()
            spare = self._spares.take(size, draining=draining)
        if spare is None:
            raise DiskFull("the disk has no room for another journal file")
        with self._changed:
            index_position = self.end
            self.append(pack([Index(len(index), checksum([index]))]), [index], len(index))
            self._begin_chapter(spare, index_position, snapshot)

    def _begin_chapter(self, spare: Spare, index_position: Position, snapshot: bytes) -> None:
        base, old, old_size = self.end, self._file, file_offset(self.chapter, self.end)
        header = chapter_header(base, self._chain)
        record, self._chain = _snapshot_record(
            snapshot, chain=self._chain, term=self._term, position=base, durable=self.durable
        )
        self.end = Position(base + len(record))
        step = _Turn(old, old_size, index_position, spare, base, header + record, self.end)
        self._steps.append(step)
        self.chapters = (*self.chapters, base)
        self._file, self._capacity, self._records = spare.file, spare.file.size(), 1
        self._open.put(base, spare.file)

    def prove(self) -> None:
        """Queue an empty record: it says that everything before it is durable."""
        with self._changed:
            if self.fits(len(_EMPTY), 0):
                self.append(_EMPTY, [], 0)
            self.proved = True

    # Writing: one thread.

    def commit(self) -> bool:
        """Write and sync what is queued. False when the disk is full: nothing is lost, call again later.
        Raises StoreFailed, as everything does from then on, when a write or an fsync fails.
        """
        with self._changed:
            steps, self._steps = self._steps, []
        for number, step in enumerate(steps):
            try:
                done = self._do(step)
            except OSError as error:
                self._fail(error)
            if not done:
                with self._changed:
                    self._steps[:0] = steps[number:]
                return False
            self._publish(step.end)
        self._spares.fill()
        return True

    def _do(self, step: _Write | _Turn) -> bool:
        try:
            if isinstance(step, _Write):
                step.file.write(step.offset, step.buffers)
            else:
                step.old.write(step.old_size, [trailer(step.index_position)])
                step.spare.file.write(0, [step.first])
        except OSError as error:
            if error.errno in OUT_OF_SPACE:
                return False
            raise
        if isinstance(step, _Write):
            step.file.sync()
        else:
            self._name_chapter(step)
        return True

    def _name_chapter(self, turn: _Turn) -> None:
        """The old chapter is whole and durable before the new one has a name."""
        turn.old.truncate(turn.old_size + TRAILER_BYTES)
        turn.old.sync()
        turn.spare.file.sync()
        self._files.rename(turn.spare.name, chapter_name(turn.base))
        self._files.sync()

    def _publish(self, end: Position) -> None:
        with self._changed:
            self.durable = end
            self._changed.notify_all()
        for listener in self._listeners:
            listener()

    def _fail(self, error: OSError) -> None:
        with self._changed:
            self._failure = StoreFailed(f"the disk refused a write or an fsync: {error}")
            self._changed.notify_all()
        for listener in self._listeners:
            listener()
        raise self._failure from error

    def wait_for_work(self, timeout_seconds: float | None) -> bool:
        """Whether anything is queued; returns when something is, after this time, or after `wake`."""
        with self._changed:
            if not self._steps:
                self._changed.wait(timeout_seconds)
            return bool(self._steps)

    def wake(self) -> None:
        """Let `wait_for_work` return."""
        with self._changed:
            self._changed.notify_all()

    # Waiting and reading: any thread.

    @property
    def failed(self) -> bool:
        return self._failure is not None

    def check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def wait(self, position: Position, timeout_seconds: float | None = None) -> None:
        def settled() -> bool:
            return self.durable >= position or self._failure is not None

        with self._changed:
            if not self._changed.wait_for(settled, timeout_seconds):
                raise TimeoutError(f"position {position} is not durable after {timeout_seconds} s")
        if self.durable < position:
            self.check()

    def on_change(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)

    def read(self, chapter: Position, position: Position, length: int) -> bytes:
        data = self._open.get(chapter).read(file_offset(chapter, position), length)
        if len(data) != length:
            raise Damaged(f"{self.locate(position)}: {length} bytes expected, {len(data)} found")
        return data

    def read_index(self, chapter: Position) -> bytes:
        file = self._open.get(chapter)
        position = parse_trailer(file.read(file.size() - TRAILER_BYTES, TRAILER_BYTES))
        if position is None:
            raise Damaged(f"{chapter_name(chapter)} is damaged: it does not end as a closed one does")
        size = file.size() - TRAILER_BYTES - file_offset(chapter, position)
        data = self.read(chapter, position, size)
        header = parse_record_header(data)
        if header is None or header.end != position + size or not head_is_sound(header, data):
            raise Damaged(f"{self.locate(position)}: the index record is damaged")
        start = RECORD_HEADER_BYTES + header.meta_length
        (operation,) = unpack(data[RECORD_HEADER_BYTES:start])
        index = data[start:]
        if not isinstance(operation, Index) or checksum([index]) != operation.checksum:
            raise Damaged(f"{self.locate(position)}: the index fails its checksum")
        return index

    def scan(self, chapter: Position) -> Iterator[Found]:
        file = self._open.get(chapter)
        chain = read_header(file, chapter_name(chapter), chapter)
        return scan(file, ChapterHeader(chain, chapter))

    def chapter_bytes(self, chapter: Position) -> int:
        return self._open.get(chapter).size()

    def locate(self, position: Position) -> str:
        base = self._base_of(position)
        return f"{chapter_name(base)} at offset {file_offset(base, position)}"

    def _base_of(self, position: Position) -> Position:
        return self.chapters[bisect_right(self.chapters, position) - 1]

    def drop(self, chapter: Position) -> None:
        self.chapters = tuple(base for base in self.chapters if base != chapter)
        self._open.remove(chapter)
        self._spares.fill()

    def close(self) -> None:
        """Let go of the files. What is queued and not committed is not written."""
        self._open.clear()
        self._files.close()


def _snapshot_record(
    snapshot: bytes, *, chain: int, term: int, position: Position, durable: Position
) -> tuple[bytes, int]:
    meta = pack([Snapshot(len(snapshot), checksum([snapshot]))])
    head, value = record_head(
        meta, chain=chain, term=term, position=position, durable=durable, data_length=len(snapshot)
    )
    return head + snapshot, value
