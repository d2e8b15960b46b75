"""The stream machine: one table, the same at both ends of a session.

It is the document's (Start, Notify Sent, Open, Closed, Terminated), with its Closed in two: *closing*, from EOS_MESSAGE
until the last message is acknowledged, and *inactive*, from where the stream may be opened again. *Reopening* is a
NOTIFY that crossed with that acknowledgement: the worker refuses it, unless it was already closed when it arrived.
"""

from enum import Enum

from penstock.core.errors import PenstockError, ProtocolError
from penstock.protocol.connector.frames import NOTHING_YET, LocalProtocolError


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
