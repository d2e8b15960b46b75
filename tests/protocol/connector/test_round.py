"""Every state of a round with everything that belongs to rounds."""

import pytest

from penstock.core.errors import ProtocolError
from penstock.protocol.connector import (
    Frame,
    ListUncommitted,
    LocalProtocolError,
    Message,
    Phase1,
    Phase2,
    Reply,
    ReplyUncommitted,
    Round,
    RoundState,
)
from penstock.protocol.connector.two_phase import ROUND_TRANSITIONS

EVENTS: list[Frame] = [
    ListUncommitted(7),
    ReplyUncommitted(7),
    Phase1(b"t"),
    Reply(b"t", True),
    Phase2(b"t", True),
    Message(1, 0, 0, b"", b""),
]
BUSY = (RoundState.VOTING, RoundState.VOTED)


def in_state(state: RoundState) -> Round:
    made = Round()
    made._state, made._rtag = state, 7
    made._txn_id = b"t" if state in BUSY else None
    return made


@pytest.mark.parametrize("state", RoundState)
@pytest.mark.parametrize("frame", EVENTS, ids=lambda frame: frame.wire_name)
def test_a_frame_moves_the_round_as_the_table_reports_or_is_illegal(state: RoundState, frame: Frame) -> None:
    following = ROUND_TRANSITIONS[state].get(type(frame))
    sending, receiving = in_state(state), in_state(state)
    if following is None:
        with pytest.raises(LocalProtocolError, match=f"^{frame.wire_name} is not legal in state {state.value}"):
            sending.send(frame)
        with pytest.raises(ProtocolError, match=f"^{frame.wire_name} is not legal in state {state.value}"):
            receiving.receive(frame)
        assert sending.state is receiving.state is state
    else:
        sending.send(frame)
        receiving.receive(frame)
        assert sending.state is receiving.state is following


@pytest.mark.parametrize("state", RoundState)
def test_an_answer_to_an_earlier_phase_2_is_accepted_at_any_time(state: RoundState) -> None:
    waiting = in_state(state)
    waiting.receive(Reply(b"earlier", True))
    assert waiting.state is state


def test_the_table_has_all_states_and_events() -> None:
    assert list(ROUND_TRANSITIONS) == list(RoundState)
    assert {kind for row in ROUND_TRANSITIONS.values() for kind in row} == {type(frame) for frame in EVENTS}


def test_a_whole_round() -> None:
    made = Round()
    made.send(ListUncommitted(1))
    with pytest.raises(ProtocolError, match="rtag 2, the list had 1"):
        made.receive(ReplyUncommitted(2))
    made.receive(ReplyUncommitted(1, (b"old",)))
    made.send(Phase2(b"old", False))
    made.send(Message(1, 0, 0, b"", b"output"))
    made.send(Phase1(b"new"))
    with pytest.raises(LocalProtocolError, match="MESSAGE is not legal in state Voting"):
        made.send(Message(1, 6, 0, b"", b"output"))
    made.receive(Reply(b"new", True))
    with pytest.raises(LocalProtocolError, match="PHASE2 is about b'old' in the round of b'new'"):
        made.send(Phase2(b"old", True))
    made.send(Phase2(b"new", True))
    made.receive(Reply(b"new", True))
    assert (made.state, made.txn_id) == (RoundState.IDLE, None)


def test_a_round_may_be_aborted_before_the_vote() -> None:
    made = Round()
    made.send(Phase1(b"t"))
    made.send(Phase2(b"t", False))
    made.receive(Reply(b"t", True))
    assert made.state is RoundState.IDLE
