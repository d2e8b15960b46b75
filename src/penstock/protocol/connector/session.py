"""The session machine: one table for each use of the protocol, and which side may send what.

Both sides of a connection run the same machine, one with `send` where the other has `receive`. Frames cross on the way,
so a state allows what the peer may still have sent before it knew.
"""

from enum import Enum

from penstock.core.errors import PenstockError, ProtocolError
from penstock.protocol.connector.codec import encode
from penstock.protocol.connector.frames import (
    MIGRATING_VERSION,
    Ack,
    EndOfStream,
    Error,
    Frame,
    Hello,
    LocalProtocolError,
    Message,
    Migrate,
    MigrateAck,
    Notify,
    NotifyAck,
    Ok,
    Restart,
    Role,
    Use,
)
from penstock.protocol.connector.two_phase import ListUncommitted, Phase1, Phase2, Reply, ReplyUncommitted


class State(Enum):
    """The document's states, and the addendum's Migrating."""

    CONNECTED = "Connected"
    HANDSHAKE = "Handshake"
    STREAMING = "Streaming"
    MIGRATING = "Migrating"
    ERROR = "Error"
    DISCONNECTED = "Disconnected"


class Closed(Frame):
    """Not a frame on the wire: the connection is closed, by either side."""

    __slots__ = ()
    wire_name = "close"


Transitions = dict[State, dict[type[Frame], State]]

# "In the Error state, no frames are valid." The same holds once a RESTART was sent; the caller discards what comes.
_OVER: dict[type[Frame], State] = {Closed: State.DISCONNECTED}

SOURCE_TRANSITIONS: Transitions = {
    State.CONNECTED: {Hello: State.HANDSHAKE, Error: State.ERROR, Closed: State.DISCONNECTED},
    State.HANDSHAKE: {
        Ok: State.STREAMING,
        Migrate: State.MIGRATING,
        Error: State.ERROR,
        Closed: State.DISCONNECTED,
    },
    State.STREAMING: {
        Notify: State.STREAMING,
        NotifyAck: State.STREAMING,
        Message: State.STREAMING,
        EndOfStream: State.STREAMING,
        Ack: State.STREAMING,
        Restart: State.DISCONNECTED,
        Migrate: State.MIGRATING,
        Error: State.ERROR,
        Closed: State.DISCONNECTED,
    },
    # "close all streams", "send EOS for all streams", "Ack all streams": and what was on its way already.
    State.MIGRATING: {
        Notify: State.MIGRATING,
        NotifyAck: State.MIGRATING,
        Message: State.MIGRATING,
        EndOfStream: State.MIGRATING,
        Ack: State.MIGRATING,
        MigrateAck: State.DISCONNECTED,  # "Worker closes connection"
        Error: State.ERROR,
        Closed: State.DISCONNECTED,
    },
    State.ERROR: _OVER,
    State.DISCONNECTED: _OVER,
}

SINK_TRANSITIONS: Transitions = {
    State.CONNECTED: {Hello: State.HANDSHAKE, Error: State.ERROR, Closed: State.DISCONNECTED},
    # "HELLO, NOTIFY(stream 1), LIST_UNCOMMITTED may be sent back to back."
    State.HANDSHAKE: {
        Ok: State.STREAMING,
        Notify: State.HANDSHAKE,
        ListUncommitted: State.HANDSHAKE,
        Error: State.ERROR,
        Closed: State.DISCONNECTED,
    },
    State.STREAMING: {
        Notify: State.STREAMING,
        NotifyAck: State.STREAMING,
        Message: State.STREAMING,
        EndOfStream: State.STREAMING,
        Ack: State.STREAMING,  # tolerated
        ListUncommitted: State.STREAMING,
        ReplyUncommitted: State.STREAMING,
        Phase1: State.STREAMING,
        Reply: State.STREAMING,
        Phase2: State.STREAMING,
        Restart: State.DISCONNECTED,
        Error: State.ERROR,
        Closed: State.DISCONNECTED,
    },
    State.ERROR: _OVER,
    State.DISCONNECTED: _OVER,
}

TRANSITIONS = {Use.SOURCE: SOURCE_TRANSITIONS, Use.SINK: SINK_TRANSITIONS}

_BOTH: frozenset[type[Frame]] = frozenset((Error, Closed))

SENDERS: dict[Use, dict[Role, frozenset[type[Frame]]]] = {
    Use.SOURCE: {
        Role.INITIATOR: _BOTH | {Hello, Notify, Message, EndOfStream, MigrateAck},
        Role.ACCEPTOR: _BOTH | {Ok, NotifyAck, Ack, Restart, Migrate},
    },
    # "A Wallaroo worker sends HELLO, NOTIFY, MESSAGE, and EOS_MESSAGE frames to a connector sink."
    # "A connector sinks sends OK, NOTIFY_ACK, ACK, and RESTART frames to a Wallaroo worker."
    Use.SINK: {
        Role.INITIATOR: _BOTH | {Hello, Notify, Message, EndOfStream, ListUncommitted, Phase1, Phase2},
        Role.ACCEPTOR: _BOTH | {Ok, NotifyAck, Ack, Restart, ReplyUncommitted, Reply},
    },
}


class Session:
    """One connection's state. An illegal frame raises, naming frame and state, and leaves the state as it was."""

    __slots__ = ("_can_migrate", "_role", "_state", "_use")

    def __init__(self, use: Use, role: Role) -> None:
        self._use = use
        self._role = role
        self._state = State.CONNECTED
        self._can_migrate = False

    @property
    def state(self) -> State:
        return self._state

    @property
    def is_over(self) -> bool:
        """Nothing more is to be sent, and "any data received after" is to be discarded, not passed to `receive`."""
        return self._state in (State.ERROR, State.DISCONNECTED)

    def send(self, frame: Frame) -> bytes:
        """The bytes to send. Raises LocalProtocolError if we may not send it now; RequestError if it cannot be
        encoded.
        """
        following = self._following(frame, self._role, LocalProtocolError)
        data = b"" if isinstance(frame, Closed) else encode(frame)
        self._move(frame, following)
        return data

    def receive(self, frame: Frame) -> None:
        """The peer has sent this. Raises ProtocolError if it should not have."""
        self._move(frame, self._following(frame, self._role.other, ProtocolError))

    def check_messages(self) -> None:
        """As `receive` for any number of MESSAGE frames at once, which never change the state."""
        if Message not in TRANSITIONS[self._use][self._state] or Message not in SENDERS[self._use][self._role.other]:
            raise ProtocolError(f"MESSAGE is not legal in state {self._state.value}")

    def close(self) -> None:
        """The connection is closed, by either side. Idempotent."""
        self._state = TRANSITIONS[self._use][self._state][Closed]

    def _following(self, frame: Frame, sender: Role, wrong: type[PenstockError]) -> State:
        kind = type(frame)
        if kind not in SENDERS[self._use][sender]:
            raise wrong(f"{frame.wire_name} is not for the {sender.value} of a {self._use.value}'s session to send")
        following = TRANSITIONS[self._use][self._state].get(kind)
        if following is None:
            raise wrong(f"{frame.wire_name} is not legal in state {self._state.value}")
        if kind is Migrate and not self._can_migrate:
            raise wrong(f"MIGRATE is not legal: the HELLO's version was not {MIGRATING_VERSION}")
        return following

    def _move(self, frame: Frame, following: State) -> None:
        if isinstance(frame, Hello):
            self._can_migrate = frame.version == MIGRATING_VERSION
        self._state = following
