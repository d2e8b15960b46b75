"""Hashes of keys: those of Spark's xxhash64, here against XXH64 in plain Python."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.windows.hashing import SEED, buckets_of, hashes_of

_MASK = 2**64 - 1
_P1, _P2, _P3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
_P4, _P5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5


def rotated(word: int, bits: int) -> int:
    word &= _MASK
    return (word << bits | word >> (64 - bits)) & _MASK


def lane(total: int, word: int) -> int:
    return rotated(total + word * _P2, 31) * _P1 & _MASK


def words(data: bytes) -> list[int]:
    return [int.from_bytes(data[at : at + 8], "little") for at in range(0, len(data) - len(data) % 8, 8)]


def xxh64(data: bytes, seed: int) -> int:
    """As its specification describes it."""
    at = 0
    if len(data) >= 32:
        lanes = [seed + _P1 + _P2, seed + _P2, seed, seed - _P1]
        while len(data) - at >= 32:
            lanes = [lane(total, word) for total, word in zip(lanes, words(data[at : at + 32]), strict=True)]
            at += 32
        total = sum(rotated(one, bits) for one, bits in zip(lanes, (1, 7, 12, 18), strict=True))
        for one in lanes:
            total = (total ^ lane(0, one)) * _P1 + _P4
    else:
        total = seed + _P5
    total += len(data)
    for word in words(data[at:]):
        total = rotated(total ^ lane(0, word), 27) * _P1 + _P4
        at += 8
    if len(data) - at >= 4:
        total = rotated(total ^ int.from_bytes(data[at : at + 4], "little") * _P1, 23) * _P2 + _P3
        at += 4
    for byte in data[at:]:
        total = rotated(total ^ byte * _P5, 11) * _P1
    total &= _MASK
    total = (total ^ total >> 33) * _P2 & _MASK
    total = (total ^ total >> 29) * _P3 & _MASK
    return total ^ total >> 32


def signed(word: int) -> int:
    return word - 2**64 if word >> 63 else word


def test_the_oracle_has_the_values_of_the_specification() -> None:
    assert xxh64(b"", 0) == 0xEF46DB3751D8E999
    assert xxh64(b"abc", 0) == 0x44BC2CF5AD770999


@given(st.lists(st.binary(max_size=80) | st.none(), min_size=1), st.integers(0, 3))
def test_bytes_have_their_xxh64_and_nulls_that_of_what_was_before(rows: list[bytes | None], skipped: int) -> None:
    column = pa.array([b"before"] * skipped + rows, pa.binary()).slice(skipped)
    expected = [SEED if row is None else signed(xxh64(row, SEED)) for row in rows]
    assert hashes_of([column], len(rows)).tolist() == expected


@pytest.mark.parametrize(
    ("kind", "size", "values"),
    [
        (pa.int64(), 8, [0, 1, -1, 2**63 - 1, -(2**63)]),
        (pa.timestamp("us", "UTC"), 8, [0, 1, -1]),
        (pa.int32(), 4, [0, 1, -1, 2**31 - 1, -(2**31)]),
        (pa.int16(), 4, [0, 1, -1]),
        (pa.int8(), 4, [0, 1, -128]),
        (pa.date32(), 4, [0, 1, -1]),
        (pa.bool_(), 4, [False, True]),
    ],
)
def test_numbers_are_hashed_as_four_or_eight_bytes(kind: pa.DataType, size: int, values: list[Any]) -> None:
    column = pa.array([values[0], *values, None], kind).slice(1)
    expected = [signed(xxh64(int(value).to_bytes(size, "little", signed=True), SEED)) for value in values]
    assert hashes_of([column], len(column)).tolist() == [*expected, SEED]


def test_equal_floating_point_keys_have_equal_hashes() -> None:
    other_nan = np.frombuffer(b"\1\0\0\0\0\0\xf8\x7f", np.float64)[0]
    found = hashes_of([pa.array([0.0, -0.0, float("nan"), other_nan, 1.5])], 5).tolist()
    assert found[0] == found[1] != found[4]
    assert found[2] == found[3]
    single = hashes_of([pa.array([0.0, -0.0, float("nan"), 1.5], pa.float32())], 4).tolist()
    assert single[0] == single[1] != single[3]


def test_each_column_is_hashed_with_the_hash_of_the_one_before_it() -> None:
    texts, numbers = pa.array(["x", None, "y"]), pa.array([1, 2, None], pa.int64())
    first = [xxh64(b"x", SEED), SEED, xxh64(b"y", SEED)]
    expected = [xxh64((1).to_bytes(8, "little"), first[0]), xxh64((2).to_bytes(8, "little"), first[1]), first[2]]
    assert hashes_of([texts, numbers], 3).tolist() == [signed(one) for one in expected]


def test_buckets_are_never_negative_and_without_keys_there_is_one() -> None:
    found = buckets_of([pa.array(range(1000))], 1000, 7)
    assert set(found.tolist()) == set(range(7))
    assert buckets_of([], 3, 7).tolist() == [0, 0, 0]
