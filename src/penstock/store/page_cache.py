"""A disk behind a page cache, and what a power cut leaves of it: the model under `faulty_files.py`.

Everything is done to the cache at once and noted as unsynced. A sync does to the durable state what
was noted. A power cut does a part of it, drawn at random:

- of the data, any of the sectors written, in any order of the writes;
- of the sizes of a file, the first so many changes;
- of the names, any of the changes, but those that share a name in their order, and each whole. So a
  file that was renamed has its old name or its new one, never both or neither.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import TypeAlias

from penstock.store.memory_files import fit, put

SECTOR_BYTES = 512
"""What a disk writes whole or not at all."""


@dataclass(frozen=True, slots=True)
class Change:
    """A write, or a change of the size. `data` are whole sectors as the cache had them afterwards.

    So the last change of a sector has all earlier ones in it, as in a real cache, and any subset of
    the changes, applied in order, is a state that the disk may be in.
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
        """Flip one bit in each durable byte; who reads it sees it, unless the page is dirty."""
        for at in range(offset, min(offset + count, len(self.durable))):
            bit = 1 << random.randrange(8)
            self.durable[at] ^= bit
            clean = not any(change.covers(at) for change in self._unsynced)
            if clean and at < len(self.content):
                self.content[at] ^= bit

    def after_power_cut(self, random: Random) -> "CachedFile":
        """Leave this file as it is: the same cut may be tried again with other luck."""
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
"""Some names, and the files that they mean from now on; None where there is none."""


class CachedDirectory:
    """Which file each name means: `files` in the cache, and durably what the last sync saw."""

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
        """Leave this directory as it is: the same cut may be tried again with other luck."""
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
