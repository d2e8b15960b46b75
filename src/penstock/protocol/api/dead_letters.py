"""Requests and replies for listing, showing and replaying dead letters."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from penstock.protocol.api.codec import Count, Request
from penstock.protocol.stored.dead_letters import StoredDeadLetter


@dataclass(frozen=True, slots=True)
class DeadLetterPort:
    """The dead letters of one port, by their offsets in its output segment."""

    port: str
    start: int
    """Where the first dead letter that still exists begins."""
    replayed: int
    """Where the last replay ended."""
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """One dead letter. Times are in microseconds; unknown values are None."""

    port: str
    at: int
    """Where it begins in its port's output segment. This offset identifies it."""
    end: int
    reason: str
    replayed: bool
    size: int
    """The size of its value in bytes."""
    source: str
    stream: str
    stream_id: int
    message_id: int
    event_time: int | None
    segment: str | None
    """The position from which its event was read."""
    offset: int | None
    watermark: int | None
    """For a late event: the watermark that it missed."""
    behind_us: int | None
    key: bytes
    value: bytes | None = None
    """None in a list."""

    @classmethod
    def of(cls, port: str, stored: StoredDeadLetter, *, replayed: bool, with_value: bool = False) -> Self:
        event = stored.event
        return cls(
            port=port,
            at=stored.start,
            end=stored.end,
            reason=stored.reason,
            replayed=replayed,
            size=len(event.payload),
            source=str(event.metadata.get("source") or ""),
            stream=str(event.metadata.get("stream") or ""),
            stream_id=event.stream_id,
            message_id=event.event_id,
            event_time=event.event_time,
            segment=stored.segment,
            offset=stored.offset,
            watermark=stored.watermark,
            behind_us=stored.behind_us,
            key=event.key,
            value=event.payload if with_value else None,
        )


@dataclass(frozen=True, slots=True)
class DeadLetterList:
    ports: Sequence[DeadLetterPort]
    dead_letters: Sequence[DeadLetter]


@dataclass(frozen=True, slots=True)
class Replayed:
    """How many were replayed, and how many were skipped because no input reads their source."""

    count: int
    left_out: int


class Replay(Request, frozen=True, kw_only=True):
    """Replay the dead letters of a port between two offsets in its output segment."""

    port: str
    after: Count
    upto: Count
    input: str | None = None
