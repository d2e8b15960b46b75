"""The bytes of records, headers and trailers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.types import Offset, Position, SegmentId
from penstock.store.operations import (
    Append,
    Create,
    Merge,
    Operation,
    SetAttribute,
    UnknownOperation,
    pack,
    unpack,
)
from penstock.store.record import (
    CHAPTER_HEADER_BYTES,
    RECORD_HEADER_BYTES,
    NotAChapter,
    OtherFormat,
    chapter_header,
    checksum,
    head_is_sound,
    parse_chapter_header,
    parse_record_header,
    parse_trailer,
    record_head,
    trailer,
)

U32, U64 = st.integers(0, 2**32 - 1), st.integers(0, 2**63 - 1)


@given(meta=st.binary(max_size=50), chain=U32, term=U32, position=U64, durable=U64, length=U32)
def test_a_record_header_round_trips(
    meta: bytes, chain: int, term: int, position: int, durable: int, length: int
) -> None:
    head, value = record_head(meta, chain=chain, term=term, position=position, durable=durable, data_length=length)
    header = parse_record_header(head)
    assert header == (value, chain, term, position, durable, len(meta), length)
    assert head_is_sound(header, head)
    assert header.end == position + RECORD_HEADER_BYTES + len(meta) + length


@given(bit=st.integers(32, 8 * (RECORD_HEADER_BYTES + 5) - 1))
def test_the_checksum_covers_the_header_and_the_meta(bit: int) -> None:
    head, _ = record_head(b"metas", chain=1, term=2, position=3, durable=3, data_length=4)
    broken = bytearray(head)
    broken[bit // 8] ^= 1 << bit % 8
    header = parse_record_header(broken)
    assert header is None or not head_is_sound(header, broken)


def test_a_record_header_has_the_bytes_of_the_specification() -> None:
    head, value = record_head(b"\x90", chain=7, term=1, position=100, durable=90, data_length=0)
    assert head[:4] == b"PREC"
    assert head[4:8] == value.to_bytes(4, "little")
    assert head[8:] == bytes.fromhex("07000000 01000000 6400000000000000 5a00000000000000 01000000 00000000 90")
    assert value == checksum([head[8:]])


def test_a_chapter_header_round_trips() -> None:
    header = chapter_header(Position(2**40), 77)
    assert len(header) == CHAPTER_HEADER_BYTES
    assert parse_chapter_header(header) == (77, 2**40)


@given(bit=st.integers(0, 8 * CHAPTER_HEADER_BYTES - 1))
def test_a_chapter_header_with_any_flipped_bit_is_rejected(bit: int) -> None:
    header = bytearray(chapter_header(Position(5), 6))
    header[bit // 8] ^= 1 << bit % 8
    with pytest.raises(NotAChapter):
        parse_chapter_header(bytes(header))


@pytest.mark.parametrize("other", [1, 3])
def test_a_sound_header_of_another_format_is_not_damage(other: int) -> None:
    front = chapter_header(Position(5), 6)[:-4]
    changed = front[:8] + other.to_bytes(4, "little") + front[12:]
    with pytest.raises(OtherFormat, match=f"format {other}; this version reads format 2"):
        parse_chapter_header(changed + checksum([changed]).to_bytes(4, "little"))


def test_a_trailer_has_the_position_of_the_index_and_other_bytes_are_not_a_trailer() -> None:
    assert parse_trailer(trailer(Position(4711))) == 4711
    assert parse_trailer(bytes(16)) is None
    assert parse_trailer(trailer(Position(1))[:-1]) is None


def test_operations_round_trip() -> None:
    segment = SegmentId(2**40)
    operations: list[Operation] = [
        Create(segment, "näme"),
        Append(segment, Offset(2**50), b"w" * 16, -(2**63), 3, 4, 2**32 - 1),
        Merge(segment, Offset(0), SegmentId(1), 5),
        SetAttribute(segment, bytes(16), -(2**63)),
    ]
    assert unpack(pack(operations)) == operations


def test_an_operation_of_a_newer_version_is_distinguished_from_damage() -> None:
    with pytest.raises(UnknownOperation, match="operation 11"):
        unpack(b"\x91\x92\x0b\x01")
