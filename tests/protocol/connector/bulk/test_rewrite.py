"""Messages that are kept become stored events, as the architecture lays them out."""

import struct
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.protocol.connector import Message
from penstock.protocol.connector.bulk import Stored, decoder
from penstock.protocol.connector.frames import EventTimeUnit
from penstock.protocol.stored.head import NO_COLUMNS
from tests.protocol.connector import oracle
from tests.protocol.connector.messages import IMPLEMENTATIONS, name_of, run_of
from tests.protocol.connector.strategies import blobs, i64s
from tests.support.segment_bytes import split_events

both = pytest.mark.parametrize("bulk", IMPLEMENTATIONS, ids=name_of)


def rewritten(bulk: ModuleType, sent: list[Message], routes: dict[int, int], route: int = 0) -> Stored:
    table = bulk.StreamTable(1)
    for stream_id, chosen in routes.items():
        table.open(stream_id, route=chosen)
    columns = bulk.scan(bytearray(run_of(*sent)))
    stored: list[Stored] = bulk.rewrite(columns, table.admit(columns, EventTimeUnit.US), route + 1)
    assert len(stored) == route + 1
    return stored[route]


@both
def test_a_stored_event_is_laid_out_as_the_architecture_reports(bulk: ModuleType) -> None:
    stored = rewritten(bulk, [Message(7, 8, -9, b"key", b"payload")], {7: 0})
    assert stored.count == 1
    assert stored.data.hex(" ", 4) == (
        struct.pack(">ii", 0, 38) + struct.pack(">QQq", 7, 8, -9) + b"\0\3key" + b"\0\0" + b"payload"
    ).hex(" ", 4)


@both
def test_each_route_gets_its_streams_and_no_duplicates(bulk: ModuleType) -> None:
    sent = [Message(stream, number, 0, b"", bytes((stream, number))) for number in (1, 2, 2) for stream in (1, 2, 3)]
    routes = {1: 0, 2: 254, 3: 0}
    payloads = [bytes(event[-2:]) for event in split_events(rewritten(bulk, sent, routes, 0).data)]
    assert payloads == [b"\1\1", b"\3\1", b"\1\2", b"\3\2"]
    assert rewritten(bulk, sent, routes, 254).count == 2
    assert rewritten(bulk, sent, routes, 1) == Stored(0, memoryview(b""), NO_COLUMNS)


@given(st.lists(st.tuples(st.integers(0, 3), i64s, blobs, blobs), max_size=20), st.integers(0, 1))
def test_both_store_the_same_events(fields: list[tuple[int, int, bytes, bytes]], route: int) -> None:
    sent = [Message(stream, number, *fields[number][1:]) for number, (stream, *_) in enumerate(fields)]
    routes = {0: 0, 1: 1, 2: 0, 3: 1}
    first, second = rewritten(decoder, sent, routes, route), rewritten(oracle, sent, routes, route)
    assert first == second
    assert len(split_events(first.data)) == first.count == sum(routes[m.stream_id] == route for m in sent)


@both
def test_stored_events_are_a_copy(bulk: ModuleType) -> None:
    data = bytearray(run_of(Message(7, 8, 9, b"key", b"payload")))
    table = bulk.StreamTable(1)
    table.open(7)
    columns = bulk.scan(data)
    (stored,) = bulk.rewrite(columns, table.admit(columns, EventTimeUnit.US))
    before = bytes(stored.data)
    data[:] = bytes(len(data))
    assert bytes(stored.data) == before
