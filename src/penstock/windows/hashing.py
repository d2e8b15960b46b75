"""Spark's xxhash64 of Arrow columns: a key has the same bucket whether Spark or a reader has hashed it.

Windows spread keys by `pmod(xxhash64(keys…), buckets)`. A null leaves the hash as it is; the hash of one column is the
seed of the next; -0.0 is 0.0, and all NaNs are one.

numba's cache tracks only a kernel's own file, so everything that is compiled together is in this one, except the
intrinsics.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numba import types
from numba.types import int64, uint8, uint32, uint64
from numpy.typing import NDArray

from penstock.protocol.intrinsics import (
    BYTES,
    I32S,
    I64S,
    U8S,
    U64S,
    address_of,
    compiled,
    inlined,
    peek8,
    peek32_little,
    peek64_little,
)

SEED = 42
"""Spark's, for the first column."""

P1, P2, P3 = uint64(0x9E3779B185EBCA87), uint64(0xC2B2AE3D27D4EB4F), uint64(0x165667B19E3779F9)
P4, P5 = uint64(0x85EBCA77C2B2AE63), uint64(0x27D4EB2F165667C5)


@inlined
def rotated(word: Any, bits: Any) -> Any:
    return (word << uint64(bits)) | (word >> uint64(64 - bits))


@inlined
def mixed(word: Any) -> Any:
    """The last step: every bit of the result depends on every bit of the hash."""
    word ^= word >> uint64(33)
    word *= P2
    word ^= word >> uint64(29)
    word *= P3
    return word ^ (word >> uint64(32))


@inlined
def lane(total: Any, word: Any) -> Any:
    return rotated(total + word * P2, 31) * P1


@inlined
def merged_lane(total: Any, one: Any) -> Any:
    return (total ^ lane(uint64(0), one)) * P1 + P4


@inlined
def hash_of_bytes(at: Any, size: Any, seed: Any) -> Any:
    """XXH64 of `size` bytes at an address."""
    end = at + size
    if size >= 32:
        one, two, three, four = seed + P1 + P2, seed + P2, seed, seed - P1
        while at <= end - 32:
            one, two = lane(one, peek64_little(at)), lane(two, peek64_little(at + 8))
            three, four = lane(three, peek64_little(at + 16)), lane(four, peek64_little(at + 24))
            at += 32
        total = rotated(one, 1) + rotated(two, 7) + rotated(three, 12) + rotated(four, 18)
        total = merged_lane(merged_lane(merged_lane(merged_lane(total, one), two), three), four)
    else:
        total = seed + P5
    total += uint64(size)
    while at <= end - 8:
        total = rotated(total ^ lane(uint64(0), peek64_little(at)), 27) * P1 + P4
        at += 8
    if at <= end - 4:
        total = rotated(total ^ (peek32_little(at) * P1), 23) * P2 + P3
        at += 4
    while at < end:
        total = rotated(total ^ (uint64(peek8(at)) * P5), 11) * P1
        at += 1
    return mixed(total)


@compiled(types.void(BYTES, I32S, U8S, U64S))
def hash_bytes(data: Any, offsets: Any, valid: Any, hashes: Any) -> Any:
    """`hashes` are the seeds, and then the hashes. Arrow has checked the offsets. `valid` is empty without nulls."""
    start = address_of(data)
    for row in range(hashes.shape[0]):
        if valid.shape[0] == 0 or valid[row] != uint8(0):
            first = int64(offsets[row])
            hashes[row] = hash_of_bytes(start + first, int64(offsets[row + 1]) - first, hashes[row])


@compiled(types.void(I64S, U8S, U64S))
def hash_longs(values: Any, valid: Any, hashes: Any) -> Any:
    for row in range(hashes.shape[0]):
        if valid.shape[0] == 0 or valid[row] != uint8(0):
            total = hashes[row] + P5 + uint64(8)
            hashes[row] = mixed(rotated(total ^ lane(uint64(0), uint64(values[row])), 27) * P1 + P4)


@compiled(types.void(I32S, U8S, U64S))
def hash_ints(values: Any, valid: Any, hashes: Any) -> Any:
    for row in range(hashes.shape[0]):
        if valid.shape[0] == 0 or valid[row] != uint8(0):
            total = hashes[row] + P5 + uint64(4)
            hashes[row] = mixed(rotated(total ^ (uint64(uint32(values[row])) * P1), 23) * P2 + P3)


def hashes_of(columns: Sequence[pa.Array], rows: int) -> NDArray[np.int64]:
    """Spark's `xxhash64` of the columns' values, row by row."""
    hashes = np.full(rows, SEED, np.uint64)
    for column in columns:
        _add(column, hashes)
    return hashes.view(np.int64)


def buckets_of(columns: Sequence[pa.Array], rows: int, buckets: int) -> NDArray[np.int32]:
    """The bucket of each row's key; without key columns all rows are in bucket 0."""
    if not columns:
        return np.zeros(rows, np.int32)
    return (hashes_of(columns, rows) % buckets).astype(np.int32)


def _add(column: pa.Array, hashes: NDArray[np.uint64]) -> None:
    kind = column.type
    valid = np.empty(0, np.uint8)
    if column.null_count:
        valid = column.is_valid().to_numpy(zero_copy_only=False).astype(np.uint8)
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        hash_bytes(*_bytes(column), valid, hashes)
    elif pa.types.is_floating(kind):
        _add_floats(column, valid, hashes)
    elif pa.types.is_decimal(kind):
        words = np.frombuffer(column.buffers()[1], np.int64)[2 * column.offset : 2 * (column.offset + len(column))]
        hash_longs(np.ascontiguousarray(words[::2]), valid, hashes)
    elif kind in (pa.int64(), pa.timestamp("us"), pa.timestamp("us", "UTC")):
        hash_longs(_values(column.view(pa.int64()), np.int64), valid, hashes)
    else:
        numbers = column.view(pa.int32()) if kind == pa.date32() else column.cast(pa.int32())
        hash_ints(_values(numbers, np.int32), valid, hashes)


def _add_floats(column: pa.Array, valid: NDArray[np.uint8], hashes: NDArray[np.uint64]) -> None:
    is_double = column.type == pa.float64()
    values = _values(column, np.float64 if is_double else np.float32) + 0.0  # makes 0.0 of -0.0
    values[np.isnan(values)] = np.nan
    if is_double:
        hash_longs(values.view(np.int64), valid, hashes)
    else:
        hash_ints(values.astype(np.float32).view(np.int32), valid, hashes)


def _values(column: pa.Array, kind: Any) -> NDArray[Any]:
    """The numbers of a column; whatever is in place of nulls."""
    found = np.frombuffer(column.buffers()[1], kind) if len(column) else np.empty(0, kind)
    return np.ascontiguousarray(found[column.offset : column.offset + len(column)])


def _bytes(column: pa.Array) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    _, offsets, data = column.buffers()
    if not len(column) or offsets is None:
        return np.zeros(1, np.uint8), np.zeros(len(column) + 1, np.int32)
    found = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1]
    texts = np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(1, np.uint8)
    return texts, np.ascontiguousarray(found)
