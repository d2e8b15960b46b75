"""What the batches of an Arrow stream take in memory, before they are read.

Arrow decompresses all buffers of a batch at once, and a small one may become gigabytes. Their sizes are in the stream:
the message of a batch is a flatbuffer (`Message.fbs` of Arrow's format) that has the places of its buffers, and each
compressed buffer begins with its size in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct, error
from typing import NamedTuple

import pyarrow as pa
import pyarrow.ipc

_U8, _U16, _I32, _U32, _I64, _BUFFER = (Struct(f"<{code}") for code in ("B", "H", "i", "I", "q", "qq"))

_HEADER = 2
"""The field of Message that has the batch."""
_DATA = 1
"""That of DictionaryBatch."""
_BUFFERS, _COMPRESSION = 2, 3
"""Those of RecordBatch."""


def decompressed_bytes(stream: pa.Buffer) -> int:
    """Of all batches, and dictionaries. Raises ValueError, or errors of Arrow, if it is not a valid stream."""
    try:
        return sum(map(_bytes_of, _messages(stream)))
    except error as found:
        raise ValueError(f"not a valid message: {found}") from None


def _messages(stream: pa.Buffer) -> Iterator[pa.Message]:
    reader = pa.ipc.MessageReader.open_stream(stream)
    while True:
        try:
            yield reader.read_next_message()
        except StopIteration:
            return


def _bytes_of(message: pa.Message) -> int:
    if message.type not in ("record batch", "dictionary"):
        return 0
    metadata, body = memoryview(message.metadata), memoryview(message.body)
    batch = _table(metadata, _U32.unpack_from(metadata)[0], _HEADER)
    if message.type == "dictionary":
        batch = _table(metadata, batch, _DATA)
    if not _place(metadata, batch, _COMPRESSION):
        return len(body)
    buffers = _table(metadata, batch, _BUFFERS)
    (count,) = _U32.unpack_from(metadata, buffers)
    places = (_BUFFER.unpack_from(metadata, buffers + _U32.size + number * _BUFFER.size) for number in range(count))
    return sum(max(size, _I64.unpack_from(body, start)[0]) for start, size in places if size >= _I64.size)


def _place(metadata: memoryview, table: int, field: int) -> int:
    """Where a table has its field; 0: it does not have it."""
    index = table - _I32.unpack_from(metadata, table)[0]
    at = 2 * _U16.size + field * _U16.size
    if at >= _U16.unpack_from(metadata, index)[0]:
        return 0
    (offset,) = _U16.unpack_from(metadata, index + at)
    return table + int(offset) if offset else 0


def _table(metadata: memoryview, table: int, field: int) -> int:
    """Where the table, or the vector, is that a field refers to. Raises ValueError."""
    place = _place(metadata, table, field)
    if not place:
        raise ValueError("a message without its batch")
    return place + int(_U32.unpack_from(metadata, place)[0])


_LENGTH = Struct("<iI")
_MARK = -1
"""Before the length of a message's metadata."""
_TYPE, _BODY = 1, 3
"""Other fields of Message."""
_SCHEMA_TYPE, _BATCH_TYPE = 1, 3


class PlainStream(NamedTuple):
    """A stream whose batches are neither compressed nor have dictionaries: they take what they have in it."""

    schema: bytes
    """The whole message."""
    batches: list[memoryview]


def plain_stream(stream: memoryview) -> PlainStream | None:
    """None for one that is not plain, or not valid."""
    try:
        found = [*_encapsulated(stream)]
    except (error, ValueError):
        return None
    if not found or found[0][0] != _SCHEMA_TYPE or any(kind != _BATCH_TYPE for kind, _ in found[1:]):
        return None
    return PlainStream(bytes(found[0][1]), [message for _, message in found[1:]])


def _encapsulated(stream: memoryview) -> Iterator[tuple[int, memoryview]]:
    """The messages with their types. Raises ValueError for one that is compressed."""
    at = 0
    while at < len(stream):
        mark, size = _LENGTH.unpack_from(stream, at)
        if mark != _MARK:
            raise ValueError("a message of Arrow before 0.15")
        if not size:
            return
        start = at + _LENGTH.size
        metadata = stream[start : start + size]
        message = _U32.unpack_from(metadata)[0]
        (kind,) = _U8.unpack_from(metadata, _place(metadata, message, _TYPE))
        body = _place(metadata, message, _BODY)
        end = start + size + (_I64.unpack_from(metadata, body)[0] if body else 0)
        if not start < end <= len(stream):
            raise ValueError("a message without its end")
        if kind == _BATCH_TYPE and _place(metadata, _table(metadata, message, _HEADER), _COMPRESSION):
            raise ValueError("compressed")
        yield kind, stream[at:end]
        at = end
