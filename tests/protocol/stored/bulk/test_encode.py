"""Rows become stored events; read back, they are what they were."""

from array import array
from types import ModuleType
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import LimitExceeded, RequestError
from penstock.protocol.stored import NO_TIME
from penstock.protocol.stored.bulk import Bytes, Wanted, codec
from tests.protocol.connector.strategies import blobs, i64s, u64s
from tests.protocol.stored import oracle
from tests.protocol.stored.events import IMPLEMENTATIONS, column, name_of, shown, shown_encoded, stored
from tests.support.segment_bytes import split_events

both = pytest.mark.parametrize("bulk", IMPLEMENTATIONS, ids=name_of)


@both
def test_a_row_is_laid_out_as_the_architecture_reports(bulk: ModuleType) -> None:
    encoded = bulk.encode(
        column([b"payload", b""]),
        keys=column([b"key", b""]),
        event_times=array("q", [-9, NO_TIME]),
        stream_ids=array("Q", [7, 2**64 - 1]),
        event_ids=array("q", [8, -1]),
        sources=column([b"sensors", b""]),
        streams=column([b"", b"a"]),
    )
    first = stored(7, 8, -9, b"key", b"payload", {"source": "sensors"})
    second = stored(2**64 - 1, 2**64 - 1, NO_TIME, metadata={"stream": "a"})
    assert shown_encoded(encoded) == (first + second, [0, len(first), len(first) + len(second)])
    assert len(encoded) == 2


@both
def test_missing_columns_mean_empty_values(bulk: ModuleType) -> None:
    assert bytes(bulk.encode(column([b"a"])).data) == stored(time=NO_TIME, payload=b"a")
    assert shown_encoded(bulk.encode(column([]))) == (b"", [0])


@both
@pytest.mark.parametrize("size", [1, 31, 32, 255, 256, 60_000])
def test_metadata_is_what_msgpack_would_write(bulk: ModuleType, size: int) -> None:
    encoded = bulk.encode(column([b"v"]), sources=column([b"s" * size]), streams=column([b"t" * 31]))
    metadata = {"source": "s" * size, "stream": "t" * 31}
    assert bytes(encoded.data) == stored(time=NO_TIME, payload=b"v", metadata=msgpack.packb(metadata))


@pytest.mark.parametrize("size", [0, 1, 14, 15, 16, 300])
def test_metadata_of_all_rows_is_stored_in_each(size: int) -> None:
    shared = msgpack.packb({f"key {number}": number for number in range(size)}) if size else b""
    rows = column([b"one", b"", b"three"])
    each = codec.encode(rows, metadata=column([shared] * 3))
    assert shown_encoded(codec.encode(rows, metadata=shared)) == shown_encoded(each)


@both
def test_other_metadata_follows_the_origin_which_overrides_its_own(bulk: ModuleType) -> None:
    given = [{"reason": "why", "source": "theirs"}, {"stream": "t", "deep": {"source": "in"}}, {}, {"source": "kept"}]
    encoded = bulk.encode(
        column([b""] * 4),
        sources=column([b"ours", b"s", b"", b""]),
        streams=column([b"", b"u", b"", b""]),
        metadata=column([msgpack.packb(one) for one in given]),
    )
    told: list[dict[str, Any] | bytes] = [
        {"source": "ours", "reason": "why"},
        {"source": "s", "stream": "u", "deep": {"source": "in"}},
        b"",
        {"source": "kept"},
    ]
    assert bytes(encoded.data) == b"".join(stored(time=NO_TIME, metadata=one) for one in told)


@both
@pytest.mark.parametrize("others", [14, 15, 16, 300])
def test_the_head_of_a_map_is_as_short_as_it_can_be(bulk: ModuleType, others: int) -> None:
    given = {f"k{number}": number for number in range(others)}
    encoded = bulk.encode(column([b"v"]), sources=column([b"s"]), metadata=column([msgpack.packb(given)]))
    assert bytes(encoded.data) == stored(time=NO_TIME, payload=b"v", metadata={"source": "s", **given})


NO_METADATA = {
    "text": (b"\xa1a", "it is not a map"),
    "cut off": (b"\x81\xa1a", "it is cut off"),
    "more": (b"\x80\xc0", "1 bytes follow the map"),
    "a key that is a number": (b"\x81\x01\x02", "a key is not a str"),
}


@both
@pytest.mark.parametrize("case", NO_METADATA)
def test_unreadable_metadata_is_refused_with_its_row(bulk: ModuleType, case: str) -> None:
    data, why = NO_METADATA[case]
    with pytest.raises(RequestError) as caught:
        bulk.encode(column([b"", b""]), metadata=column([b"\x80", data]))
    assert str(caught.value) == f"row 1: its metadata cannot be stored: {why}"
    assert caught.value.hint


@both
@pytest.mark.parametrize("code", ["i", "q"])
def test_a_slice_of_a_larger_column_is_accepted_as_it_is(bulk: ModuleType, code: str) -> None:
    plain = bulk.encode(column([b"a", b"bc"]), keys=column([b"k", b"l"]))
    sliced = bulk.encode(column([b"a", b"bc"], code, b"before"), keys=column([b"k", b"l"], code, b"more before"))
    assert shown_encoded(plain) == shown_encoded(sliced)


TOO_LARGE = {
    "key": ({"keys": [b"", bytes(2**16)]}, "row 1: its key would have 65,536 bytes, the limit is 65,535"),
    "metadata": ({"sources": [b"", b"a" * 2**16]}, "row 1: its metadata would have 65,549 bytes, the limit is 65,535"),
    "more metadata": (
        {"sources": [b"", b"a"], "metadata": [b"", msgpack.packb({"b": b"b" * 65_521})]},
        "row 1: its metadata would have 65,536 bytes, the limit is 65,535",
    ),
    "event": ({"values": [b"", bytes(2**24)]}, "row 1: its event would have 16,777,244 bytes, the limit is 16,777,207"),
}


@both
@pytest.mark.parametrize("what", TOO_LARGE)
def test_a_row_that_is_too_large_is_named(bulk: ModuleType, what: str) -> None:
    rows, text = TOO_LARGE[what]
    columns = {"values": column([b"", b""])} | {name: column(cells) for name, cells in rows.items()}
    with pytest.raises(LimitExceeded) as caught:
        bulk.encode(**columns)
    assert str(caught.value) == text


@both
def test_the_largest_key_metadata_and_event_are_stored(bulk: ModuleType) -> None:
    key, source = b"k" * (2**16 - 1), b"s" * (2**16 - 1 - 11)
    value = bytes(2**24 - 9 - 28 - 2 * (2**16 - 1))
    encoded = bulk.encode(column([value]), keys=column([key]), sources=column([source]))
    events = bulk.decode(encoded.data)
    assert (events.keys.row(0), events.sources.row(0), events.values.row(0)) == (key, source, value)


@both
@pytest.mark.parametrize(
    "offsets", [[0, 3, 2], [0, 5, 9], [-1, 0, 2], [2, 1, 4]], ids=["falling", "outside", "negative", "from behind"]
)
def test_offsets_that_do_not_fit_their_data_are_refused(bulk: ModuleType, offsets: list[int]) -> None:
    with pytest.raises(ValueError, match="offsets"):
        bulk.encode(column([b"", b""]), keys=Bytes(array("q", offsets), b"12345"))


@both
def test_columns_of_different_lengths_are_refused(bulk: ModuleType) -> None:
    with pytest.raises(ValueError, match="a column has 1 rows, the values have 2"):
        bulk.encode(column([b"a", b"b"]), event_times=array("q", [1]))


_names = st.text(max_size=40).map(str.encode)
_labels = st.sampled_from(["source", "stream", "reason", ""]) | st.text(max_size=8)
_others = st.just(b"") | st.dictionaries(_labels, _names | st.integers(0, 9) | st.lists(_names)).map(msgpack.packb)
_rows = st.lists(st.tuples(blobs, blobs, i64s, u64s, u64s, _names, _names, _others), max_size=20)


def columns_of(rows: list[tuple[Any, ...]]) -> dict[str, Any]:
    values, keys, times, stream_ids, event_ids, sources, streams, others = (
        zip(*rows, strict=True) if rows else ((),) * 8
    )
    return {
        "values": column(values),
        "keys": column(keys, "i"),
        "event_times": np.array(times, np.int64),
        "stream_ids": np.array(stream_ids, np.uint64),
        "event_ids": np.array(event_ids, np.uint64),
        "sources": column(sources),
        "streams": column(streams),
        "metadata": column(others),
    }


@pytest.mark.slow
@given(_rows)
def test_both_encode_the_same_and_what_they_encode_is_read_back(rows: list[tuple[Any, ...]]) -> None:
    columns = columns_of(rows)
    first, second = codec.encode(**columns), oracle.encode(**columns)
    assert shown_encoded(first) == shown_encoded(second)
    assert len(split_events(first.data)) == len(rows)
    events = codec.decode(first.data)
    found = shown(events)
    assert found["offsets"] == first.starts.tolist()[:-1]
    assert found["event_times"] == columns["event_times"].tolist()
    assert found["stream_ids"] == columns["stream_ids"].view(np.int64).tolist()
    assert found["event_ids"] == columns["event_ids"].view(np.int64).tolist()
    for name in ("values", "keys"):
        assert found[name] == columns[name].rows()
    told = codec.decode(first.data, wanted=Wanted(metadata=True)).metadata
    assert told is not None
    for row, metadata in zip(rows, told.rows(), strict=True):
        expected = msgpack.unpackb(row[-1]) if row[-1] else {}
        expected |= {name: text.decode() for name, text in zip(("source", "stream"), row[5:7], strict=True) if text}
        assert (msgpack.unpackb(metadata) if metadata else {}) == expected
