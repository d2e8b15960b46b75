"""What a plain program keeps its events in, for `script/bench connectors`: a connector stores what it receives, so the
program beside it does, too. The least that loses nothing: a file of records, each with its id, its time, its key and
its value, with a checksum around what is written at once, and an fsync after every megabyte and at the end.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from struct import Struct
from types import TracebackType
from typing import Self
from zlib import crc32

RECORD, BLOCK = Struct("<QqII"), Struct("<II")
"""The head of a record: id, time, size of the key, size of the value; and that of a block: its size, its checksum."""

SYNC_BYTES = 1 << 20
READ_BYTES = 1 << 20


class PlainLog:
    """Records are durable when it is closed, and all but the last megabyte before that."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")
        self._unsynced = 0
        self.events = 0

    def append(
        self,
        values: Sequence[bytes],
        ids: Sequence[int] | None = None,
        keys: Sequence[bytes] | None = None,
        times_us: Sequence[int] | None = None,
    ) -> None:
        """Without ids, records are counted; without times, it is now."""
        pack, parts, count = RECORD.pack, list[bytes](), len(values)
        numbers = range(self.events + 1, self.events + 1 + count) if ids is None else ids
        times = [time.time_ns() // 1000] * count if times_us is None else times_us
        for value, number, key, at in zip(values, numbers, keys or [b""] * count, times, strict=True):
            parts += (pack(number, at, len(key), len(value)), key, value)
        block = b"".join(parts)
        self._file.write(BLOCK.pack(len(block), crc32(block)))
        self._file.write(block)
        self.events += count
        self._unsynced += len(block)
        if self._unsynced >= SYNC_BYTES:
            self.sync()

    def sync(self) -> None:
        self._file.flush()
        os.fdatasync(self._file.fileno())
        self._unsynced = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.sync()
        self._file.close()


def read_log(path: Path) -> Iterator[list[bytes]]:
    """The values of each block."""
    with path.open("rb") as file:
        while head := file.read(BLOCK.size):
            size, checksum = BLOCK.unpack(head)
            block = file.read(size)
            if crc32(block) != checksum:
                raise ValueError(f"{path}: a block is damaged")
            at, values = 0, list[bytes]()
            while at < size:
                _, _, key_size, value_size = RECORD.unpack_from(block, at)
                start = at + RECORD.size + key_size
                at = start + value_size
                values.append(block[start:at])
            yield values


def remember(path: Path, position: int) -> None:
    """How far a program has come, durable: what it sends is not sent again after a restart."""
    new = path.with_suffix(".new")
    with new.open("wb") as file:
        file.write(b"%d" % position)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
