"""The machines of a session and of a stream. For a session: one table for each use of the protocol, and which side may
send what.

Both sides of a connection run the same machine, one with `send` where the other has `receive`. Frames cross on the way,
so a state allows what the peer may still have sent before it knew.
"""

from enum import Enum

from penstock.core.errors import PenstockError, ProtocolError
from penstock.protocol.connector.codec import encode
from penstock.protocol.connector.frames import (
    MIGRATING_VERSION,
    NOTHING_YET,
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

    @property
    def can_migrate(self) -> bool:
        """Whether the HELLO announced that the source knows MIGRATE."""
        return self._can_migrate

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


# The stream machine: one table, the same at both ends of a session.
#
# It is the document's (Start, Notify Sent, Open, Closed, Terminated), with its Closed in two: *closing*, from
# EOS_MESSAGE until the last message is acknowledged, and *inactive*, from where the stream may be opened again.
# *Reopening* is a NOTIFY that crossed with that acknowledgement: the worker refuses it, unless it was already closed
# when it arrived.


class StreamState(Enum):
    NEW = "New"
    NOTIFIED = "Notified"
    ACTIVE = "Active"
    CLOSING = "Closing"
    REOPENING = "Reopening"
    INACTIVE = "Inactive"
    TERMINATED = "Terminated"


class StreamEvent(Enum):
    """What can happen to a stream: a frame that concerns it, by type and content."""

    NOTIFY = "NOTIFY"
    ACCEPTED = "NOTIFY_ACK (success 1)"
    REFUSED = "NOTIFY_ACK (success 0)"
    MESSAGE = "MESSAGE"
    EOS = "EOS_MESSAGE"
    EOS_WHEN_EMPTY = "EOS_MESSAGE (no message ever)"
    ACK = "ACK"
    LAST_ACK = "ACK (of the last message)"
    RESTART = "RESTART"
    CLOSE = "close"


_S, _E = StreamState, StreamEvent

# "RESTART: The next state is Terminated." A session that just ends leaves its streams there too.
_ENDS = {_E.RESTART: _S.TERMINATED, _E.CLOSE: _S.TERMINATED}

STREAM_TRANSITIONS: dict[StreamState, dict[StreamEvent, StreamState]] = {
    _S.NEW: {_E.NOTIFY: _S.NOTIFIED, **_ENDS},
    # "The connector must not send MESSAGE frames for any StreamId before [it] receives a successful NOTIFY_ACK".
    # ACK: a source that has its last ACK already when it ends a stream may ask for it again before the worker has seen
    # the end, and then gets that ACK a second time.
    _S.NOTIFIED: {_E.ACCEPTED: _S.ACTIVE, _E.REFUSED: _S.INACTIVE, _E.ACK: _S.NOTIFIED, **_ENDS},
    _S.ACTIVE: {
        _E.MESSAGE: _S.ACTIVE,
        _E.ACK: _S.ACTIVE,
        _E.EOS: _S.CLOSING,
        _E.EOS_WHEN_EMPTY: _S.INACTIVE,  # there is no message id to acknowledge
        **_ENDS,
    },
    _S.CLOSING: {_E.ACK: _S.CLOSING, _E.LAST_ACK: _S.INACTIVE, _E.NOTIFY: _S.REOPENING, **_ENDS},
    _S.REOPENING: {_E.ACK: _S.REOPENING, _E.REFUSED: _S.CLOSING, _E.LAST_ACK: _S.NOTIFIED, **_ENDS},
    # "A stream that has been closed by an EOS_MESSAGE may be used again later"; ACKs "can arrive asynchronously".
    _S.INACTIVE: {_E.NOTIFY: _S.NOTIFIED, _E.ACK: _S.INACTIVE, **_ENDS},
    # "In the Terminated state, no actions are valid."
    _S.TERMINATED: {_E.CLOSE: _S.TERMINATED},
}


class Side(Enum):
    """Who acted. Our own mistakes raise LocalProtocolError, the peer's ProtocolError."""

    OURS = LocalProtocolError
    THEIRS = ProtocolError


class Stream:
    """One stream's state in one session, and the last message id that has gone through it.

    An illegal frame raises, naming frame, stream and state, and changes nothing. The methods are called alike for what
    is sent and for what is received; `side` selects the error.
    """

    __slots__ = ("_last_id", "_state", "stream_id")

    def __init__(self, stream_id: int) -> None:
        self.stream_id = stream_id
        self._state = StreamState.NEW
        self._last_id = NOTHING_YET

    @property
    def state(self) -> StreamState:
        return self._state

    @property
    def last_id(self) -> int:
        """The last message id sent or received; before that, the one of NOTIFY_ACK, or NOTHING_YET."""
        return self._last_id

    def notify(self, side: Side) -> None:
        """NOTIFY. A worker whose stream is now reopening answers with success 0."""
        self._move(StreamEvent.NOTIFY, side)

    def notify_ack(self, success: bool, point_of_reference: int, side: Side) -> None:
        """NOTIFY_ACK: "The connector must use the point of reference given" in it."""
        self._move(StreamEvent.ACCEPTED if success else StreamEvent.REFUSED, side)
        if success:
            self._last_id = point_of_reference

    def messages(self, last_id: int, side: Side) -> None:
        """One MESSAGE, or many: `last_id` is the highest of them. Duplicates do not take the stream back."""
        self._move(StreamEvent.MESSAGE, side)
        self._last_id = last_id if self._last_id == NOTHING_YET else max(self._last_id, last_id)

    def end(self, side: Side) -> None:
        """EOS_MESSAGE."""
        self._move(StreamEvent.EOS_WHEN_EMPTY if self._last_id == NOTHING_YET else StreamEvent.EOS, side)

    def ack(self, point_of_reference: int, side: Side) -> None:
        """ACK. While closing, one "with a point of reference *equal* to its last message id" ends the stream."""
        waits = self._state in (StreamState.CLOSING, StreamState.REOPENING)
        is_last = waits and point_of_reference == self._last_id
        self._move(StreamEvent.LAST_ACK if is_last else StreamEvent.ACK, side)

    def restart(self, side: Side) -> None:
        """RESTART: "Worker is requesting that all streams be reprocessed"."""
        self._move(StreamEvent.RESTART, side)

    def close(self) -> None:
        """The session ended without a frame. Idempotent."""
        self._move(StreamEvent.CLOSE, Side.OURS)

    def _move(self, event: StreamEvent, side: Side) -> None:
        following = STREAM_TRANSITIONS[self._state].get(event)
        if following is None:
            wrong: type[PenstockError] = side.value
            raise wrong(f"{event.value} is not legal for stream {self.stream_id} in state {self._state.value}")
        self._state = following
