"""A directory in memory: nothing is ever lost, and only lack of space makes it fail."""

import errno
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeAlias

from penstock.core.errors import StoreInUse
from penstock.core.types import Buffer


def os_error(code: int, name: str | None = None) -> OSError:
    """What the operating system would raise; OSError picks FileNotFoundError and the like."""
    return OSError(code, os.strerror(code), name)


def put(content: bytearray, offset: int, data: bytes) -> None:
    """Put `data` at `offset`, padded with zeros if the content is shorter."""
    if data:
        if offset > len(content):
            fit(content, offset)
        content[offset : offset + len(data)] = data


def fit(content: bytearray, size: int) -> None:
    """Truncate the content, or extend it with zeros."""
    if size < len(content):
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))


class MemoryFile:
    """One of the open files that share a content."""

    __slots__ = ("_free_bytes", "_open_content")

    def __init__(self, content: bytearray, free_bytes: Callable[[], int]) -> None:
        self._open_content: bytearray | None = content
        self._free_bytes = free_bytes

    @property
    def _content(self) -> bytearray:
        if self._open_content is None:
            raise os_error(errno.EBADF)
        return self._open_content

    def read(self, offset: int, length: int) -> bytes:
        # A slice, not a memoryview: a view would stop another thread from extending the file.
        return bytes(self._content[offset : offset + length])

    def write(self, offset: int, buffers: Sequence[Buffer]) -> None:
        data = b"".join(buffers)
        if data:
            self._need_room(offset + len(data))
        put(self._content, offset, data)

    def sync(self) -> None:
        _ = self._content  # the only possible mistake is that it is closed

    def allocate(self, size: int) -> None:
        self._need_room(size)
        fit(self._content, max(size, len(self._content)))

    def truncate(self, size: int) -> None:
        del self._content[size:]

    def size(self) -> int:
        return len(self._content)

    def close(self) -> None:
        self._open_content = None

    def _need_room(self, size: int) -> None:
        growth = size - len(self._content)
        if growth > 0 and growth > self._free_bytes():
            raise os_error(errno.ENOSPC)


class MemoryFiles:
    """A dict of contents. They survive `close`, for the next user that locks it. Threads may share it.

    `space` limits the sum of the sizes of all files that have a name.
    """

    def __init__(self, space: int | None = None) -> None:
        self._contents: dict[str, bytearray] = {}
        self._space = space
        self._locked = False

    def list(self) -> list[str]:
        return sorted(self._contents)

    def create(self, name: str) -> MemoryFile:
        if name in self._contents:
            raise os_error(errno.EEXIST, name)
        self._contents[name] = bytearray()
        return self.open(name)

    def open(self, name: str) -> MemoryFile:
        return MemoryFile(self._find(name), self.free_bytes)

    def rename(self, old: str, new: str) -> None:
        content = self._find(old)
        del self._contents[old]
        self._contents[new] = content

    def remove(self, name: str) -> None:
        self._find(name)
        del self._contents[name]

    def sync(self) -> None:
        """Does nothing: memory has no durable state."""

    def local(self, name: str) -> None:
        """No other process sees this memory."""

    def settle(self, name: str) -> None:
        self._find(name)

    def remote(self, name: str) -> None:
        """No other machine sees it."""

    def is_here(self, name: str, offset: int, length: int) -> bool:  # noqa: ARG002
        return True

    def mend(self, name: str) -> bool:  # noqa: ARG002
        """There is no other copy."""
        return False

    def is_intact(self, name: str, offset: int) -> bool:  # noqa: ARG002
        """Nothing is known beside the bytes themselves."""
        return True

    def free_bytes(self) -> int:
        if self._space is None:
            return sys.maxsize
        return max(0, self._space - sum(map(len, self._contents.values())))

    def lock(self) -> None:
        if self._locked:
            raise StoreInUse("these files in memory are in use by this process")
        self._locked = True

    def close(self) -> None:
        self._locked = False

    def _find(self, name: str) -> bytearray:
        try:
            return self._contents[name]
        except KeyError:
            raise os_error(errno.ENOENT, name) from None


# A disk with a page cache, and what a power cut leaves of it: the model used by `faulty_files.py`.
#
# Every operation changes the cache immediately and is recorded as unsynced. A sync applies what was recorded to the
# durable state. A power cut applies a part of it, drawn at random:
#
# - of the data, any of the sectors written, in any order of the writes;
# - of the sizes of a file, the first few changes;
# - of the names, any of the changes, each completely, and those that share a name in order. So a renamed file has its
#   old name or its new one, never both or neither.

SECTOR_BYTES = 512
"""The unit that a disk writes completely or not at all."""


@dataclass(frozen=True, slots=True)
class Change:
    """A write, or a change of the size. `data` has whole sectors as they were in the cache afterwards.

    So the last change of a sector contains all earlier ones, as in a real cache, and any subset of the changes, applied
    in order, is a state that the disk may be in.
    """

    size: int
    offset: int = 0
    data: bytes = b""

    def covers(self, offset: int) -> bool:
        return self.offset <= offset < self.offset + len(self.data)


class CachedFile:
    """One file: `content` is what reads see, `durable` what the disk has."""

    __slots__ = ("_unsynced", "content", "durable")

    def __init__(self, content: bytes | bytearray = b"") -> None:
        self.content = bytearray(content)
        self.durable = bytearray(content)
        self._unsynced: list[Change] = []

    def read(self, offset: int, length: int) -> bytes:
        return bytes(memoryview(self.content)[offset : offset + length])

    def write(self, offset: int, data: bytes) -> None:
        if not data:
            return
        put(self.content, offset, data)
        start = offset - offset % SECTOR_BYTES
        length = -(-(offset + len(data) - start) // SECTOR_BYTES) * SECTOR_BYTES
        sectors = self.read(start, length).ljust(length, b"\0")
        self._unsynced.append(Change(len(self.content), start, sectors))

    def resize(self, size: int) -> None:
        fit(self.content, size)
        self._unsynced.append(Change(size))

    def sync(self) -> None:
        for change in self._unsynced:
            del self.durable[change.size :]
            put(self.durable, change.offset, change.data)
        fit(self.durable, len(self.content))
        self._unsynced.clear()

    def fail_sync(self) -> None:
        """Forget that the pages are dirty, as Linux does. Sizes are not data, and stay unsynced."""
        self._unsynced = [Change(change.size) for change in self._unsynced]

    def damage(self, offset: int, count: int, random: Random) -> None:
        """Flip one bit in each durable byte; readers see it, unless the page is dirty."""
        for at in range(offset, min(offset + count, len(self.durable))):
            bit = 1 << random.randrange(8)
            self.durable[at] ^= bit
            clean = not any(change.covers(at) for change in self._unsynced)
            if clean and at < len(self.content):
                self.content[at] ^= bit

    def after_power_cut(self, random: Random) -> "CachedFile":
        """Does not change this file: the same cut may be tried again with other luck."""
        content = bytearray(self.durable)
        count = len(self._unsynced)
        resized = random.choice((0, count, random.randint(0, count)))
        sectors = sum(len(change.data) for change in self._unsynced) // SECTOR_BYTES
        survives = iter(luck(random, sectors))
        for number, change in enumerate(self._unsynced):
            if number < resized:
                del content[change.size :]
            for at in range(0, len(change.data), SECTOR_BYTES):
                if next(survives):
                    put(content, change.offset + at, change.data[at : at + SECTOR_BYTES])
        fit(content, self._unsynced[resized - 1].size if resized else len(self.durable))
        return CachedFile(content)


Entries: TypeAlias = Mapping[str, CachedFile | None]
"""Some names, and the files that they refer to from now on; None if there is none."""


class CachedDirectory:
    """Which file each name refers to: `files` in the cache, and durably as of the last sync."""

    def __init__(self, files: Mapping[str, CachedFile]) -> None:
        self.files = dict(files)
        self._durable = dict(files)
        self._unsynced: list[Entries] = []

    def change(self, entries: Entries) -> None:
        """Atomically."""
        _enter(entries, self.files)
        self._unsynced.append(entries)

    def sync(self) -> None:
        self._durable = dict(self.files)
        self._unsynced.clear()

    def after_power_cut(self, random: Random) -> "CachedDirectory":
        """Does not change this directory: the same cut may be tried again with other luck."""
        files = dict(self._durable)
        lost: set[str] = set()
        for entries, survives in zip(self._unsynced, luck(random, len(self._unsynced)), strict=True):
            if survives and lost.isdisjoint(entries):
                _enter(entries, files)
            else:
                lost.update(entries)
        return CachedDirectory({name: file.after_power_cut(random) for name, file in files.items()})


def _enter(entries: Entries, files: dict[str, CachedFile]) -> None:
    for name, file in entries.items():
        if file is None:
            del files[name]
        else:
            files[name] = file


def luck(random: Random, count: int) -> list[bool]:
    """Which of `count` changes survive: none, all, the first ones, all but a run, or any.

    Coins alone would almost never show the commonest outcomes of a long run of writes.
    """
    first, last = sorted((random.randint(0, count), random.randint(0, count)))
    match random.randrange(5):
        case 0:
            return [False] * count
        case 1:
            return [True] * count
        case 2:
            return [number < first for number in range(count)]
        case 3:
            return [not first <= number < last for number in range(count)]
        case _:
            share = random.random()
            return [random.random() < share for _ in range(count)]
