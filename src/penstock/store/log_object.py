"""The objects of a shard in a bucket: their names and their bytes (docs/internals/bucket.md)."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import msgpack
import msgspec
from crc32c import crc32c

from penstock.core.errors import Damaged, UnreadableFormat
from penstock.core.types import Buffer

SHARDS = "shards/"
"""The prefix of all shards' objects."""

FORMAT = 1
"""The format version of everything below `shards/`."""

OBJECT_BYTES_MAX = 16 << 20
"""Data in one object: larger ones are no faster, and what a failed request sends again grows with them."""

_PREFIX = struct.Struct("<8sIII")
_MAGIC = b"pnskblog"
_START_OVER = "Start with an empty prefix, or use the version that wrote it."


class Kind(IntEnum):
    GROUP = 1
    TAKE_OVER = 2
    CHECKPOINT = 3


@dataclass(frozen=True, slots=True)
class LogObject:
    kind: Kind
    number: int
    term: int
    writer: bytes
    """Random, of one process: distinguishes its objects from those of another worker."""
    chain: int
    """The checksum of the object before it."""
    body: Any
    """Of a group its operations, of a take-over the owner's name, of a checkpoint the directory."""
    data: memoryview
    skip: int
    """Where the data start in the object."""
    checksum: int


def encode(
    kind: Kind, number: int, term: int, writer: bytes, chain: int, body: Any, data: Sequence[Buffer]
) -> tuple[bytes, int]:
    """What precedes the data in an object, and the object's checksum: the chain of the one after it."""
    length, value = 0, 0
    for buffer in data:
        length += len(buffer)
        value = crc32c(buffer, value)
    header = msgpack.packb([int(kind), number, term, writer, chain, body, length, value])
    check = crc32c(header)
    return _PREFIX.pack(_MAGIC, FORMAT, len(header), check) + header, check


def decode(key: str, data: bytes) -> LogObject:
    """Raises Damaged; UnreadableFormat if another version wrote it."""
    if len(data) < _PREFIX.size:
        raise damaged(key, "it is too short")
    magic, version, length, check = _PREFIX.unpack_from(data)
    if magic != _MAGIC:
        raise damaged(key, "it is not an object of a log")
    if version != FORMAT:
        raise UnreadableFormat(f"the bucket ({key})", version, FORMAT, _START_OVER)
    header = memoryview(data)[_PREFIX.size : _PREFIX.size + length]
    rest = memoryview(data)[_PREFIX.size + length :]
    if crc32c(header) != check:
        raise damaged(key, "its header fails its checksum")
    kind, number, term, writer, chain, body, size, value = msgpack.unpackb(header, strict_map_key=False)
    if len(rest) != size or crc32c(rest) != value:
        raise damaged(key, "its data fail their checksum")
    return LogObject(Kind(kind), number, term, writer, chain, body, rest, _PREFIX.size + length, check)


def damaged(key: str, why: str) -> Damaged:
    return Damaged(f"object {key} is damaged: {why}", "Run: penstock store verify URL, then restore the object.")


class Head(msgspec.Struct, frozen=True):
    """The newest checkpoint of the log. Numbers below `first` may be deleted, except take-overs and the checkpoint."""

    format: int
    checkpoint: int
    first: int
    """The first number that a reader of the checkpoint must apply."""


NO_HEAD = Head(FORMAT, 0, 1)
"""Of a log without a checkpoint: nothing in it was deleted."""


def decode_head(key: str, data: bytes) -> Head:
    """Raises Damaged; UnreadableFormat if another version wrote it."""
    try:
        head = msgspec.json.decode(data, type=Head)
    except msgspec.MsgspecError as error:
        raise damaged(key, str(error)) from None
    if head.format != FORMAT:
        raise UnreadableFormat(f"the bucket ({key})", head.format, FORMAT, _START_OVER)
    return head


class Checkpoint(NamedTuple):
    number: int
    """Of its object; 0 for the beginning of a log."""
    first: int
    directory: Any
    take_overs: list[int]
    """Numbers of all take-over objects before it."""


def shard_prefix(shard: int) -> str:
    """Of the shard's objects."""
    return f"{SHARDS}{shard}"


class Prefix(NamedTuple):
    """Keys of one shard."""

    shard: str

    def log(self, number: int) -> str:
        return f"{self.logs}{number:012d}"

    @property
    def logs(self) -> str:
        return f"{self.shard}/log/"

    @property
    def parts(self) -> str:
        return f"{self.shard}/parts/"

    def part(self, term: int, writer: bytes, number: int) -> str:
        return f"{self.parts}{term:08d}-{writer.hex()[:8]}-{number:08d}"

    def number(self, key: str) -> int | None:
        """None for an object that is not in the log."""
        name = key.removeprefix(self.logs)
        return int(name) if key.startswith(self.logs) and name.isdecimal() else None

    def term_of(self, part: str) -> int | None:
        """None for an object that is not a part."""
        term = part.removeprefix(self.parts).partition("-")[0]
        return int(term) if term.isdecimal() else None

    @property
    def head(self) -> str:
        return f"{self.shard}/head"

    def is_intact(self, key: str, data: bytes, checksum: int) -> bool:
        """Whether the object of a part is the one that the directory means."""
        if self.number(key) is None:
            return crc32c(data) == checksum
        try:
            return decode(key, data).checksum == checksum
        except Damaged:
            return False
