"""Sinks, and the epochs on their way to them."""

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
    """Or the name of a connector that is deployed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkStatus:
    pipeline: str
    sink: str
    port: str
    url: str
    guarantee: str
    votes: bool
    state: str
    """CONNECTING, READY, IN ROUND, REFUSED (it votes no), WAITING (it is lost, and tried again later), or DIVERGED
    (what it has does not fit the ledger).
    """
    reason: str
    """Why it is not ready; "" if it is."""
    at: int
    """How far it is in the port's output segment."""
    sent: int
    """Bytes of payloads that are committed at it."""
    parked: int
    """Epochs that it was never given."""
    lacking: int = 0
    """Epochs that it has not got yet."""


@dataclass(frozen=True, slots=True)
class Rewound:
    """A sink that continues from what it has."""

    found: str
    """What the sink had, and what the ledger had."""
    again: int
    """Epochs that are delivered to it again."""
    accepted: str
    """`gap` or `duplicates`; "" if neither remains."""


@dataclass(frozen=True, slots=True)
class TableDdl:
    """What makes the table of a SQL sink fit the rows that it gets."""

    table: str
    exists: bool
    statements: Sequence[str]
    """In order; none if the table fits."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A sink that an epoch waits for."""

    sink: str
    port: str
    reason: str
    attempts: int
    """How often the epoch was tried, in this run of the worker."""
    retry_seconds: float
    """Until it is tried again; 0 if that goes on now."""


@dataclass(frozen=True, slots=True)
class EpochStatus:
    epoch: int
    bytes: int
    """In all output segments."""
    state: str
    """MERGED: it waits for those before it. DELIVERING, REFUSED, WAITING or DIVERGED: as its sinks are. DECIDED: those
    that vote have it, others follow.
    """
    waiting: Sequence[Waiting]


class Bind(Request, frozen=True, kw_only=True):
    sinks: Annotated[Mapping[str, SinkSpec], msgspec.Meta(max_length=100)]
    """Each is checked, and opened, before any is bound."""


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
