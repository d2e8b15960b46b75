"""The bytes of a record and of a chapter's header and trailer (docs/internals/journal.md)."""

import struct
from collections.abc import Iterable
from typing import NamedTuple

from crc32c import crc32c

from penstock.core.types import Buffer, Position

FORMAT = 2
"""Of a whole journal: of its bytes, and of what the worker keeps in them. 1 was written before 0.1, when epochs were
not numbered as Spark's batches are.
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
"""In front of a head that is not empty stands its own checksum: so it can be read, and trusted, without the data."""


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
    """The file does not begin with a chapter's header."""


class OtherFormat(ValueError):
    """The header is sound, and of a format that this version does not read."""

    def __init__(self, found: int) -> None:
        super().__init__(f"the chapter has format {found}; this version reads format {FORMAT}")
        self.found = found


def checksum(buffers: Iterable[Buffer]) -> int:
    value = 0
    for buffer in buffers:
        value = crc32c(buffer, value)
    return value


def head_checksum(head: Buffer) -> bytes:
    """What stands in front of a head."""
    return crc32c(head).to_bytes(HEAD_CHECKSUM_BYTES, "little")


def record_head(
    meta: bytes, *, chain: int, term: int, position: int, durable: int, data_length: int
) -> tuple[bytes, int]:
    """A record's header and meta, and its checksum: the chain of the record after it."""
    checked = _CHECKED.pack(chain, term, position, durable, len(meta), data_length) + meta
    value = crc32c(checked)
    return _RECORD_MAGIC.to_bytes(4, "little") + value.to_bytes(4, "little") + checked, value


def parse_record_header(data: Buffer) -> RecordHeader | None:
    """The header at the start of `data`, not yet checked; None where there cannot be one."""
    if len(data) < RECORD_HEADER_BYTES:
        return None
    magic, *fields = _RECORD.unpack_from(data)
    return RecordHeader(*fields) if magic == _RECORD_MAGIC else None


def head_is_sound(header: RecordHeader, data: Buffer) -> bool:
    """Whether header and meta, at the start of `data`, have the checksum that they claim."""
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
    """Where the index record begins; None where this is not a trailer."""
    if len(data) != TRAILER_BYTES:
        return None
    position, magic, value = _TRAILER.unpack(data)
    if magic != _TRAILER_MAGIC or value != crc32c(data[:-4]):
        return None
    return Position(position)
