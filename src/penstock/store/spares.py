"""Preallocated files that become chapters. They also form the disk reserve."""

import errno
import logging
import re
from collections import deque
from contextlib import suppress
from threading import Lock
from typing import NamedTuple

from penstock.store.files import File, Files

log = logging.getLogger(__name__)

_NAME = re.compile(r"spare-(\d+)")
OUT_OF_SPACE = (errno.ENOSPC, errno.EDQUOT)

_ZEROS = bytes(1 << 18)


class Spare(NamedTuple):
    name: str
    file: File


def spare_names(files: Files) -> list[str]:
    return [name for name in files.list() if _NAME.fullmatch(name)]


class Spares:
    """`reserved` spares are only for draining. One more is kept for the next chapter while there is room."""

    def __init__(self, files: Files, size: int, reserved: int) -> None:
        self._files = files
        self._size = size
        self._reserved = reserved
        self._spares: deque[Spare] = deque()
        self._next = 0
        self._lock = Lock()
        for name in spare_names(files):
            self._adopt(name)

    def _adopt(self, name: str) -> None:
        """Take over a spare of an earlier process; `recovery` has zeroed it. Its space is never freed: on a full disk,
        another program could take it.
        """
        self._next = max(self._next, int(name.removeprefix("spare-")) + 1)
        spare = Spare(name, self._files.open(name))
        spare.file.truncate(self._size)
        if len(self._spares) <= self._reserved and _allocate(spare.file, self._size):
            self._spares.append(spare)
        else:
            self._remove(spare)

    @property
    def reserve_is_whole(self) -> bool:
        return len(self._spares) >= self._reserved

    @property
    def has_one_for_ingest(self) -> bool:
        return len(self._spares) > self._reserved

    @property
    def missing_bytes(self) -> int:
        """Bytes that the disk must have free to complete the reserve and the spare for ingest."""
        return max(0, self._reserved + 1 - len(self._spares)) * self._size

    def fill(self) -> None:
        """Allocate what is missing, as far as the disk has room. Never raises: see `reserve_is_whole`."""
        if len(self._spares) > self._reserved:
            return
        with self._lock:
            try:
                while len(self._spares) <= self._reserved and self._make():
                    pass
            except OSError as error:
                if error.errno not in OUT_OF_SPACE:
                    log.error("no spare journal file can be created: %s", error)

    def _make(self) -> bool:
        if self._files.free_bytes() < self._size:
            return False
        name = f"spare-{self._next}"
        spare = Spare(name, self._files.create(name))
        self._next += 1
        if not _allocate(spare.file, self._size):
            self._remove(spare)
            return False
        self._spares.append(spare)
        return True

    def take(self, wanted: int, least: int, *, draining: bool) -> Spare | None:
        """A spare of `wanted` bytes, or of at least `least`; None if there is none for this purpose. A chapter larger
        than a spare may use up several of the reserve, so that a full store can drain at any size.
        """
        with self._lock:
            if len(self._spares) < (1 if draining else self._reserved + 1):
                return None
            spare = self._spares.popleft()
            if _allocate(spare.file, wanted):
                return spare
            while not _allocate(spare.file, least):
                if not (draining and self._spares):
                    self._spares.appendleft(spare)
                    return None
                self._remove(self._spares.pop())
            return spare

    def close(self) -> None:
        """Close the files, which the next process takes over."""
        with self._lock:
            while self._spares:
                self._spares.pop().file.close()

    def _remove(self, spare: Spare) -> None:
        spare.file.close()
        with suppress(OSError):
            self._files.remove(spare.name)


def make_zeros(file: File, start: int) -> None:
    """Zero the file from `start` on. It keeps its size: on a full disk, freed space might be lost."""
    size = file.size()
    for offset in range(start, size, len(_ZEROS)):
        zeros = _ZEROS[: size - offset]
        if file.read(offset, len(zeros)) != zeros:
            file.write(offset, [zeros])


def _allocate(file: File, size: int) -> bool:
    try:
        file.allocate(size)
    except OSError as error:
        if error.errno not in OUT_OF_SPACE:
            raise
        return False
    return True
