"""Rows for a stream of Pravega's clients, without Spark."""

from collections.abc import Sequence

import pyarrow as pa
import pytest

from penstock.core.errors import LimitExceeded, RequestError
from penstock.protocol.api.pipelines import Span
from penstock.spark.sink import routing
from penstock.spark.sink.routing import hashes, routed_blocks
from tests.coordinator.scene import raw

HALVES = [Span("left", 0.0, 0.5), Span("right", 0.5, 1.0)]


def batch(**columns: Sequence[str | bytes | None]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


PLACES = {
    "": 3,
    "a": 15,
    "k0": 9,
    "k1": 6,
    "k2": 12,
    "sensor-7": 14,
    "x" * 50: 6,
    "äö": 14,
    "日本語": 14,
    "😀a": 4,
    "éclair au chocolat": 4,
}


def test_keys_are_placed_as_by_the_clients() -> None:
    """Where Pravega's Python client has written them, in a stream of sixteen segments."""
    found = hashes(pa.array([*PLACES]))
    assert dict(zip(PLACES, (int(place * 16) for place in found), strict=True)) == PLACES
    as_bytes = pa.array([key.encode() for key in PLACES], pa.binary())
    assert hashes(as_bytes).tolist() == found.tolist()


def test_rows_of_a_key_go_to_one_segment_in_order() -> None:
    keys = [f"k{number % 7}" for number in range(70)]
    values = [f"{key} {number}".encode() for number, key in enumerate(keys)]
    found = [*routed_blocks(batch(key=keys, value=values), "out", HALVES, 0)]
    assert [(one.port, one.target) for one in found] == [("out.0", "left"), ("out.1", "right")]
    places = dict(zip(keys, hashes(pa.array(keys)), strict=True))
    for block, (low, high) in zip(found, ((0.0, 0.5), (0.5, 1.0)), strict=True):
        mine = [value for key, value in zip(keys, values, strict=True) if low <= places[key] < high]
        assert (bytes(block.data), block.rows) == (raw(*mine), len(mine))


def test_rows_without_a_key_go_to_one_segment_for_each_partition() -> None:
    rows = batch(value=["one", "two"])
    segments = {partition: [*routed_blocks(rows, "out", HALVES, partition)] for partition in range(10)}
    assert all(len(blocks) == 1 for blocks in segments.values())
    assert {blocks[0].target for blocks in segments.values()} == {"left", "right"}
    with_null = batch(value=["one", "two", "three"], key=[None, None, "k"]).slice(0, 2)
    assert [one.target for one in routed_blocks(with_null, "out", HALVES, 3)] == [segments[3][0].target]
    assert bytes(segments[3][0].data) == raw(b"one", b"two")


def test_blocks_are_of_limited_size_and_values_may_be_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "BLOCK_BYTES", 30)
    values = ["", "0123456789", "01234567890123456789012345678901234567890", "a", "b"]
    found = [*routed_blocks(batch(value=values), "out", HALVES[:1], 0)]
    assert [one.rows for one in found] == [2, 1, 2]
    assert b"".join(bytes(one.data) for one in found) == raw(*map(str.encode, values))
    assert [*routed_blocks(batch(value=values).slice(0, 0), "out", HALVES, 0)] == []
    part = [*routed_blocks(batch(value=values, key=values).slice(3), "out", HALVES[:1], 0)]
    assert [bytes(one.data) for one in part] == [raw(b"a", b"b")]


def test_keys_are_text_and_values_have_the_limit_of_the_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RequestError, match="UTF-8"):
        [*routed_blocks(batch(value=["v"], key=[b"\xff"]), "out", HALVES, 0)]
    with pytest.raises(RequestError, match="UTF-8"):
        hashes(pa.array([b"\xc3", b"\xa4"]))  # one letter, if they were one key
    with pytest.raises(RequestError, match="null"):
        [*routed_blocks(batch(value=["v", None]), "out", HALVES, 0)]
    monkeypatch.setattr(routing, "VALUE_BYTES_MAX", 3)
    with pytest.raises(LimitExceeded, match="Pravega"):
        [*routed_blocks(batch(value=["four"]), "out", HALVES, 0)]
