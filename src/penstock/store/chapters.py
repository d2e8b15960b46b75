"""The files of a journal: which chapters there are, a bounded number of them open, and the spares."""

import errno
from collections import OrderedDict, deque
from threading import Lock
from typing import NamedTuple

from penstock.core.errors import Damaged
from penstock.core.types import Position
from penstock.store.files import File, Files
from penstock.store.record import CHAPTER_HEADER_BYTES, NotAChapter, parse_chapter_header

_SUFFIX = ".journal"
_SPARE = "spare-"
OUT_OF_SPACE = (errno.ENOSPC, errno.EDQUOT)


def chapter_name(base: Position) -> str:
    return f"{base:020d}{_SUFFIX}"


def chapter_bases(files: Files) -> list[Position]:
    return [Position(int(name.removesuffix(_SUFFIX))) for name in files.list() if name.endswith(_SUFFIX)]


def file_offset(base: Position, position: int) -> int:
    return CHAPTER_HEADER_BYTES + position - base


class OpenChapters:
    """Chapters by base, opened when first read; the one not used for longest is closed when there are too many.

    A file is closed when its last user lets go of it, so that a reader in another thread is never cut off.
    """

    def __init__(self, files: Files, open_max: int) -> None:
        self._files = files
        self._open_max = open_max
        self._open: OrderedDict[Position, File] = OrderedDict()
        self._lock = Lock()

    def get(self, base: Position) -> File:
        """Raises LookupError when there is no such chapter any more."""
        with self._lock:
            file = self._open.get(base)
            if file is None:
                try:
                    file = self._files.open(chapter_name(base))
                except FileNotFoundError:
                    raise LookupError(f"chapter {base} has been dropped") from None
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
            self._files.remove(chapter_name(base))

    def clear(self) -> None:
        with self._lock:
            self._open.clear()


class Spare(NamedTuple):
    name: str
    file: File


class Spares:
    """Preallocated files that will be chapters. `reserved` of them are for draining alone."""

    def __init__(self, files: Files, size: int, reserved: int) -> None:
        self._files = files
        self._size = size
        self._reserved = reserved
        self._spares: deque[Spare] = deque()
        self._next = 0
        self._lock = Lock()
        self._adopt()

    def _adopt(self) -> None:
        """Take over the spares of an earlier process, emptied where a chapter had been begun in them."""
        for name in self._files.list():
            if not name.startswith(_SPARE):
                continue
            file = self._files.open(name)
            if file.size() != self._size or file.read(0, CHAPTER_HEADER_BYTES).strip(b"\0"):
                file.close()
                self._files.remove(name)
                continue
            self._next = max(self._next, int(name.removeprefix(_SPARE)) + 1)
            self._spares.append(Spare(name, file))

    @property
    def reserve_is_whole(self) -> bool:
        return len(self._spares) >= self._reserved

    def fill(self) -> None:
        """Make what is missing, as far as the disk has room."""
        with self._lock:
            while len(self._spares) <= self._reserved and self._make():
                pass

    def _make(self) -> bool:
        if self._files.free_bytes() < self._size:
            return False
        name = f"{_SPARE}{self._next}"
        file = self._files.create(name)
        try:
            file.allocate(self._size)
        except OSError as error:
            file.close()
            self._files.remove(name)
            if error.errno not in OUT_OF_SPACE:
                raise
            return False
        self._next += 1
        self._spares.append(Spare(name, file))
        return True

    def take(self, size: int, *, draining: bool) -> Spare | None:
        """One spare of at least this size; None when there is none for this purpose."""
        with self._lock:
            if len(self._spares) < (1 if draining else self._reserved + 1):
                return None
            spare = self._spares[0]
            if size > self._size:
                try:
                    spare.file.allocate(size)
                except OSError as error:
                    if error.errno not in OUT_OF_SPACE:
                        raise
                    return None
            return self._spares.popleft()


def read_header(file: File, name: str, base: Position) -> int:
    """The chain that the chapter begins with. Raises Damaged if the file is not that chapter."""
    try:
        header = parse_chapter_header(file.read(0, CHAPTER_HEADER_BYTES))
    except NotAChapter as error:
        raise Damaged(f"{name} is damaged at offset 0: {error}") from None
    if header.base != base:
        raise Damaged(f"{name} is damaged at offset 0: it claims to begin at {header.base}")
    return header.chain
