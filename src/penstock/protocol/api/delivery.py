"""Sinks, and the epochs that are being delivered to them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec

from penstock.protocol.api.codec import Count, Request


@dataclass(frozen=True, slots=True)
class SinkSpec:
    """A sink for a port of a pipeline."""

    port: str
    url: str
    """A URL, or the name of a deployed connector."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkStatus:
    pipeline: str
    sink: str
    port: str
    url: str
    guarantee: str
    votes: bool
    state: str
    """CONNECTING, READY, IN ROUND (asked to take an epoch), VOTED (yes, while others have not voted), REFUSED (it votes
    no), WAITING (unreachable, retried later), or DIVERGED (its data do not match the ledger).
    """
    reason: str
    """Why it is not ready; "" if it is."""
    at: int
    """Its position in the port's output segment."""
    sent: int
    """Bytes of payloads that it has committed."""
    parked: int
    """Parked epochs, which it never received."""
    lacking: int = 0
    """Epochs that it has not received yet."""
    silent_seconds: float | None = None
    """How long it has not answered; None: nothing is asked of it, so nothing waits for it."""


@dataclass(frozen=True, slots=True)
class Rewound:
    """A sink that was rewound to the data it actually has."""

    found: str
    """The sink's position and the ledger's, before the rewind."""
    again: int
    """Epochs that are delivered to it again."""
    accepted: str
    """`gap` or `duplicates`; "" if neither remains."""


@dataclass(frozen=True, slots=True)
class TableDdl:
    """The statements that make the table of a SQL sink fit its rows."""

    table: str
    exists: bool
    statements: Sequence[str]
    """In order; empty if the table fits already."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A sink that an epoch waits for."""

    sink: str
    port: str
    reason: str
    attempts: int
    """Attempts to deliver the epoch since the worker started."""
    retry_seconds: float
    """Until the next attempt; 0 while one is in progress."""


@dataclass(frozen=True, slots=True)
class EpochStatus:
    epoch: int
    bytes: int
    """In all output segments."""
    state: str
    """MERGED: it waits for earlier epochs. DELIVERING, REFUSED, WAITING or DIVERGED: the state of its sinks. DECIDED:
    the voting sinks have committed it, the others follow.
    """
    waiting: Sequence[Waiting]


class Bind(Request, frozen=True, kw_only=True):
    sinks: Annotated[Mapping[str, SinkSpec], msgspec.Meta(max_length=100)]
    """All of them are validated and opened before any is bound."""


class Unbind(Request, frozen=True, kw_only=True):
    sink: str


class Park(Request, frozen=True, kw_only=True):
    epoch: Count
    sink: str | None = None


class Rewind(Request, frozen=True, kw_only=True):
    sink: str
    accept_gap: bool = False
    accept_duplicates: bool = False


class EpochList(msgspec.Struct, frozen=True):
    epochs: Sequence[EpochStatus]
