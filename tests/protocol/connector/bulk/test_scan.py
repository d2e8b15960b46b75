"""A scan finds the messages that the plain decoder finds, stops where a run ends, and reports why."""

from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import ProtocolError
from penstock.protocol.connector import Ack, Decoder, Message, Ok, Use, encode
from penstock.protocol.connector.bulk import Columns, Problem, Stop, columns, decoder, kernel
from penstock.protocol.connector.bulk.columns import frame_error
from tests.protocol.connector import oracle
from tests.protocol.connector.messages import IMPLEMENTATIONS, name_of, numbers_of, run_of
from tests.protocol.connector.strategies import messages

both = pytest.mark.parametrize("bulk", IMPLEMENTATIONS, ids=name_of)
ONE, TWO = Message(1, 2, -3, b"key", b"payload"), Message(2**64 - 1, 2**64 - 1, -(2**63), b"", b"")
RUN = run_of(ONE, TWO)


def messages_of(found: Columns) -> list[Message]:
    return [found.message(index) for index in range(len(found))]


@given(st.lists(messages, max_size=10), st.binary(max_size=40))
def test_both_find_what_the_plain_decoder_finds(sent: list[Message], before: bytes) -> None:
    data = before + run_of(*sent)
    decoded = list(Decoder(Use.SOURCE).feed(data[len(before) :]))
    found = decoder.scan(data, len(before)), oracle.scan(data, len(before))
    assert messages_of(found[0]) == messages_of(found[1]) == decoded == sent
    assert numbers_of(found[0]) == numbers_of(found[1])
    assert found[0].stop is Stop.END
    assert found[0].largest_frame == max((len(encode(message)) - 4 for message in sent), default=0)


@both
def test_columns_locate_keys_and_payloads(bulk: ModuleType) -> None:
    found = bulk.scan(b"xx" + RUN, 2)
    assert (found.start, found.end, found.size, len(found)) == (2, 2 + len(RUN), len(RUN), 2)
    assert found.key_span(0) == (33, 36)
    assert found.payload_span(0) == (36, 43)
    assert found.key_span(1) == found.payload_span(1) == (74, 74)


@both
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_will_do(bulk: ModuleType, kind: type) -> None:
    assert messages_of(bulk.scan(kind(RUN))) == [ONE, TWO]


@both
def test_a_run_stops_at_any_other_frame(bulk: ModuleType) -> None:
    for other in (Ok(1), Ack(1)):
        found = bulk.scan(RUN + encode(other) + RUN)
        assert (len(found), found.end, found.stop) == (2, len(RUN), Stop.OTHER)


@both
def test_a_run_stops_where_a_frame_is_incomplete(bulk: ModuleType) -> None:
    size = len(encode(ONE))
    for end in range(len(RUN)):
        found = bulk.scan(RUN[:end])
        assert found.stop is (Stop.END if end in (0, size) else Stop.INCOMPLETE)
        assert messages_of(found) == [ONE][: end // size]


@both
def test_it_does_not_read_beyond_the_end_it_is_given(bulk: ModuleType) -> None:
    size = len(encode(ONE))
    assert messages_of(bulk.scan(RUN, 0, size)) == [ONE]
    assert bulk.scan(RUN, 0, size + 1).stop is Stop.INCOMPLETE
    assert messages_of(bulk.scan(RUN, size, len(RUN))) == [TWO]
    for start, end in ((-1, 3), (3, 2), (0, len(RUN) + 1), (len(RUN) + 1, None)):
        with pytest.raises(IndexError):
            bulk.scan(RUN, start, end)


BAD = {
    "no tag": (bytes(4), Stop.MALFORMED, "a frame of 0 bytes"),
    "too large": (b"\0\x40\0\x01", Stop.OVERSIZED, "a frame of 4194305 bytes is over the limit of 4194304"),
    "enormous": (b"\xff\xff\xff\xff\x05", Stop.OVERSIZED, "a frame of 4294967295 bytes is over the limit"),
    "too short": (b"\0\0\0\x1a\x05" + bytes(25), Stop.MALFORMED, "MESSAGE: key: 2 bytes expected, 1 are left"),
    "nothing but a tag": (b"\0\0\0\1\5", Stop.MALFORMED, "MESSAGE: stream_id: 8 bytes expected, 0 are left"),
    "key too long": (
        b"\0\0\0\x1d\x05" + bytes(24) + b"\0\3ab",
        Stop.MALFORMED,
        "MESSAGE: key: 3 bytes expected, 2 are left",
    ),
}


@both
@pytest.mark.parametrize("bad", BAD)
def test_a_run_stops_at_a_frame_that_is_malformed_or_oversized(bulk: ModuleType, bad: str) -> None:
    data, stop, wrong = BAD[bad]
    found = bulk.scan(RUN + data + RUN)
    assert (messages_of(found), found.stop) == ([ONE, TWO], stop)
    error = frame_error(found.data, found.end, 4 * 2**20)
    assert str(error).startswith(wrong)
    with pytest.raises(ProtocolError) as plain:
        list(Decoder(Use.SOURCE).feed(data + RUN))
    assert str(plain.value) == str(error)


@both
def test_the_limit_can_be_set(bulk: ModuleType) -> None:
    size = len(encode(ONE)) - 4
    assert bulk.scan(RUN, frame_size_max=size).stop is Stop.END
    assert bulk.scan(RUN, frame_size_max=size - 1).stop is Stop.OVERSIZED


def test_the_kernel_s_own_numbers_are_those_of_the_columns() -> None:
    assert tuple(Stop) == (kernel.END, kernel.INCOMPLETE, kernel.OTHER, kernel.MALFORMED, kernel.OVERSIZED)
    assert tuple(Problem) == (kernel.NO_PROBLEM, kernel.NOT_OPEN, kernel.RESERVED_ID)
    assert (kernel.HEAD, kernel.EXTRA) == (columns.HEAD_SIZE, oracle.STORED_EXTRA)
    assert (columns.DROPPED, Message.tag, columns.NO_TIME) == (kernel.DROPPED, kernel.MESSAGE, kernel.I64_MIN)
