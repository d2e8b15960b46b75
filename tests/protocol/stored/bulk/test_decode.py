"""Stored events become columns, as the architecture lays them out."""

from types import ModuleType
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import Damaged
from penstock.protocol.segment import HEADER_SIZE
from penstock.protocol.stored import NO_TIME, Kind, event
from penstock.protocol.stored.bulk import Wanted, codec, encode_kernel, kernel
from tests.protocol.connector.strategies import blobs, i64s, u64s
from tests.protocol.stored import oracle
from tests.protocol.stored.events import EMPTY_EVENT, IMPLEMENTATIONS, name_of, raw, shown, stored

both = pytest.mark.parametrize("bulk", IMPLEMENTATIONS, ids=name_of)


@both
def test_each_part_of_an_event_is_a_column(bulk: ModuleType) -> None:
    data = stored(7, 8, -9, b"key", b"payload") + stored(2**64 - 1, 2**63, NO_TIME, b"", b"")
    assert shown(bulk.decode(data, 1000)) == {
        "offsets": [1000, 1000 + len(data) - 36],
        "end": 1000 + len(data),
        "stream_ids": [7, -1],
        "event_ids": [8, -(2**63)],
        "event_times": [-9, NO_TIME],
        "without_time": 1,
        "keys": [b"key", b""],
        "values": [b"payload", b""],
        "sources": None,
        "streams": None,
        "metadata": None,
    }


@both
def test_the_origin_is_read_from_metadata_whatever_else_is_there(bulk: ModuleType) -> None:
    others: dict[str, Any] = {
        "content": b"\0" * 300,
        "headers": {"a": [1, -1, 2.5, None, True, {"source": "no"}]},
        "n": 2**40,
    }
    maps: list[dict[str, Any]] = [
        {"source": "sensors", "stream": "tür"},
        {"stream": "x" * 300, **others},
        {**others, "source": "y" * 40},
        {"source": 5, "stream": None},
        others,
    ]
    data = b"".join([stored(metadata=metadata) for metadata in maps] + [stored(payload=b"none")])
    events = bulk.decode(data)
    assert events.sources.rows() == [b"sensors", b"", b"y" * 40, b"", b"", b""]
    assert events.streams.rows() == ["tür".encode(), b"x" * 300, b"", b"", b"", b""]
    assert events.values.rows()[-1] == b"none"


@both
def test_the_last_of_two_sources_counts(bulk: ModuleType) -> None:
    metadata = b"\x82\xa6source\xa1a\xa6source\xa1b"
    assert bulk.decode(stored(metadata=metadata)).sources.rows() == [b"b"]


@both
def test_events_without_data_are_passed_over(bulk: ModuleType) -> None:
    data = EMPTY_EVENT + stored(1, payload=b"a") + EMPTY_EVENT * 2 + stored(2, payload=b"b") + EMPTY_EVENT
    events = bulk.decode(data, 50)
    assert (events.values.rows(), events.offsets.tolist(), events.end) == ([b"a", b"b"], [58, 111], 50 + len(data))


@both
@pytest.mark.parametrize("left", [1, 7, 8, 9, 35, 36, 40])
def test_an_incomplete_event_is_left_in_place(bulk: ModuleType, left: int) -> None:
    first, second = stored(1, payload=b"a"), stored(2, key=b"key", payload=b"bcdef")
    events = bulk.decode(first + second[:left], 5)
    assert (len(events), events.end) == (1, 5 + len(first))
    assert len(bulk.decode(second[:left])) == 0


@both
def test_what_is_not_wanted_is_not_copied(bulk: ModuleType) -> None:
    data = stored(1, 2, 3, b"key", b"value", {"source": "s"})
    nothing = bulk.decode(data, wanted=Wanted(False, False, False))
    assert (nothing.keys, nothing.values, nothing.sources, nothing.streams) == (None,) * 4
    assert (nothing.stream_ids.tolist(), nothing.event_ids.tolist(), nothing.event_times.tolist()) == ([1], [2], [3])


@both
def test_metadata_is_returned_as_it_is_stored_if_requested(bulk: ModuleType) -> None:
    data = stored(key=b"key", metadata={"source": "s", "n": [1]}) + EMPTY_EVENT + stored(payload=b"x")
    events = bulk.decode(data, 7, wanted=Wanted(metadata=True))
    assert events.metadata.rows() == [msgpack.packb({"source": "s", "n": [1]}), b""]
    assert bulk.decode(data, 7).metadata is None


@both
def test_raw_events_are_values_and_nothing_else_the_empty_ones_too(bulk: ModuleType) -> None:
    events = bulk.decode(raw(b"abc") + raw(b"") + raw(b"d") + raw(b"cut")[:9], 10, Kind.RAW)
    expected = dict.fromkeys(("keys", "sources", "streams", "metadata", "stream_ids", "event_ids", "event_times"))
    expected |= {"values": [b"abc", b"", b"d"], "offsets": [10, 21, 29], "end": 38, "without_time": 0}
    assert shown(events) == expected


DAMAGED = {
    "another type": (b"\0\0\0\1" + bytes(40), "type 1, length 0"),
    "a length beyond the limit": (b"\0\0\0\0\1\0\0\0", "type 0, length 16777216"),
    "a negative length": (b"\0\0\0\0\xff\xff\xff\xff", "type 0, length -1"),
    "too few bytes": (raw(bytes(27)), "27 bytes are too few"),
    "a key that is too long": (raw(bytes(24) + b"\0\1" + b"\0\0"), "a key of 1 bytes does not fit"),
    "metadata that are too long": (raw(bytes(24) + b"\0\0" + b"\0\2a"), "metadata of 2 bytes do not fit"),
    "metadata that are no map": (stored(metadata=b"\xa1a"), "metadata: it is not a map"),
    "metadata that are cut off": (stored(metadata=b"\x81\xa6sour"), "metadata: it is cut off"),
    "metadata with something behind": (stored(metadata=b"\x80\xc0"), "metadata: 1 bytes follow the map"),
    "metadata with a byte that begins nothing": (
        stored(metadata=b"\x81\xa0\xc1"),
        "metadata: byte 0xc1 is not valid MessagePack",
    ),
}


@both
@pytest.mark.parametrize("case", DAMAGED)
def test_bytes_that_are_not_a_stored_event_are_reported_with_their_offset(bulk: ModuleType, case: str) -> None:
    data, what = DAMAGED[case]
    good = stored(1, payload=b"fine")
    with pytest.raises(Damaged) as caught:
        bulk.decode(good + data, 1000)
    assert str(caught.value) == f"no stored event starts at offset {1000 + len(good)}: {what}"
    assert caught.value.hint


@both
def test_bytes_that_are_not_a_raw_event_are_reported_with_their_offset(bulk: ModuleType) -> None:
    with pytest.raises(Damaged, match="no raw event starts at offset 19: type 7, length 1"):
        bulk.decode(raw(b"a") + b"\0\0\0\7\0\0\0\1a", 10, Kind.RAW)


@both
def test_the_columns_share_no_memory_with_the_buffer(bulk: ModuleType) -> None:
    data = bytearray(stored(1, 2, 3, b"key", b"value", {"source": "s", "stream": "t"}))
    events = bulk.decode(data)
    before = shown(events)
    data[:] = bytes(len(data))
    assert shown(events) == before


_plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=40) | blobs,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=10,
)
_metadata = st.dictionaries(st.sampled_from(["source", "stream", "other", "sourcf"]), _plain, max_size=4)


@pytest.mark.slow
@given(st.lists(st.tuples(u64s, u64s, i64s, blobs, blobs, _metadata), max_size=10), st.integers(0, 2**60))
def test_both_decode_the_same_and_find_what_msgpack_finds(rows: list[tuple], offset: int) -> None:  # type: ignore[type-arg]
    data = b"".join(stored(*row) for row in rows)
    first, second = codec.decode(data, offset), oracle.decode(data, offset)
    assert shown(first) == shown(second)
    for label, found in (("source", first.sources), ("stream", first.streams)):
        told = [row[-1].get(label) for row in rows]
        expected = [text.encode() if isinstance(text, str) else b"" for text in told]
        assert (found.rows() if found is not None else [b""] * len(rows)) == expected


@pytest.mark.parametrize("kernels", [kernel, encode_kernel], ids=name_of)
def test_the_numbers_of_the_kernels_are_those_of_the_layout(kernels: ModuleType) -> None:
    assert (kernels.HEADER, kernels.KEY_START) == (HEADER_SIZE, event.KEY_START)
    assert (kernels.LENGTH_MIN, kernels.LENGTH_MAX) == (event.LENGTH_MIN, event.LENGTH_MAX)
    assert (encode_kernel.SHORT_MAX, kernel.NO_TIME) == (event.SHORT_MAX, event.NO_TIME)
