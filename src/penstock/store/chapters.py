"""The chapters of a journal as files: their names, a bounded number of them open, and reading from them."""

import errno
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator
from threading import Lock

from penstock.core.errors import Damaged, IncompleteCopy, Unavailable, UnreadableFormat
from penstock.core.types import Position
from penstock.store.files import File, Files, LocalFile, RemoteFile
from penstock.store.operations import Index, unpack
from penstock.store.record import (
    CHAPTER_HEADER_BYTES,
    FORMAT,
    RECORD_HEADER_BYTES,
    TRAILER_BYTES,
    Found,
    NotAChapter,
    OtherFormat,
    Readable,
    checksum,
    head_is_sound,
    parse_chapter_header,
    parse_record_header,
    parse_trailer,
    scan,
)

_OUT_OF_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Errors that are not the disk's fault, and usually pass soon."""
_RETRY = "Try again; if it lasts, allow the worker more open files (ulimit -n)."

_NAME = re.compile(r"(\d{20})\.journal")

INCOMPLETE = "incomplete-copy"
"""A file that is there while chapters are copied to the directory. No journal with it is read."""


def chapter_name(base: Position) -> str:
    return f"{base:020d}.journal"


def chapter_bases(files: Files) -> list[Position]:
    """Raises IncompleteCopy."""
    names = files.list()
    if INCOMPLETE in names:
        raise IncompleteCopy("the journal is an incomplete copy: penstock store copy was interrupted")
    return [Position(int(match[1])) for name in names if (match := _NAME.fullmatch(name))]


def file_offset(base: Position, position: int) -> int:
    return CHAPTER_HEADER_BYTES + position - base


def locate(base: Position, position: int) -> str:
    """File and offset, for people."""
    return f"{chapter_name(base)} at offset {file_offset(base, position)}"


class OpenChapters:
    """Chapters by base, opened on first read. Beyond the limit, the least recently used one is closed.

    A file is closed when its last user releases it, so that a reader in another thread is never interrupted. All
    methods raise LookupError for a chapter that was dropped, and Damaged for one that the disk cannot read or has lost.
    """

    def __init__(self, files: Files, open_max: int, is_needed: Callable[[Position], bool]) -> None:
        """`is_needed`: False for a chapter that was dropped, from before its file is removed."""
        self._files = files
        self._open_max = open_max
        self._is_needed = is_needed
        self._open: OrderedDict[Position, File] = OrderedDict()
        self._lock = Lock()

    def get(self, base: Position) -> File:
        with self._lock:
            file = self._open.get(base)
            if file is None:
                try:
                    file = self._files.open(chapter_name(base))
                except FileNotFoundError:
                    if self._is_needed(base):
                        raise Damaged(f"{chapter_name(base)} is missing") from None
                    raise LookupError(f"{chapter_name(base)} was dropped") from None
                except OSError as error:
                    if error.errno in _OUT_OF_FILES:
                        raise Unavailable(f"{chapter_name(base)} cannot be opened: {error.strerror}", _RETRY) from error
                    raise _unreadable(chapter_name(base), error) from error
                self._open[base] = file
                if len(self._open) > self._open_max:
                    self._open.popitem(last=False)
            self._open.move_to_end(base)
            return file

    def put(self, base: Position, file: File) -> None:
        with self._lock:
            self._open[base] = file

    def remove(self, base: Position) -> None:
        with self._lock:
            self._open.pop(base, None)
        self._files.remove(chapter_name(base))  # without the lock: readers of other chapters do not wait for the disk

    def clear(self) -> None:
        with self._lock:
            self._open.clear()

    def read(self, base: Position, position: Position, length: int) -> bytes:
        """Exactly these bytes."""
        data = self._readable(base).read(file_offset(base, position), length)
        if len(data) != length:
            raise Damaged(f"{locate(base, position)}: {length} bytes expected, {len(data)} found")
        return data

    def read_index(self, base: Position) -> bytes:
        """A closed chapter's index."""
        return read_index(self._readable(base), base)

    def scan(self, base: Position) -> Iterator[Found]:
        """A chapter's records; they can be read even if its header is damaged."""
        file = self._readable(base)
        return scan(file, base, read_chain(file, base), chapter_name(base))

    def size(self, base: Position) -> int:
        return self._readable(base).size()

    def local(self, base: Position) -> LocalFile | None:
        return self._files.local(chapter_name(base))

    def remote(self, base: Position) -> RemoteFile | None:
        return self._files.remote(chapter_name(base))

    def is_here(self, base: Position, position: Position, length: int) -> bool:
        """Whether these bytes can be read without waiting for a network."""
        return self._files.is_here(chapter_name(base), file_offset(base, position), length)

    def mend(self, base: Position) -> bool:
        """What was read from it fails its checksum. Returns whether it is worth reading again."""
        return self._files.mend(chapter_name(base))

    def _readable(self, base: Position) -> "_Readable":
        return _Readable(self.get(base), chapter_name(base))


class _Readable:
    """A chapter's file for readers: a read error of the disk counts as damage of those bytes only."""

    def __init__(self, file: File, name: str) -> None:
        self._file = file
        self._name = name

    def read(self, offset: int, length: int) -> bytes:
        try:
            return self._file.read(offset, length)
        except OSError as error:
            raise _unreadable(f"{self._name} at offset {offset}", error) from error

    def size(self) -> int:
        try:
            return self._file.size()
        except OSError as error:
            raise _unreadable(self._name, error) from error


def _unreadable(where: str, error: OSError) -> Damaged:
    return Damaged(f"{where} cannot be read: {error.strerror or error}")


_START_OVER = "Start with a new data directory; checkpoints and sinks of the old one start over with it."


def read_header(file: Readable, base: Position) -> int:
    """The chain value with which the chapter starts. Raises Damaged; UnreadableFormat if another version wrote it."""
    name = chapter_name(base)
    try:
        header = parse_chapter_header(file.read(0, CHAPTER_HEADER_BYTES))
    except NotAChapter as error:
        raise Damaged(f"{name} is damaged at offset 0: {error}") from None
    except OtherFormat as error:
        raise UnreadableFormat(f"the journal ({name})", error.found, FORMAT, _START_OVER) from None
    if header.base != base:
        raise Damaged(f"{name} is damaged at offset 0: it claims to start at {header.base}")
    return header.chain


def read_chain(file: Readable, base: Position) -> int | None:
    """Like `read_header`, but None for a damaged header: the records after it can still be read."""
    try:
        return read_header(file, base)
    except UnreadableFormat:
        raise
    except Damaged:
        return None


def read_index(file: Readable, base: Position) -> bytes:
    """The index of the closed chapter in this file. Raises Damaged."""
    end = file.size() - TRAILER_BYTES
    position = parse_trailer(file.read(end, TRAILER_BYTES)) if end > CHAPTER_HEADER_BYTES else None
    if position is None or not base <= position < base + end:
        raise Damaged(f"{chapter_name(base)} is damaged at offset {max(end, 0)}: its trailer cannot be read")
    data = file.read(file_offset(base, position), end - file_offset(base, position))
    header = parse_record_header(data)
    if header is None or header.end != position + len(data) or not head_is_sound(header, data):
        raise Damaged(f"{locate(base, position)}: the index record is damaged")
    start = header.data_position - position
    operations = unpack(data[RECORD_HEADER_BYTES:start])
    index = data[start:]
    if operations != [Index(len(index), checksum([index]))]:
        raise Damaged(f"{locate(base, position)}: the index fails its checksum")
    return index


class ChapterReads:
    """The reading half of `Journal`, for a journal whose chapters are files."""

    _open: OpenChapters

    def read(self, chapter: Position, position: Position, length: int) -> bytes:
        return self._open.read(chapter, position, length)

    def read_index(self, chapter: Position) -> bytes:
        return self._open.read_index(chapter)

    def is_here(self, chapter: Position, position: Position, length: int) -> bool:
        return self._open.is_here(chapter, position, length)

    def mend(self, chapter: Position) -> bool:
        return self._open.mend(chapter)

    def scan(self, chapter: Position) -> Iterator[Found]:
        return self._open.scan(chapter)

    def chapter_bytes(self, chapter: Position) -> int:
        return self._open.size(chapter)

    def locate(self, chapter: Position, position: Position) -> str:
        return locate(chapter, position)

    def local_file(self, chapter: Position) -> LocalFile | None:
        return self._open.local(chapter)

    def remote_file(self, chapter: Position) -> RemoteFile | None:
        return self._open.remote(chapter)

    def local_offset(self, chapter: Position, position: Position) -> int:
        return file_offset(chapter, position)
