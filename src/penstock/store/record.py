"""Records: their bytes, those of a chapter's header and trailer (docs/internals/journal.md), and a chapter's scan."""

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol, TypeAlias

from crc32c import crc32c

from penstock.core.errors import Damaged
from penstock.core.types import Buffer, Position
from penstock.store.operations import (
    Append,
    Index,
    Move,
    Operation,
    Snapshot,
    data_length,
    unpack,
)

FORMAT = 2
"""The format version of a whole journal: of its bytes, and of what the worker stores in them. Version 1 was written
before 0.1, when epochs were not numbered like Spark's batches.
"""

_CHAPTER = struct.Struct("<8sIIQII")
_CHAPTER_MAGIC = b"pnskjrnl"
CHAPTER_HEADER_BYTES = _CHAPTER.size

_TRAILER = struct.Struct("<QII")
_TRAILER_MAGIC = int.from_bytes(b"PTRL", "little")
TRAILER_BYTES = _TRAILER.size

_RECORD = struct.Struct("<IIIIQQII")
_CHECKED = struct.Struct("<IIQQII")
RECORD_MAGIC = b"PREC"
_RECORD_MAGIC = int.from_bytes(RECORD_MAGIC, "little")
RECORD_HEADER_BYTES = _RECORD.size
_CHECKED_FROM = RECORD_HEADER_BYTES - _CHECKED.size

HEAD_CHECKSUM_BYTES = 4
"""A head that is not empty is preceded by its own checksum, so that it can be trusted without the data."""


class RecordHeader(NamedTuple):
    checksum: int
    chain: int
    term: int
    position: Position
    durable: Position
    meta_length: int
    data_length: int

    @property
    def data_position(self) -> Position:
        return Position(self.position + RECORD_HEADER_BYTES + self.meta_length)

    @property
    def end(self) -> Position:
        return Position(self.data_position + self.data_length)


class ChapterHeader(NamedTuple):
    chain: int
    base: Position


class NotAChapter(ValueError):
    """The file does not start with a chapter's header."""


class OtherFormat(ValueError):
    """The header is sound, but its format is one that this version cannot read."""

    def __init__(self, found: int) -> None:
        super().__init__(f"the chapter has format {found}; this version reads format {FORMAT}")
        self.found = found


def checksum(buffers: Iterable[Buffer]) -> int:
    value = 0
    for buffer in buffers:
        value = crc32c(buffer, value)
    return value


def head_checksum(head: Buffer) -> bytes:
    """The checksum that precedes a head."""
    return crc32c(head).to_bytes(HEAD_CHECKSUM_BYTES, "little")


def record_head(
    meta: bytes, *, chain: int, term: int, position: int, durable: int, data_length: int
) -> tuple[bytes, int]:
    """A record's header and meta, and its checksum: the chain of the record after it."""
    checked = _CHECKED.pack(chain, term, position, durable, len(meta), data_length) + meta
    value = crc32c(checked)
    return _RECORD_MAGIC.to_bytes(4, "little") + value.to_bytes(4, "little") + checked, value


def parse_record_header(data: Buffer) -> RecordHeader | None:
    """The header at the start of `data`, not yet verified; None if there cannot be one."""
    if len(data) < RECORD_HEADER_BYTES:
        return None
    magic, *fields = _RECORD.unpack_from(data)
    return RecordHeader(*fields) if magic == _RECORD_MAGIC else None


def head_is_sound(header: RecordHeader, data: Buffer) -> bool:
    """Whether header and meta, at the start of `data`, match their checksum."""
    end = RECORD_HEADER_BYTES + header.meta_length
    return crc32c(memoryview(data)[_CHECKED_FROM:end]) == header.checksum


def chapter_header(base: Position, chain: int) -> bytes:
    front = _CHAPTER.pack(_CHAPTER_MAGIC, FORMAT, chain, base, 0, 0)[:-4]
    return front + crc32c(front).to_bytes(4, "little")


def parse_chapter_header(data: bytes) -> ChapterHeader:
    if len(data) < CHAPTER_HEADER_BYTES:
        raise NotAChapter("the file is shorter than a chapter's header")
    magic, version, chain, base, _, value = _CHAPTER.unpack_from(data)
    if magic != _CHAPTER_MAGIC:
        raise NotAChapter("the file is not a chapter: wrong magic number")
    if value != crc32c(data[: CHAPTER_HEADER_BYTES - 4]):
        raise NotAChapter("the chapter's header fails its checksum")
    if version != FORMAT:
        raise OtherFormat(version)
    return ChapterHeader(chain, Position(base))


def trailer(index_position: Position) -> bytes:
    front = _TRAILER.pack(index_position, _TRAILER_MAGIC, 0)[:-4]
    return front + crc32c(front).to_bytes(4, "little")


def parse_trailer(data: bytes) -> Position | None:
    """Where the index record starts; None if this is not a trailer."""
    if len(data) != TRAILER_BYTES:
        return None
    position, magic, value = _TRAILER.unpack(data)
    if magic != _TRAILER_MAGIC or value != crc32c(data[:-4]):
        return None
    return Position(position)


# Reads a chapter's records one after the other, and continues after bytes that are not a record.

_WINDOW_BYTES = 1 << 20
_ZEROS = bytes(_WINDOW_BYTES)
"""Most of a new chapter: to compare is a hundred times as fast as to look for the last nonzero byte."""


class Readable(Protocol):
    """What a scan needs from a File."""

    def read(self, offset: int, length: int) -> bytes: ...
    def size(self) -> int: ...


class Entry(NamedTuple):
    """A record whose header and meta are sound; `sound`: its data are too."""

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
    """Bytes from `position` to `end` that are not a record of this chapter."""

    position: Position
    end: Position


Found: TypeAlias = Entry | Flaw


def scan(file: Readable, base: Position, chain: int | None, name: str) -> Iterator[Found]:
    """The chapter's records in order, until its index record or the zeros after the last one. `chain` is the checksum
    that the first record must continue; None if it is unknown.
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
            # The checksum is right, so these are the bytes that were written: they must not be cut off as a torn tail.
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
        """The bytes from `offset` to the next record, or to the last nonzero byte; None if only zeros are left."""
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
        """The end of the last nonzero byte."""
        end = offset
        while block := self._file.read(offset, _WINDOW_BYTES):
            if block != _ZEROS and (rest := len(block.rstrip(b"\0"))):
                end = offset + rest
            offset += len(block)
        return end

    def _bytes(self, offset: int, length: int) -> memoryview:
        start = self._load(offset, length)
        return memoryview(self._window)[start : start + length]

    def _load(self, offset: int, length: int) -> int:
        """Load these bytes, as far as the file has them, into the window. Returns their start in it."""
        start = offset - self._window_at
        if start < 0 or start + length > len(self._window):
            self._window = self._file.read(offset, max(length, _WINDOW_BYTES))
            self._window_at, start = offset, 0
        return start

    def _offset(self, position: int) -> int:
        return CHAPTER_HEADER_BYTES + position - self._base

    def _position(self, offset: int) -> Position:
        return Position(offset - CHAPTER_HEADER_BYTES + self._base)
