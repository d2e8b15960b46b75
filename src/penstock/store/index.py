"""Where each segment's bytes are inside one chapter: rows by key and offset.

A row is four numbers: offset, position of the head, head length and length in one, checksum. While a chapter is
written its rows are grouped by key; once it is closed they are one sorted block, read from the chapter's index record.
"""

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import accumulate, chain
from typing import NamedTuple, Protocol

from penstock.core.types import Buffer, Offset, Position, SegmentId
from penstock.store.operations import Append, Move

_WIDTH = 4
_ROW_BYTES = 8 * _WIDTH
_KEY_BYTES = 16
_COUNTS_BYTES = 8
INDEX_BYTES_PER_ROW_MAX = _ROW_BYTES + _KEY_BYTES
"""The most that one more append or move can add to an index."""


class Row(NamedTuple):
    """One append's bytes: `length` of them from `offset` on; `position` is where its head starts."""

    offset: Offset
    position: Position
    head_length: int
    length: int
    checksum: int

    @property
    def end(self) -> Offset:
        return Offset(self.offset + self.length)


def row_of(operation: Append | Move, data: Position) -> Row:
    """The row for an operation whose head starts at `data`."""
    return Row(operation.offset, data, operation.head_length, operation.length, operation.checksum)


class ChapterIndex(Protocol):
    def rows(self, key: SegmentId, offset: Offset) -> Iterator[Row]:
        """The key's rows in order, from the one that holds `offset` on."""
        ...


def _row(rows: "array[int]", number: int) -> Row:
    offset, position, lengths, checksum = rows[number * _WIDTH : (number + 1) * _WIDTH]
    return Row(Offset(offset), Position(position), lengths >> 32, lengths & 0xFFFF_FFFF, checksum)


def _first(rows: "array[int]", offset: int, low: int, high: int) -> int:
    """The last row in [low, high) that starts at or before `offset`."""
    return max(low, bisect_right(range(high), offset, low, high, key=lambda n: rows[n * _WIDTH]) - 1)


class OpenIndex:
    """The index of the chapter that is being written."""

    def __init__(self) -> None:
        self._rows: dict[SegmentId, array[int]] = {}
        self._count = 0

    def add(self, key: SegmentId, row: Row) -> None:
        """Add a row. Offsets of a key usually ascend, but compaction may move rows in any order."""
        rows = self._rows.get(key)
        if rows is None:
            rows = self._rows[key] = array("Q")
        values = (row.offset, row.position, row.head_length << 32 | row.length, row.checksum)
        self._count += 1
        if not rows or rows[-_WIDTH] < row.offset:
            rows.extend(values)
        else:
            at = bisect_left(range(len(rows) // _WIDTH), int(row.offset), key=lambda n: rows[n * _WIDTH])
            rows[at * _WIDTH : at * _WIDTH] = array("Q", values)

    def rows(self, key: SegmentId, offset: Offset) -> Iterator[Row]:
        rows = self._rows.get(key)
        if rows is None:
            return
        count = len(rows) // _WIDTH
        for number in range(_first(rows, offset, 0, count), count):
            yield _row(rows, number)

    @property
    def encoded_bytes(self) -> int:
        return _COUNTS_BYTES + len(self._rows) * _KEY_BYTES + self._count * _ROW_BYTES

    def encode(self) -> bytes:
        ordered = sorted(self._rows)
        blocks = [self._rows[key] for key in ordered]
        firsts = [end // _WIDTH for end in accumulate(map(len, blocks), initial=0)]
        keys = array("Q", chain.from_iterable(zip(ordered, firsts, strict=False)))
        counts = len(ordered).to_bytes(4, "little") + self._count.to_bytes(4, "little")
        return b"".join([counts, *_little_endian([keys, *blocks])])


class ClosedIndex:
    """The index of a closed chapter, as stored in its index record."""

    def __init__(self, data: Buffer) -> None:
        view = memoryview(data)
        keys = int.from_bytes(view[:4], "little")
        rows = int.from_bytes(view[4:_COUNTS_BYTES], "little")
        split = _COUNTS_BYTES + keys * _KEY_BYTES
        if len(view) != split + rows * _ROW_BYTES:
            raise ValueError("the length of the index does not match its counts")
        self._keys = _from_little_endian(view[_COUNTS_BYTES:split])
        self._rows = _from_little_endian(view[split:])
        self.size_bytes = len(view)

    def rows(self, key: SegmentId, offset: Offset) -> Iterator[Row]:
        count = len(self._keys) // 2
        at = bisect_left(range(count), int(key), key=lambda n: self._keys[2 * n])
        if at == count or self._keys[2 * at] != key:
            return
        low, high = self._keys[2 * at + 1], self._end_of(at)
        for number in range(_first(self._rows, offset, low, high), high):
            yield _row(self._rows, number)

    def all(self) -> Iterator[tuple[SegmentId, Row]]:
        for at in range(len(self._keys) // 2):
            key = SegmentId(self._keys[2 * at])
            for number in range(self._keys[2 * at + 1], self._end_of(at)):
                yield key, _row(self._rows, number)

    def _end_of(self, at: int) -> int:
        after = 2 * at + 3
        return self._keys[after] if after < len(self._keys) else len(self._rows) // _WIDTH


def _little_endian(blocks: "list[array[int]]") -> "list[array[int]]":
    if sys.byteorder == "big":
        blocks = [array("Q", values) for values in blocks]
        for values in blocks:
            values.byteswap()
    return blocks


def _from_little_endian(data: memoryview) -> "array[int]":
    values = array("Q")
    values.frombytes(data)
    if sys.byteorder == "big":
        values.byteswap()
    return values
