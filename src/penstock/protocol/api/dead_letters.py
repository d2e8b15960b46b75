"""Requests and replies for listing, showing and replaying dead letters, and for burying events."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import msgspec

from penstock.core.errors import RequestError
from penstock.protocol.api.codec import NUMBER_MAX, Count, Request
from penstock.protocol.stored.dead_letters import ERR, MESSAGE_ID, StoredDeadLetter


@dataclass(frozen=True, slots=True)
class DeadLetterPort:
    """The dead letters of one port, by their offsets in its output segment."""

    port: str
    start: int
    """Where the first dead letter that still exists begins."""
    replayed: int
    """Where the last replay in order ended."""
    end: int
    waiting: int
    """How many bytes of it were not replayed yet."""


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

    @classmethod
    def of_source(cls, stored: StoredDeadLetter, *, with_value: bool = False) -> Self:
        """One that never became an event of its source: it has no position there, and cannot be replayed."""
        message_id = stored.event.metadata.get(MESSAGE_ID)
        found = cls.of(ERR, stored, replayed=False, with_value=with_value)
        return replace(found, message_id=message_id if isinstance(message_id, int) else 0)


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


class ReplayChosen(Request, frozen=True, kw_only=True):
    """Replay the dead letters of a port that start at these offsets in its output segment."""

    port: str
    at: Sequence[Count]
    input: str | None = None


class EventPlace(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """An event of a pipeline's input; in JSON an array of the two."""

    segment: str
    offset: Count

    @classmethod
    def parse(cls, text: str) -> Self:
        """From `SEGMENT@OFFSET`. Raises RequestError."""
        segment, at, offset = text.rpartition("@")
        if not at or not segment or not (offset.isascii() and offset.isdigit() and len(offset) <= _DIGITS_MAX):
            raise RequestError(
                f"{text!r} is not the place of an event", "Write SEGMENT@OFFSET, such as connector/orders/0@4711."
            )
        return cls(segment, int(offset))

    def __str__(self) -> str:
        return f"{self.segment}@{self.offset}"


_DIGITS_MAX = len(str(NUMBER_MAX)) - 1
"""Of an offset: any number of so many digits is one."""


class Bury(Request, frozen=True, kw_only=True):
    """Events that no task of the pipeline may read: they leave through `err`. With `undo`, tasks read them again."""

    at: Sequence[EventPlace]
    reason: str = ""
    undo: bool = False


@dataclass(frozen=True, slots=True)
class BuryDone:
    changed: int
    """How many events were not buried before; with an undo, how many were."""
    waits: bool
    """Some belong to the epoch that was planned last: it takes effect when its query is restarted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuriedEvent:
    segment: str
    offset: int
    end: int
    """Where the event ends in its segment."""
    reason: str
    is_committed: bool
    """It is a dead letter now. Before that, it can be undone."""
    waits: bool
    """It takes effect when the pipeline's query is restarted."""
    is_undone: bool = False
    """It is read again from then on."""

    @property
    def place(self) -> EventPlace:
        return EventPlace(self.segment, self.offset)


@dataclass(frozen=True, slots=True)
class BuriedList:
    """Those that Spark may still read, in order. Those of older epochs are dead letters, and nothing else."""

    events: Sequence[BuriedEvent]
