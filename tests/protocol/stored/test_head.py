"""The head of an ingest record, there and back, and its bytes."""

import struct

import msgpack
from hypothesis import given
from hypothesis import strategies as st

from penstock.gateway.head import NO_COLUMNS, Head, Mark, MarkKind, decode_head, encode_head
from penstock.protocol.connector.bulk import StreamColumns

U64 = st.integers(0, 2**64 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
MARKS = st.builds(Mark, U64, st.sampled_from(MarkKind), st.text(st.characters(exclude_categories=["Cs"]), max_size=20))


@given(st.dictionaries(U64, st.tuples(U64, I64)), st.lists(MARKS))
def test_what_is_put_in_comes_out(streams: dict[int, tuple[int, int]], marks: list[Mark]) -> None:
    count = len(streams)
    columns = StreamColumns(
        struct.pack(f"<{count}Q", *streams),
        struct.pack(f"<{count}Q", *(last for last, _ in streams.values())),
        struct.pack(f"<{count}q", *(highest for _, highest in streams.values())),
    )
    assert decode_head(encode_head(columns, marks)) == Head(
        {stream_id: last for stream_id, (last, _) in streams.items()},
        {stream_id: highest for stream_id, (_, highest) in streams.items()},
        marks,
    )


def test_the_bytes_are_three_columns_and_a_list_of_marks() -> None:
    columns = StreamColumns(struct.pack("<Q", 7), struct.pack("<Q", 9), struct.pack("<q", -1))
    packed = encode_head(columns, [Mark(7, MarkKind.STARTED, "name")])
    assert msgpack.unpackb(packed) == [*columns, [[7, 1, "name"]]]
    assert packed == bytes.fromhex(
        "94 c408 0700000000000000 c408 0900000000000000 c408 ffffffffffffffff 91 93 07 01 a4 6e616d65".replace(" ", "")
    )


def test_a_head_of_marks_alone_has_empty_columns() -> None:
    assert decode_head(encode_head(NO_COLUMNS, [Mark(1, MarkKind.ENDED)])) == Head(
        {}, {}, [Mark(1, MarkKind.ENDED, "")]
    )
