"""Reads a chapter's records one after the other, and goes on behind bytes that are not a record."""

from collections.abc import Iterator
from typing import NamedTuple, Protocol, TypeAlias

from crc32c import crc32c

from penstock.core.errors import Damaged
from penstock.core.types import Position
from penstock.store.operations import (
    Append,
    Index,
    Move,
    Operation,
    Snapshot,
    data_length,
    unpack,
)
from penstock.store.record import (
    CHAPTER_HEADER_BYTES,
    RECORD_HEADER_BYTES,
    RECORD_MAGIC,
    RecordHeader,
    head_is_sound,
    parse_record_header,
)

_WINDOW_BYTES = 1 << 20


class Readable(Protocol):
    """What a scan needs of a File."""

    def read(self, offset: int, length: int) -> bytes: ...
    def size(self) -> int: ...


class Entry(NamedTuple):
    """A record whose header and meta are sound; `sound` says whether its data are too."""

    header: RecordHeader
    operations: list[Operation]
    sound: bool

    @property
    def position(self) -> Position:
        return self.header.position

    @property
    def end(self) -> Position:
        return self.header.end

    def closes_chapter(self) -> bool:
        return len(self.operations) == 1 and isinstance(self.operations[0], Index)

    def opens_chapter(self) -> bool:
        return len(self.operations) == 1 and isinstance(self.operations[0], Snapshot)


class Flaw(NamedTuple):
    """Bytes from `position` to `end` that are no record of this chapter."""

    position: Position
    end: Position


Found: TypeAlias = Entry | Flaw


def scan(file: Readable, base: Position, chain: int | None, name: str) -> Iterator[Found]:
    """The chapter's records in order, until its index record or the zeros behind the last one.
    `chain` is the checksum that the first one must follow, None where it is not known.
    """
    return _Scan(file, base, chain, name).run()


def is_sound(found: Found) -> bool:
    return isinstance(found, Entry) and found.sound


class _Scan:
    def __init__(self, file: Readable, base: Position, chain: int | None, name: str) -> None:
        self._file = file
        self._base = base
        self._chain = chain
        self._name = name
        self._size = file.size()
        self._window = b""
        self._window_at = 0

    def run(self) -> Iterator[Found]:
        offset = CHAPTER_HEADER_BYTES
        while True:
            found = self._entry(offset) or self._flaw(offset)
            if found is None:
                return
            yield found
            if isinstance(found, Entry):
                self._chain = found.header.checksum
                if found.closes_chapter():
                    return
            else:
                self._chain = None
            offset = self._offset(found.end)

    def _entry(self, offset: int) -> Entry | None:
        header = self._header(offset)
        if header is None or self._chain not in (None, header.chain):
            return None
        meta = self._bytes(offset + RECORD_HEADER_BYTES, header.meta_length)
        try:
            operations = unpack(meta)
        except (TypeError, ValueError) as error:
            # The checksum holds, so these are the bytes that were written: never cut them as if they were torn.
            raise Damaged(
                f"{self._name} at offset {offset}: the record cannot be read by this version: {error}",
                hint="Use the version of Penstock that wrote it, or a newer one.",
            ) from None
        return Entry(header, operations, self._data_is_sound(header, operations))

    def _header(self, offset: int) -> RecordHeader | None:
        header = parse_record_header(self._bytes(offset, RECORD_HEADER_BYTES))
        if header is None or self._offset(header.position) != offset:
            return None
        if self._offset(header.end) > self._size:
            return None
        head = self._bytes(offset, RECORD_HEADER_BYTES + header.meta_length)
        return header if head_is_sound(header, head) else None

    def _data_is_sound(self, header: RecordHeader, operations: list[Operation]) -> bool:
        offset = self._offset(header.data_position)
        for operation in operations:
            length = data_length(operation)
            if isinstance(operation, Append | Move | Snapshot | Index) and (
                crc32c(self._bytes(offset, length)) != operation.checksum
            ):
                return False
            offset += length
        return offset == self._offset(header.end)

    def _flaw(self, offset: int) -> Flaw | None:
        """From `offset` to the next record, or to the last byte that is not zero; None where only zeros are left."""
        end = self._end_of_bytes(offset)
        if end == offset:
            return None
        candidate = offset
        while (candidate := self._find_magic(candidate + 1)) >= 0:
            if self._header(candidate) is not None:
                return Flaw(self._position(offset), self._position(candidate))
        return Flaw(self._position(offset), self._position(end))

    def _find_magic(self, offset: int) -> int:
        while offset < self._size:
            start = self._load(offset, len(RECORD_MAGIC))
            if (found := self._window.find(RECORD_MAGIC, start)) >= 0:
                return self._window_at + found
            if start == len(self._window):  # the file is being cut by its writer
                break
            offset += max(1, len(self._window) - start - len(RECORD_MAGIC) + 1)
        return -1

    def _end_of_bytes(self, offset: int) -> int:
        """Where the last byte that is not zero ends."""
        end = offset
        while block := self._file.read(offset, _WINDOW_BYTES):
            if rest := len(block.rstrip(b"\0")):
                end = offset + rest
            offset += len(block)
        return end

    def _bytes(self, offset: int, length: int) -> memoryview:
        start = self._load(offset, length)
        return memoryview(self._window)[start : start + length]

    def _load(self, offset: int, length: int) -> int:
        """See to it that the window holds these bytes, as far as the file does; returns where in it they begin."""
        start = offset - self._window_at
        if start < 0 or start + length > len(self._window):
            self._window = self._file.read(offset, max(length, _WINDOW_BYTES))
            self._window_at, start = offset, 0
        return start

    def _offset(self, position: int) -> int:
        return CHAPTER_HEADER_BYTES + position - self._base

    def _position(self, offset: int) -> Position:
        return Position(offset - CHAPTER_HEADER_BYTES + self._base)
