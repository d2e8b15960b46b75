"""Messages are kept once: ids grow in each stream, and what is not above the last one kept is dropped."""

from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.protocol.connector import NOTHING_YET, Ack, Acked, Message, decode
from penstock.protocol.connector.bulk import DROPPED, NO_TIME, Problem, decoder
from penstock.protocol.connector.frames import EventTimeUnit
from tests.protocol.connector import oracle
from tests.protocol.connector.messages import IMPLEMENTATIONS, decisions_of, name_of, run_of
from tests.protocol.connector.strategies import i64s, u64s

both = pytest.mark.parametrize("bulk", IMPLEMENTATIONS, ids=name_of)
MS = EventTimeUnit.MS
SIZE = 31 + 1 + 7 + 5
"""Of a stored event with a message's head, key and payload."""


def message(stream_id: int, message_id: int, event_time: int = 1) -> Message:
    return Message(stream_id, message_id, event_time, b"k", b"payload")


@both
def test_ids_that_do_not_grow_are_dropped_and_counted(bulk: ModuleType) -> None:
    table = bulk.StreamTable(1)
    table.open(7, last_id=5, route=3)
    table.open(8)
    sent = [message(7, 5), message(7, 6, 9), message(8, 0, -4), message(7, 6, 99), message(7, 9, 8), message(8, 0)]
    admission = table.admit(bulk.scan(run_of(*sent)), MS)
    assert decisions_of(admission) == {
        "count": 6,
        "problem": Problem.NONE,
        "message routes": [DROPPED, 3, 0, DROPPED, 3, DROPPED],
        "dead": [0] * 6,
        "event_times": [1000, 9000, -4000, 99000, 8000, 1000],
        "stream_ids": [7, 8],
        "last_ids": [9, 0],
        "highest_times": [9000, -4000],
        "routes": [3, 0],
        "previous_ids": [5, NOTHING_YET],
        "totals": {0: (1, SIZE, 1), 3: (2, 2 * SIZE, 1), DROPPED: (3, 3 * SIZE, 0)},
    }
    assert (table.last_id(7), table.last_id(8)) == (9, 0)


@both
def test_a_table_remembers_from_one_buffer_to_the_next(bulk: ModuleType) -> None:
    table = bulk.StreamTable(1)
    table.open(7)
    columns = bulk.scan(run_of(message(7, 0), message(7, 1)))
    assert table.admit(columns, MS).totals.messages.tolist()[0] == 2
    again = table.admit(columns, MS)
    assert (again.totals.messages[0], again.totals.messages[DROPPED], again.totals.streams[0]) == (0, 2, 0)
    assert again.streams.highest_times.tolist() == [NO_TIME]
    assert again.streams.last_ids.tolist() == [1]


@both
def test_a_stream_never_seen_before_keeps_a_first_message_whose_id_is_0(bulk: ModuleType) -> None:
    table = bulk.StreamTable(1)
    table.open(7, NOTHING_YET)
    assert table.admit(bulk.scan(run_of(message(7, 0))), MS).routes.tolist() == [0]


@both
@pytest.mark.parametrize("bad", [message(9, 1), message(7, NOTHING_YET)], ids=["not open", "reserved id"])
def test_it_stops_at_a_message_that_is_not_legal(bulk: ModuleType, bad: Message) -> None:
    table = bulk.StreamTable(1)
    table.open(7)
    table.open(9)
    table.close(9)
    columns = bulk.scan(run_of(message(7, 1), message(7, 2), bad, message(7, 3)))
    admission = table.admit(columns, MS)
    assert (admission.count, admission.routes.tolist(), table.last_id(7)) == (2, [0, 0], 2)
    assert (
        len(bulk.rewrite(columns, admission)[0].data) == sum(map(len, map(run_of, (message(7, 1), message(7, 2))))) + 10
    )
    assert str(admission.error(columns)).startswith("MESSAGE")
    assert admission.problem is (Problem.NOT_OPEN if bad.stream_id == 9 else Problem.RESERVED_ID)


@both
@pytest.mark.parametrize(
    ("unit", "time", "expected"),
    [
        (EventTimeUnit.S, 2, 2_000_000),
        (EventTimeUnit.MS, -2, -2000),
        (EventTimeUnit.US, 2**63 - 1, 2**63 - 1),
        (EventTimeUnit.NS, -1, -1),
        (EventTimeUnit.NS, 1999, 1),
        (EventTimeUnit.S, 2**63 - 1, 2**63 - 1),
        (EventTimeUnit.S, -(2**63), -(2**63)),
        (EventTimeUnit.MS, (2**63 - 1) // 1000, (2**63 - 1) // 1000 * 1000),
        (EventTimeUnit.MS, (2**63 - 1) // 1000 + 1, 2**63 - 1),
        (EventTimeUnit.MS, -(2**63 // 1000), -(2**63 // 1000) * 1000),
        (EventTimeUnit.MS, -(2**63 // 1000) - 1, -(2**63)),
    ],
)
def test_event_times_become_microseconds_and_stay_at_the_limit(
    bulk: ModuleType, unit: EventTimeUnit, time: int, expected: int
) -> None:
    table = bulk.StreamTable(1)
    table.open(7)
    admission = table.admit(bulk.scan(run_of(message(7, 1, time))), unit)
    assert admission.event_times.tolist() == admission.streams.highest_times.tolist() == [expected]


@both
def test_a_time_of_0_means_the_arrival_only_if_it_is_configured(bulk: ModuleType) -> None:
    columns = bulk.scan(run_of(message(7, 1, 0), message(7, 2, 5)))
    for arrival, expected in ((123, [123, 5000]), (None, [0, 5000])):
        table = bulk.StreamTable(1)
        table.open(7)
        assert table.admit(columns, MS, arrival).event_times.tolist() == expected


@both
def test_without_a_time_in_its_data_a_message_is_dead_or_gets_its_arrival_which_no_watermark_follows(
    bulk: ModuleType,
) -> None:
    columns = bulk.scan(run_of(message(7, 1, 0), message(7, 2, NO_TIME), message(8, 1, NO_TIME), message(8, 1, 3)))
    for arrival, dead in ((123, [0, 0, 0, 0]), (None, [0, 1, 1, 0])):
        table = bulk.StreamTable(1)
        table.open(7)
        table.open(8)
        admission = table.admit(columns, EventTimeUnit.US, arrival, extracted=True)
        assert admission.dead.tolist() == dead
        assert admission.routes.tolist() == [0, *(DROPPED if one else 0 for one in dead[1:3]), DROPPED]
        assert admission.event_times.tolist() == [0, arrival or 0, arrival or 0, 3]
        assert admission.streams.highest_times.tolist() == [0, NO_TIME]
        assert admission.streams.last_ids.tolist() == [2, 1]


@both
def test_a_route_whose_messages_are_all_dead_still_has_their_last_ids(bulk: ModuleType) -> None:
    table = bulk.StreamTable(1)
    table.open(7)
    columns = bulk.scan(run_of(message(7, 5, NO_TIME)))
    (stored,) = bulk.rewrite(columns, table.admit(columns, EventTimeUnit.US, extracted=True))
    assert (stored.count, bytes(stored.data)) == (0, b"")
    assert [int.from_bytes(column, "little", signed=True) for column in stored.streams] == [7, 5, NO_TIME]


@both
def test_no_messages_are_no_problem(bulk: ModuleType) -> None:
    admission = bulk.StreamTable(1).admit(bulk.scan(b""), MS)
    assert (admission.count, admission.problem, len(admission.streams.stream_ids)) == (0, Problem.NONE, 0)
    assert bulk.rewrite(bulk.scan(b""), admission)[0].count == 0


@both
def test_a_table_opens_closes_and_reopens_as_many_streams_as_there_are(bulk: ModuleType) -> None:
    table = bulk.StreamTable(2**64 - 1)
    for stream_id in range(2000):
        table.open(stream_id * 2**40, last_id=stream_id, route=stream_id % 255)
    for stream_id in range(0, 2000, 2):
        table.close(stream_id * 2**40)
        table.close(stream_id * 2**40)
    assert len(table) == 1000
    for stream_id in range(2000):
        assert (stream_id * 2**40 in table) is (stream_id % 2 == 1)
    assert table.last_id(3 * 2**40) == 3
    with pytest.raises(KeyError):
        table.last_id(2 * 2**40)
    table.open(2 * 2**40, last_id=77)
    assert (len(table), table.last_id(2 * 2**40)) == (1001, 77)
    with pytest.raises(ValueError, match="there are 255 routes"):
        table.open(1, route=255)


@both
def test_opening_and_closing_forever_does_not_fill_the_table(bulk: ModuleType) -> None:
    table = bulk.StreamTable(3)
    for stream_id in range(5000):
        table.open(stream_id)
        table.close(stream_id)
    assert len(table) == 0
    if bulk is decoder:
        assert len(table._rows) == decoder.ROWS_MIN


@both
def test_streams_without_a_message_since_a_mark_are_silent(bulk: ModuleType) -> None:
    table = bulk.StreamTable(1)
    table.open(7)
    table.open(8)
    table.open(9)
    first = table.next_mark()
    table.open(10)
    table.admit(bulk.scan(run_of(message(8, 1))), MS)
    assert sorted(table.silent(first, 10)) == [7, 9]
    assert len(table.silent(first, 1)) == 1
    second = table.next_mark()
    assert sorted(table.silent(second, 10)) == [7, 8, 9, 10]
    table.close(9)
    table.touch(7)
    table.touch(99)
    assert sorted(table.silent(second, 10)) == [8, 10]
    table.admit(bulk.scan(run_of(message(8, 1))), MS)
    assert sorted(table.silent(second, 10)) == [10], "a message that is there already is a sign of life"


@both
def test_a_stream_that_rests_is_not_silent_again_before_its_next_message(bulk: ModuleType) -> None:
    table = bulk.StreamTable(1)
    table.open(7)
    mark = table.next_mark()
    table.rest([7, 99])
    assert table.silent(mark, 10) == []
    assert table.silent(table.next_mark(), 10) == []
    table.admit(bulk.scan(run_of(message(7, 1))), MS)
    assert table.silent(mark, 10) == []
    assert table.silent(table.next_mark(), 10) == [7]


@both
def test_a_growing_table_forgets_no_activity(bulk: ModuleType) -> None:
    table = bulk.StreamTable(1)
    table.open(1)
    mark = table.next_mark()
    table.open(2)
    for stream_id in range(1000, 1400):
        table.open(stream_id)
    assert table.silent(mark, 10) == [1]


STREAMS = st.sampled_from([0, 1, 2, 2**63, 2**64 - 1])
SENT = st.lists(
    st.builds(Message, STREAMS, st.integers(0, 6) | u64s, i64s | st.just(NO_TIME), st.just(b""), st.just(b"")),
    max_size=30,
)


@given(
    st.dictionaries(STREAMS, st.tuples(st.integers(0, 3) | st.just(NOTHING_YET), st.integers(0, 254))),
    st.lists(SENT, max_size=3),
    st.sampled_from(EventTimeUnit),
    st.none() | i64s,
    st.booleans(),
)
def test_both_decide_the_same(
    streams: dict[int, tuple[int, int]],
    buffers: list[list[Message]],
    unit: EventTimeUnit,
    arrival: int | None,
    extracted: bool,
) -> None:
    tables = decoder.StreamTable(9), oracle.StreamTable(9)
    for stream_id, (last_id, route) in streams.items():
        for table in tables:
            table.open(stream_id, last_id, route)
    for sent in buffers:
        data = run_of(*sent)
        first = tables[0].admit(decoder.scan(data), unit, arrival, extracted=extracted)
        second = tables[1].admit(oracle.scan(data), unit, arrival, extracted=extracted)
        assert decisions_of(first) == decisions_of(second)


@given(st.lists(st.tuples(u64s, u64s), max_size=20))
def test_an_ack_is_encoded_from_columns(pairs: list[tuple[int, int]]) -> None:
    columns = oracle.scan(run_of(*(message(*pair) for pair in pairs)))
    for bulk in IMPLEMENTATIONS:
        data = bulk.encode_acks(9, columns.stream_ids, columns.message_ids)
        assert int.from_bytes(data[:4], "big") == len(data) - 4
        assert decode(data[4], data[5:]) == Ack(9, tuple(Acked(*pair) for pair in pairs))
