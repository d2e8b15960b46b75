"""Rows become stored events: all of them, each port's in order, in blocks of a bounded size."""

import random
from collections import defaultdict
from typing import Any

import msgpack
import pyarrow as pa
import pytest

from penstock.core.errors import LimitExceeded, RequestError
from penstock.protocol.stored.bulk import Events, Wanted, decode
from penstock.protocol.stored.event import NO_TIME
from penstock.spark.sink.rows import BLOCK_BYTES, EVENT_BYTES_MAX, Block, blocks

UTC_US = pa.timestamp("us", tz="UTC")


def batch(types: dict[str, Any] | None = None, **columns: list[Any]) -> pa.RecordBatch:
    types = {"value": pa.binary(), "event_time": UTC_US, "stream_id": pa.int64(), "message_id": pa.int64()} | (
        types or {}
    )
    return pa.record_batch({name: pa.array(rows, types.get(name, pa.string())) for name, rows in columns.items()})


def events(block: Block) -> Events:
    found = decode(block.data)
    assert len(found) == block.rows
    assert found.end == len(block.data)
    return found


def values_of(block: Block) -> list[bytes]:
    column = events(block).values
    assert column is not None
    return column.rows()


def values(rows: pa.RecordBatch, port: str = "out") -> dict[str, list[bytes]]:
    """What goes to each port."""
    found: dict[str, list[bytes]] = defaultdict(list)
    for block in blocks(rows, port):
        found[block.port] += values_of(block)
    return dict(found)


def test_a_row_with_only_a_value_has_no_key_time_or_origin() -> None:
    (block,) = blocks(batch(value=[b"a", b""]), "out")
    found = events(block)
    assert block.port == "out"
    assert found.values is not None
    assert found.values.rows() == [b"a", b""]
    assert found.keys is not None
    assert found.keys.rows() == [b"", b""]
    assert found.event_times is not None
    assert found.event_times.tolist() == [NO_TIME, NO_TIME]
    assert found.stream_ids is not None
    assert found.stream_ids.tolist() == [0, 0]
    assert found.sources is None


def test_metadata_are_stored_with_the_origin_and_null_means_none() -> None:
    given = {"reason": "why", "source": "theirs"}
    rows = batch(
        {"metadata": pa.binary()},
        value=[b"1", b"2", b"3"],
        source=["sensors", None, None],
        metadata=[msgpack.packb(given), msgpack.packb(given), None],
    )
    (block,) = blocks(rows, "err")
    found = decode(block.data, wanted=Wanted(metadata=True))
    assert found.metadata is not None
    assert [msgpack.unpackb(one) if one else {} for one in found.metadata.rows()] == [
        {"source": "sensors", "reason": "why"},
        given,
        {},
    ]
    with pytest.raises(RequestError, match="row 0: its metadata cannot be stored: it is not a map"):
        [*blocks(batch({"metadata": pa.binary()}, value=[b"1"], metadata=[b"text"]), "out")]


def test_every_column_is_kept_and_missing_values_are_null() -> None:
    rows = batch(
        value=[b"1", b"2"],
        key=["k", None],
        event_time=[1_700_000_000_000_001, None],
        stream=["lane 4", None],
        source=["sensors", None],
        stream_id=[-5, None],
        message_id=[2**63 - 1, None],
    )
    (block,) = blocks(rows, "out")
    found = events(block)
    assert found.keys is not None
    assert found.keys.rows() == [b"k", b""]
    assert found.event_times is not None
    assert found.event_times.tolist() == [1_700_000_000_000_001, NO_TIME]
    assert found.stream_ids is not None
    assert found.stream_ids.tolist() == [-5, 0]
    assert found.event_ids is not None
    assert found.event_ids.tolist() == [2**63 - 1, 0]
    assert found.sources is not None
    assert found.sources.rows() == [b"sensors", b""]
    assert found.streams is not None
    assert found.streams.rows() == [b"lane 4", b""]


@pytest.mark.parametrize("kind", [pa.binary(), pa.string(), pa.large_binary(), pa.large_string()])
def test_binary_and_string_of_either_width_are_the_same_bytes(kind: Any) -> None:
    rows = batch({"value": kind, "key": kind}, value=["é", "b", "c"], key=["x", None, "z"])
    (block,) = blocks(rows, "out")
    found = events(block)
    assert found.values is not None
    assert found.values.rows() == ["é".encode(), b"b", b"c"]
    assert found.keys is not None
    assert found.keys.rows() == [b"x", b"", b"z"]


def test_a_slice_of_a_batch_has_only_its_own_rows() -> None:
    rows = batch(value=[b"%d" % n for n in range(100)], event_time=list(range(100)), key=[str(n) for n in range(100)])
    (block,) = blocks(rows.slice(40, 3), "out")
    found = events(block)
    assert found.values is not None
    assert found.values.rows() == [b"40", b"41", b"42"]
    assert found.event_times is not None
    assert found.event_times.tolist() == [40, 41, 42]


def test_rows_go_to_the_ports_they_name_in_order() -> None:
    chance = random.Random(7)
    ports = [chance.choice(["out", "late", "dead-letters", None]) for _ in range(5000)]
    numbered = [b"%d" % n for n in range(5000)]
    expected: dict[str, list[bytes]] = defaultdict(list)
    for port, value in zip(ports, numbered, strict=True):
        expected[port or "main"].append(value)
    assert values(batch(value=numbered, port=ports), "main") == expected


def test_rows_that_all_name_the_same_port_go_to_that_port() -> None:
    assert values(batch(value=[b"a", b"b"], port=["late", "late"])) == {"late": [b"a", b"b"]}
    assert values(batch(value=[b"a", b"b"], port=[None, None])) == {"out": [b"a", b"b"]}


def test_without_rows_there_is_no_block() -> None:
    assert list(blocks(batch(value=[], port=[]), "out")) == []


def test_an_invalid_port_name_is_refused() -> None:
    with pytest.raises(RequestError, match="'a/b' is not a valid port name"):
        list(blocks(batch(value=[b"a"], port=["a/b"]), "out"))


def test_many_rows_are_split_into_blocks_of_bounded_size() -> None:
    chance = random.Random(3)
    numbered = [b"%d" % n * chance.randrange(1, 300) for n in range(6000)]
    made = list(blocks(batch(value=numbered, key=["k" * chance.randrange(9) for _ in numbered]), "out"))
    assert [value for block in made for value in values_of(block)] == numbered
    assert len(made) > 3
    assert all(len(block.data) <= BLOCK_BYTES for block in made)
    assert all(len(block.data) > BLOCK_BYTES * 0.9 for block in made[:-1])


def test_a_row_larger_than_a_block_is_a_separate_block() -> None:
    large = b"x" * (2 * BLOCK_BYTES)
    assert [block.rows for block in blocks(batch(value=[b"a", b"b", large, b"c", large]), "out")] == [2, 1, 1, 1]


def test_the_largest_event_is_accepted_and_one_byte_more_is_refused_with_its_size() -> None:
    room = EVENT_BYTES_MAX - 36
    (block,) = blocks(batch(value=[b"x" * room]), "out")
    assert len(block.data) == EVENT_BYTES_MAX
    with pytest.raises(LimitExceeded, match=r"a row of 9,437,185 bytes \(9,437,149 of them its value\).*9,437,184"):
        list(blocks(batch(value=[b"a", b"x" * (room + 1)]), "out"))


def test_an_origin_that_makes_an_event_too_large_is_refused() -> None:
    with pytest.raises(LimitExceeded, match=r"of them its value\) is over the limit"):
        list(blocks(batch(value=[b"x" * (EVENT_BYTES_MAX - 46)], source=["sensors"]), "out"))


def test_a_null_value_is_refused_and_the_row_is_named() -> None:
    with pytest.raises(RequestError, match="`value` is null in row 2 of 3") as caught:
        list(blocks(batch(value=[b"a", b"b", None]), "out"))
    assert "coalesce" in caught.value.hint
