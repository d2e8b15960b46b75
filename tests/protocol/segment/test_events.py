import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import LimitExceeded, ProtocolError
from penstock.protocol.segment import PAYLOAD_SIZE_MAX, frame_events, take_events
from tests.support.segment_bytes import split_events


def test_an_event_is_its_data_behind_8_bytes() -> None:
    assert frame_events([b"hi", b""]) == bytes.fromhex("00000000 00000002 6869 00000000 00000000")


@given(st.lists(st.binary(max_size=50)))
def test_events_survive_a_round_trip(events: list[bytes]) -> None:
    assert split_events(frame_events(events)) == events


@given(st.lists(st.binary(max_size=50), max_size=5), st.data())
def test_the_rest_of_cut_events_is_where_to_continue(events: list[bytes], data: st.DataObject) -> None:
    framed = frame_events(events)
    cut = data.draw(st.integers(0, len(framed)))
    whole, rest = take_events(framed[:cut])
    assert whole == events[: len(whole)]
    again, end = take_events(bytes(rest) + framed[cut:])
    assert [*whole, *again] == events
    assert not end


def test_events_are_not_copied() -> None:
    framed = frame_events([b"one", b"two"])
    assert all(event.obj is framed for event in split_events(framed))


def test_a_cut_event_is_an_error_that_names_its_offset() -> None:
    with pytest.raises(ProtocolError, match="the event at byte 11 is cut off after 10 bytes"):
        split_events(frame_events([b"one", b"two"])[:-1])


@pytest.mark.parametrize("header", ["00000001 00000000", "00000000 ffffffff", "00000000 00fffff8", "ffffffff 00000000"])
def test_bytes_that_are_not_an_event_are_an_error_that_names_the_offset(header: str) -> None:
    with pytest.raises(ProtocolError, match="no event starts at byte 11"):
        take_events(frame_events([b"one"]) + bytes.fromhex(header))


def test_an_event_over_the_limit_is_refused() -> None:
    assert len(frame_events([bytes(PAYLOAD_SIZE_MAX)])) == 2**24 - 1
    with pytest.raises(LimitExceeded, match="an event of 16777208 bytes is over the limit"):
        frame_events([bytes(PAYLOAD_SIZE_MAX + 1)])
