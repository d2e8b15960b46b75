"""The two-phase-commit messages between a worker and a sink, and how they travel.

Each is the payload of a MESSAGE on stream 0 with message id 0, event time 0 and an empty key: `u8 tag + body`, with no
inner length. To the session machine and the codec they are frames: `encode` wraps them, a sink's `Decoder` unwraps.

A transaction id is opaque: it is kept, compared and sent back as bytes.
"""

from dataclasses import dataclass
from typing import NamedTuple

from penstock.protocol.connector.frames import Frame

TWO_PHASE_STREAM = 0
"""StreamId 0: "The MESSAGE frame contains a Two Phase Commit (2PC) protocol message"."""

OUTPUT_STREAM = 1
"""StreamId 1: "The MESSAGE frame contains application output data"."""


class TwoPhase(Frame):
    """Base of the five."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class ListUncommitted(TwoPhase):
    """Worker to sink: which transactions have you voted on, and not heard the decision of?"""

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
