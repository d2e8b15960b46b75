"""Events come out whole, wherever the reads cut them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.segments.clients import EventSplitter
from penstock.core.errors import ProtocolError
from penstock.protocol.segment import frame_events


@given(st.lists(st.binary(max_size=20)), st.integers(0, 1000), st.data())
def test_events_are_the_same_however_they_are_cut(events: list[bytes], start: int, data: st.DataObject) -> None:
    segment = frame_events(events)
    splitter = EventSplitter(start)
    found = []
    while splitter.offset < start + len(segment):
        at = splitter.offset - start
        found += splitter.feed(segment[at : at + data.draw(st.integers(1, 50))])
    splitter.check_whole()
    assert [event.data for event in found] == events
    place = start
    for event in found:
        assert event.offset == place
        place = event.end
    assert place == splitter.offset


def test_half_an_event_at_the_end_is_an_error() -> None:
    splitter = EventSplitter(100)
    assert splitter.feed(frame_events([b"abc"])[:-1]) == []
    with pytest.raises(ProtocolError, match="at 100"):
        splitter.check_whole()


def test_bytes_that_are_no_event_are_an_error() -> None:
    with pytest.raises(ProtocolError):
        EventSplitter(0).feed(b"not an event")
