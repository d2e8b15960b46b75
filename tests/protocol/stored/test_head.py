"""The head of an ingest record: its bytes, a round trip, and many of them folded into one."""

import struct

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import Damaged
from penstock.protocol.stored.head import (
    NO_COLUMNS,
    HeadFold,
    Mark,
    MarkKind,
    StreamColumns,
    encode_head,
    fold_fast,
    fold_heads,
    fold_plainly,
)
from tests.support.heads import Head, decode_head

U64 = st.integers(0, 2**64 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
MARKS = st.builds(Mark, U64, st.sampled_from(MarkKind), NAMES, st.none() | I64, st.none() | U64)
STREAMS = st.dictionaries(U64, st.tuples(U64, I64))
FEW_STREAMS = st.dictionaries(st.sampled_from([0, 1, 7, 2**63, 2**64 - 1]), st.tuples(U64, I64))


def columns_of(streams: dict[int, tuple[int, int]]) -> StreamColumns:
    count = len(streams)
    return StreamColumns(
        struct.pack(f"<{count}Q", *streams),
        struct.pack(f"<{count}Q", *(last for last, _ in streams.values())),
        struct.pack(f"<{count}q", *(highest for _, highest in streams.values())),
    )


@given(STREAMS, st.lists(MARKS), st.integers(0, 2**32))
def test_what_goes_in_comes_out(streams: dict[int, tuple[int, int]], marks: list[Mark], count: int) -> None:
    assert decode_head(encode_head(columns_of(streams), marks, count)) == Head(
        {stream_id: last for stream_id, (last, _) in streams.items()},
        {stream_id: highest for stream_id, (_, highest) in streams.items()},
        marks,
        count,
    )


def test_the_bytes_are_three_columns_a_list_of_marks_and_the_number_of_events() -> None:
    columns = StreamColumns(struct.pack("<Q", 7), struct.pack("<Q", 9), struct.pack("<q", -1))
    packed = encode_head(columns, [Mark(7, MarkKind.STARTED, "name")], 3)
    assert msgpack.unpackb(packed) == [*columns, [[7, 1, "name"]], 3]
    assert packed == bytes.fromhex(
        "95 c408 0700000000000000 c408 0900000000000000 c408 ffffffffffffffff 91 93 07 01 a4 6e616d65 03".replace(
            " ", ""
        )
    )


def test_a_mark_is_followed_by_its_own_fields_and_nothing_else() -> None:
    marks = [Mark(7, MarkKind.ENDED), Mark(7, MarkKind.WATERMARK, "", -5), Mark(1, MarkKind.CLOCK, "", 90, 2)]
    *_, packed, _ = msgpack.unpackb(encode_head(NO_COLUMNS, marks, 0))
    assert packed == [[7, 2, ""], [7, 6, "", -5], [1, 7, "", 90, 2]]


def test_a_head_of_marks_alone_has_empty_columns() -> None:
    assert decode_head(encode_head(NO_COLUMNS, [Mark(1, MarkKind.ENDED)], 0)) == Head(
        {}, {}, [Mark(1, MarkKind.ENDED, "")], 0
    )


def test_a_missing_head_is_empty_and_an_unreadable_one_is_damage() -> None:
    assert decode_head(b"") is None
    good = encode_head(columns_of({7: (9, 1)}), [Mark(7, MarkKind.STARTED, "name")], 1)
    uneven = msgpack.packb([bytes(8), bytes(16), bytes(8), [], 1])
    odd = msgpack.packb([bytes(3), bytes(3), bytes(3), [], 1])
    no_mark = msgpack.packb([b"", b"", b"", [[7, 99, ""]], 0])
    for bad in (good[:-1], good + b"\0", b"\xc1", b"\x93\1\2\3", b"\1", uneven, odd, no_mark):
        with pytest.raises(Damaged, match="head"):
            decode_head(bad)


@given(st.lists(st.tuples(FEW_STREAMS, st.lists(MARKS, max_size=2), st.integers(0, 100))))
def test_a_fold_has_the_last_id_the_highest_time_all_marks_and_the_sum_of_the_counts(
    records: list[tuple[dict[int, tuple[int, int]], list[Mark], int]],
) -> None:
    last: dict[int, int] = {}
    highest: dict[int, int] = {}
    for streams, _, _ in records:
        for stream_id, (last_id, time) in streams.items():
            last[stream_id] = last_id
            highest[stream_id] = max(time, highest.get(stream_id, time))
    heads = [(n, encode_head(columns_of(s), marks, count)) for n, (s, marks, count) in enumerate(records)]
    fold = fold_heads("a", [*heads, (99, b"")])
    assert (fold.last, fold.highest) == (last, highest)
    assert fold.stream_ids.tolist() == sorted(last)
    assert fold.marks == [mark for _, marks, _ in records for mark in marks]
    assert fold.count == sum(count for _, _, count in records)


@given(st.lists(FEW_STREAMS | STREAMS))
def test_both_ways_to_fold_columns_agree(records: list[dict[int, tuple[int, int]]]) -> None:
    columns = StreamColumns(*map(b"".join, zip(NO_COLUMNS, *map(columns_of, records), strict=True)))
    assert fold_fast(columns) == fold_plainly(columns)


def test_a_fold_of_nothing_is_empty() -> None:
    assert fold_heads("a", []) == HeadFold(*fold_plainly(NO_COLUMNS), [], 0)


def test_damage_in_a_fold_names_the_segment_and_the_record() -> None:
    with pytest.raises(Damaged, match="'connector/x/0', the record that ends at 80"):
        fold_heads("connector/x/0", [(40, encode_head(NO_COLUMNS, [], 1)), (80, b"\xc1")])
