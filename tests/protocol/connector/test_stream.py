"""Every state of a stream with everything that can happen to it."""

from collections.abc import Callable, Iterator

import pytest

from penstock.core.errors import ProtocolError
from penstock.protocol.connector import NOTHING_YET, LocalProtocolError, Side, Stream, StreamState
from penstock.protocol.connector.session import STREAM_TRANSITIONS, StreamEvent

WAITS = (StreamState.CLOSING, StreamState.REOPENING)

HAPPENS: dict[StreamEvent, Callable[[Stream, Side], None]] = {
    StreamEvent.NOTIFY: lambda stream, side: stream.notify(side),
    StreamEvent.ACCEPTED: lambda stream, side: stream.notify_ack(True, 7, side),
    StreamEvent.REFUSED: lambda stream, side: stream.notify_ack(False, 0, side),
    StreamEvent.MESSAGE: lambda stream, side: stream.messages(8, side),
    StreamEvent.EOS: lambda stream, side: stream.end(side),
    StreamEvent.EOS_WHEN_EMPTY: lambda stream, side: stream.end(side),
    StreamEvent.ACK: lambda stream, side: stream.ack(4, side),
    StreamEvent.LAST_ACK: lambda stream, side: stream.ack(5, side),
    StreamEvent.RESTART: lambda stream, side: stream.restart(side),
    StreamEvent.CLOSE: lambda stream, side: stream.close(),
}


def stream(state: StreamState, last_id: int = 5) -> Stream:
    made = Stream(1)
    made._state = state
    made._last_id = last_id
    return made


def every_pair() -> Iterator[tuple[StreamState, StreamEvent]]:
    for state in StreamState:
        for event in StreamEvent:
            if event is not StreamEvent.LAST_ACK or state in WAITS:  # elsewhere it is an ACK like any other
                yield state, event


@pytest.mark.parametrize("side", Side)
@pytest.mark.parametrize(("state", "event"), list(every_pair()))
def test_an_event_moves_the_stream_as_the_table_reports_or_is_illegal(
    state: StreamState, event: StreamEvent, side: Side
) -> None:
    moving = stream(state, NOTHING_YET if event is StreamEvent.EOS_WHEN_EMPTY else 5)
    following = STREAM_TRANSITIONS[state].get(event)
    if following is not None:
        HAPPENS[event](moving, side)
        assert moving.state is following
        return
    before = moving.last_id
    wrong = LocalProtocolError if side is Side.OURS else ProtocolError
    with pytest.raises(wrong, match=r" is not legal for stream 1 in state " + state.value):
        HAPPENS[event](moving, side)
    assert (moving.state, moving.last_id) == (state, before)


def test_every_state_is_in_the_table_and_can_be_reached() -> None:
    assert list(STREAM_TRANSITIONS) == list(StreamState)
    reached = {following for row in STREAM_TRANSITIONS.values() for following in row.values()}
    assert reached == set(StreamState) - {StreamState.NEW}


def test_a_stream_is_opened_used_ended_and_opened_again() -> None:
    life = Stream(1)
    life.notify(Side.THEIRS)
    life.notify_ack(True, NOTHING_YET, Side.OURS)
    life.messages(3, Side.THEIRS)
    life.messages(9, Side.THEIRS)
    life.ack(3, Side.OURS)
    life.end(Side.THEIRS)
    states = []
    for point_of_reference in (3, 9):
        life.ack(point_of_reference, Side.OURS)
        states.append(life.state)
    assert states == [StreamState.CLOSING, StreamState.INACTIVE]
    life.notify(Side.THEIRS)
    life.notify_ack(True, 9, Side.OURS)
    assert (life.state, life.last_id) == (StreamState.ACTIVE, 9)


def test_a_refused_notify_may_be_tried_again() -> None:
    life = Stream(1)
    life.notify(Side.THEIRS)
    life.notify_ack(False, 0, Side.OURS)
    assert (life.state, life.last_id) == (StreamState.INACTIVE, NOTHING_YET)
    life.notify(Side.THEIRS)
    assert life.state is StreamState.NOTIFIED


def test_a_notify_while_closing_is_refused() -> None:
    worker = stream(StreamState.CLOSING)
    worker.notify(Side.THEIRS)
    with pytest.raises(LocalProtocolError):
        worker.notify_ack(True, 5, Side.OURS)
    worker.notify_ack(False, 0, Side.OURS)
    assert worker.state is StreamState.CLOSING


def test_a_notify_that_crosses_the_last_ack_opens_the_stream_at_both_ends() -> None:
    source, worker = stream(StreamState.CLOSING), stream(StreamState.CLOSING)
    source.notify(Side.OURS)
    worker.ack(5, Side.OURS)
    worker.notify(Side.THEIRS)
    source.ack(5, Side.THEIRS)
    worker.notify_ack(True, 5, Side.OURS)
    source.notify_ack(True, 5, Side.THEIRS)
    assert source.state is worker.state is StreamState.ACTIVE


def test_a_stream_without_any_message_ends_at_once() -> None:
    life = stream(StreamState.ACTIVE, NOTHING_YET)
    life.end(Side.THEIRS)
    assert life.state is StreamState.INACTIVE
