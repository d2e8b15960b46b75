"""Every state with every frame, sent and received, in every role: legal ones move, all others raise, nothing moves."""

from collections.abc import Iterator

import pytest

from penstock.core.errors import ProtocolError, RequestError
from penstock.protocol.connector import (
    MIGRATING_VERSION,
    SINK_VERSION,
    SOURCE_VERSION,
    Ack,
    Closed,
    EndOfStream,
    Frame,
    Hello,
    ListUncommitted,
    LocalProtocolError,
    Message,
    Migrate,
    MigrateAck,
    Notify,
    NotifyAck,
    Ok,
    Phase1,
    Restart,
    Role,
    Session,
    State,
    Use,
    encode,
)
from penstock.protocol.connector.session import SENDERS, TRANSITIONS

from .vectors import STREAM, TWO_PHASE_VECTORS, VECTORS

ONE_OF_EACH: dict[type[Frame], Frame] = {type(frame): frame for frame, _ in VECTORS + TWO_PHASE_VECTORS}
ONE_OF_EACH[Closed] = Closed()


def session(use: Use, role: Role, state: State) -> Session:
    made = Session(use, role)
    made._state = state
    made._can_migrate = True
    return made


def every_pair() -> Iterator[object]:
    for use, table in TRANSITIONS.items():
        for role in Role:
            for state in table:
                for kind, frame in ONE_OF_EACH.items():
                    following = table[state].get(kind) if kind in SENDERS[use][role] else None
                    yield pytest.param(use, role, state, frame, following, id=f"{use} {role} {state} {frame.wire_name}")


@pytest.mark.parametrize(("use", "role", "state", "frame", "following"), list(every_pair()))
def test_a_frame_moves_the_session_as_the_table_reports_or_is_illegal(
    use: Use, role: Role, state: State, frame: Frame, following: State | None
) -> None:
    sending, receiving = session(use, role, state), session(use, role.other, state)
    if following is None:
        with pytest.raises(LocalProtocolError, match=f"{frame.wire_name} is not"):
            sending.send(frame)
        with pytest.raises(ProtocolError, match=f"{frame.wire_name} is not"):
            receiving.receive(frame)
        assert sending.state is receiving.state is state
    else:
        assert sending.send(frame) == (b"" if isinstance(frame, Closed) else encode(frame))
        receiving.receive(frame)
        assert sending.state is receiving.state is following


@pytest.mark.parametrize("use", Use)
def test_every_frame_has_a_sender_and_every_row_its_close(use: Use) -> None:
    sent = SENDERS[use][Role.INITIATOR] | SENDERS[use][Role.ACCEPTOR]
    assert {kind for row in TRANSITIONS[use].values() for kind in row} == sent
    assert all(row[Closed] is State.DISCONNECTED for row in TRANSITIONS[use].values())


def test_our_fault_and_the_peer_s_are_different_errors() -> None:
    assert not issubclass(LocalProtocolError, ProtocolError)
    assert not issubclass(ProtocolError, LocalProtocolError)


def test_an_illegal_frame_s_error_names_frame_and_state() -> None:
    with pytest.raises(ProtocolError, match=r"^NOTIFY is not legal in state Connected$"):
        Session(Use.SOURCE, Role.ACCEPTOR).receive(Notify(1, "one"))


def test_a_frame_that_cannot_be_encoded_leaves_the_state() -> None:
    worker = session(Use.SOURCE, Role.ACCEPTOR, State.HANDSHAKE)
    with pytest.raises(RequestError):
        worker.send(Ok(-1))
    assert worker.state is State.HANDSHAKE


class Pair:
    """Two sessions with a wire between them: what one sends, the other receives at once."""

    def __init__(self, use: Use) -> None:
        self.initiator, self.acceptor = Session(use, Role.INITIATOR), Session(use, Role.ACCEPTOR)

    def run(self, *frames: Frame) -> State:
        """Each frame goes from the side that may send it; both sides are in the same state afterwards."""
        for frame in frames:
            ours = type(frame) in SENDERS[self.initiator._use][Role.INITIATOR]
            sender, receiver = (self.initiator, self.acceptor) if ours else (self.acceptor, self.initiator)
            sender.send(frame)
            receiver.receive(frame)
            assert self.initiator.state is self.acceptor.state
        return self.initiator.state


def hello(version: str) -> Hello:
    return Hello(version, b"", "program", "instance")


def test_a_source_s_session_from_hello_to_restart() -> None:
    pair = Pair(Use.SOURCE)
    assert pair.run(hello(SOURCE_VERSION), Ok(10), Notify(STREAM, "s")) is State.STREAMING
    assert pair.run(NotifyAck(True, STREAM, 0), Message(STREAM, 1, 0, b"", b""), Ack(1)) is State.STREAMING
    assert not pair.acceptor.is_over
    assert pair.run(EndOfStream(STREAM), Restart("other:1")) is State.DISCONNECTED
    assert pair.acceptor.is_over


def test_a_source_that_can_migrates() -> None:
    pair = Pair(Use.SOURCE)
    assert pair.run(hello(MIGRATING_VERSION), Ok(10), Migrate("other", 1)) is State.MIGRATING
    assert pair.run(EndOfStream(STREAM), Ack(0)) is State.MIGRATING
    assert pair.run(MigrateAck()) is State.DISCONNECTED


def test_migrate_is_sent_only_to_a_client_that_supports_it() -> None:
    pair = Pair(Use.SOURCE)
    pair.run(hello(SOURCE_VERSION), Ok(10))
    with pytest.raises(LocalProtocolError, match="MIGRATE is not legal: the HELLO's version was not"):
        pair.acceptor.send(Migrate("other", 1))
    with pytest.raises(ProtocolError, match="MIGRATE is not legal: the HELLO's version was not"):
        pair.initiator.receive(Migrate("other", 1))
    assert not pair.acceptor._can_migrate
    assert pair.run() is State.STREAMING


def test_hello_notify_and_list_go_to_a_sink_back_to_back() -> None:
    pair = Pair(Use.SINK)
    assert pair.run(hello(SINK_VERSION), Notify(1, "output"), ListUncommitted(1)) is State.HANDSHAKE
    assert pair.run(Ok(0), Phase1(b"t")) is State.STREAMING


def test_messages_in_bulk_are_legal_where_one_is() -> None:
    for state in TRANSITIONS[Use.SOURCE]:
        worker = session(Use.SOURCE, Role.ACCEPTOR, state)
        if state in (State.STREAMING, State.MIGRATING):
            worker.check_messages()
        else:
            with pytest.raises(ProtocolError, match=f"MESSAGE is not legal in state {state.value}"):
                worker.check_messages()
    with pytest.raises(ProtocolError, match="MESSAGE is not"):
        session(Use.SOURCE, Role.INITIATOR, State.STREAMING).check_messages()


@pytest.mark.parametrize("use", Use)
def test_closing_is_legal_always_and_twice(use: Use) -> None:
    for state in TRANSITIONS[use]:
        closed = session(use, Role.ACCEPTOR, state)
        closed.close()
        closed.close()
        assert closed.state is State.DISCONNECTED
