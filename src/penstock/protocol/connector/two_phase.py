"""The two-phase-commit messages between a worker and a sink, and how they are sent.

Each is the payload of a MESSAGE on stream 0 with message id 0, event time 0 and an empty key: `u8 tag + body`, with no
inner length. To the session machine and the codec they are frames: `encode` wraps them, a sink's `Decoder` unwraps.

A transaction id is opaque: it is stored, compared and sent back as bytes.
"""

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from penstock.core.errors import PenstockError, ProtocolError
from penstock.protocol.connector.frames import Frame, LocalProtocolError, Message

TWO_PHASE_STREAM = 0
"""StreamId 0: "The MESSAGE frame contains a Two Phase Commit (2PC) protocol message"."""

OUTPUT_STREAM = 1

EXACT_POSITION_CREDITS = 2**31 - 1
"""In a sink's OK, where credits have no meaning: the offset in its NOTIFY_ACK is exact, and the worker compares it with
its own. A worker that counts credits has plenty.
"""
"""StreamId 1: "The MESSAGE frame contains application output data"."""


class TwoPhase(Frame):
    """Base of the five two-phase messages."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class ListUncommitted(TwoPhase):
    """Worker to sink: which transactions have you voted on without receiving the decision?"""

    wire_name = "LIST_UNCOMMITTED"
    tag = 201
    rtag: int


@dataclass(frozen=True, slots=True)
class ReplyUncommitted(TwoPhase):
    """Sink to worker: these, in answer to the list with the same `rtag`."""

    wire_name = "REPLY_UNCOMMITTED"
    tag = 202
    rtag: int
    txn_ids: tuple[bytes, ...] = ()


class Range(NamedTuple):
    """Bytes of a stream, by their points of reference."""

    stream_id: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Phase1(TwoPhase):
    """Worker to sink: can you make these bytes durable?"""

    wire_name = "PHASE1"
    tag = 203
    txn_id: bytes
    ranges: tuple[Range, ...] = ()


@dataclass(frozen=True, slots=True)
class Reply(TwoPhase):
    """Sink to worker: the vote on phase 1. Existing sinks do not answer phase 2; an answer is accepted."""

    wire_name = "REPLY"
    tag = 204
    txn_id: bytes
    commit: bool


@dataclass(frozen=True, slots=True)
class Phase2(TwoPhase):
    """Worker to sink: the decision."""

    wire_name = "PHASE2"
    tag = 205
    txn_id: bytes
    commit: bool


# The rounds of two-phase commit in a sink's session: one table, the same at both ends.
#
# "While a round of the 2PC protocol is in progress, i.e. a MESSAGE frame in StreamId 0 with a Phase 1 request and
# ends with MESSAGE frame in StreamId 0 Phase 2 request, Wallaroo MUST NOT send any application MESSAGEs".


class RoundState(Enum):
    IDLE = "Idle"
    LISTING = "Listing"
    VOTING = "Voting"
    VOTED = "Voted"


_R = RoundState

ROUND_TRANSITIONS: dict[RoundState, dict[type[Frame], RoundState]] = {
    # PHASE2 while idle: the decision on a transaction of an earlier session, which the sink has listed.
    _R.IDLE: {ListUncommitted: _R.LISTING, Message: _R.IDLE, Phase1: _R.VOTING, Phase2: _R.IDLE, Reply: _R.IDLE},
    _R.LISTING: {ReplyUncommitted: _R.IDLE, Message: _R.LISTING, Reply: _R.LISTING},
    # PHASE2 before the vote: another sink's vote has already decided. The vote then arrives while idle.
    _R.VOTING: {Reply: _R.VOTED, Phase2: _R.IDLE},
    _R.VOTED: {Phase2: _R.IDLE},
}


class Round:
    """The state of a session's rounds. An illegal frame raises, naming frame and state, and changes nothing.

    A REPLY with another transaction's id is not the expected vote but an answer to an earlier PHASE2: "existing sinks"
    send none, and it is accepted at any time. The caller must know its transactions.
    """

    __slots__ = ("_rtag", "_state", "_txn_id")

    def __init__(self) -> None:
        self._state = RoundState.IDLE
        self._txn_id: bytes | None = None
        self._rtag: int | None = None

    @property
    def state(self) -> RoundState:
        return self._state

    @property
    def txn_id(self) -> bytes | None:
        """The transaction in progress."""
        return self._txn_id

    def send(self, frame: Frame) -> None:
        """Raises LocalProtocolError if we may not send this now."""
        self._move(frame, LocalProtocolError)

    def receive(self, frame: Frame) -> None:
        """Raises ProtocolError if the peer should not have sent it."""
        self._move(frame, ProtocolError)

    def _move(self, frame: Frame, wrong: type[PenstockError]) -> None:
        if isinstance(frame, Reply) and frame.txn_id != self._txn_id:
            return
        following = ROUND_TRANSITIONS[self._state].get(type(frame))
        if following is None:
            raise wrong(f"{frame.wire_name} is not legal in state {self._state.value}")
        self._check_answer(frame, wrong)
        self._state = following
        self._remember(frame)

    def _check_answer(self, frame: Frame, wrong: type[PenstockError]) -> None:
        if isinstance(frame, ReplyUncommitted) and frame.rtag != self._rtag:
            raise wrong(f"REPLY_UNCOMMITTED has the rtag {frame.rtag}, the list had {self._rtag}")
        if isinstance(frame, Phase2) and self._txn_id not in (None, frame.txn_id):
            raise wrong(f"PHASE2 is about {frame.txn_id!r} in the round of {self._txn_id!r}")

    def _remember(self, frame: Frame) -> None:
        match frame:
            case Phase1(txn_id=txn_id):
                self._txn_id = txn_id
            case Phase2():
                self._txn_id = None
            case ListUncommitted(rtag=rtag):
                self._rtag = rtag
