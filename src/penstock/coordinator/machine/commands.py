"""What changes the coordinator's state, as it stands in the ledger: an array in msgpack that begins with a number."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

import msgpack

from penstock.core.errors import Damaged
from penstock.core.types import Buffer
from penstock.protocol.api.pipelines import Segments


@dataclass(frozen=True, slots=True)
class Start:
    """A new generation, or more inputs for the one that the same request has begun."""

    pipeline: str
    request: str
    inputs: Mapping[str, tuple[tuple[str, ...], Segments]]
    """Input → its sources, and where those of their segments begin that it did not read before."""
    outputs: tuple[str, ...] | None
    limits: tuple[int | None, int | None, int | None]
    """Bytes and rows of an epoch, bytes undelivered."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The next cut, asked for by the leader, whose start proves that everything before it is committed."""

    pipeline: str
    generation: int
    load: str
    """Its input, and behind a `/` what tells loads of the same input apart."""
    ends: Segments
    """Those that differ from the last cut's; none if the watermark alone does."""
    watermark: int | None


@dataclass(frozen=True, slots=True)
class Ask:
    """Spark has asked from epoch `start` and was told `end`, which was known before."""

    pipeline: str
    generation: int
    load: str
    """As in Plan."""
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Attach:
    """A query begins in a generation that has seen another one: who leads is open again."""

    pipeline: str
    generation: int


@dataclass(frozen=True, slots=True)
class Read:
    """Spark reads the epochs after `start` up to `end` without having asked."""

    pipeline: str
    generation: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Merge:
    """A batch becomes part of the output segments. It holds the running epochs."""

    pipeline: str
    generation: int | None
    batch: int
    ends: Mapping[str, int]
    """Where each port's output segment ends after it."""
    staged: tuple[tuple[str, str], ...] = ()
    """(port, segment) in order. Not in the ledger: the record that holds the entry merges them."""


@dataclass(frozen=True, slots=True)
class Complete:
    """Spark has committed all epochs up to this one."""

    pipeline: str
    generation: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Reset:
    pipeline: str


@dataclass(frozen=True, slots=True)
class Drop:
    pipeline: str
    segments: tuple[str, ...] = ()
    """Outputs that are deleted with it: what their names stand for later has nothing to do with them."""


@dataclass(frozen=True, slots=True)
class Retain:
    """Another retention."""

    mode: str
    amount: int


@dataclass(frozen=True, slots=True)
class MarkTime:
    """How long the segments are that have grown since the last mark."""

    time_us: int
    segments: Segments


@dataclass(frozen=True, slots=True)
class Expire:
    """What the marks up to this time say may be given up."""

    time_us: int


@dataclass(frozen=True, slots=True)
class Bind:
    """Sinks for ports of the pipeline, which may be unknown until now. One that is there keeps its place."""

    pipeline: str
    sinks: Mapping[str, tuple[str, str, bool, int]]
    """Name → port, URL, whether it votes, and where in the output segment it begins if it is new."""
    emptied: tuple[str, ...] = ()
    """Ports whose output segments hold nothing any more, or not yet."""


@dataclass(frozen=True, slots=True)
class Unbind:
    pipeline: str
    sink: str


@dataclass(frozen=True, slots=True)
class Attempt:
    """A round of two-phase commit begins, under a number that was never used."""

    pipeline: str


@dataclass(frozen=True, slots=True)
class Decide:
    """All have voted yes: the round's batch is committed at its sinks. This is the commit point."""

    pipeline: str
    attempt: int
    batch: int
    sent: Mapping[str, int]
    """Sink → the id of its next message."""


@dataclass(frozen=True, slots=True)
class Follow:
    """A sink that does not vote has taken the batch."""

    pipeline: str
    sink: str
    batch: int
    sent: int


@dataclass(frozen=True, slots=True)
class Park:
    """The sink will never be given the batch."""

    pipeline: str
    sink: str
    batch: int
    staged: tuple[tuple[str, str], ...] = ()
    """(target, segment): the dead letters. Not in the ledger: the record that holds the entry merges them."""


@dataclass(frozen=True, slots=True)
class Replay:
    """The letters of a port are sent through again, up to a place in its output segment."""

    pipeline: str
    port: str
    after: int
    """Where those end that were replayed before."""
    upto: int
    starts: Mapping[str, int]
    """Input → where the segment ended, before this, that it reads them from: a new reader begins there."""
    staged: tuple[tuple[str, str], ...] = ()
    """(target, segment): copies of the events. Not in the ledger: the record that holds the entry merges them."""


@dataclass(frozen=True, slots=True)
class Describe:
    """What the JSON rows of the pipeline's ports hold, as its query is built now."""

    pipeline: str
    generation: int
    schemas: Mapping[str, tuple[tuple[str, str], ...]]
    """Port → names and Spark types of the fields. A port whose rows are not made by us is not there."""


Command: TypeAlias = (
    Start
    | Plan
    | Ask
    | Read
    | Merge
    | Complete
    | Reset
    | Drop
    | Retain
    | MarkTime
    | Expire
    | Attach
    | Bind
    | Unbind
    | Attempt
    | Decide
    | Follow
    | Park
    | Replay
    | Describe
)

_BY_NUMBER: dict[int, type[Command]] = {
    1: Start,
    2: Plan,
    3: Ask,
    4: Read,
    5: Merge,
    6: Complete,
    7: Reset,
    8: Drop,
    9: Retain,
    10: MarkTime,
    11: Expire,
    12: Attach,
    13: Bind,
    14: Unbind,
    15: Attempt,
    16: Decide,
    17: Follow,
    18: Park,
    19: Replay,
    20: Describe,
}
_NUMBERS = {command: number for number, command in _BY_NUMBER.items()}
_STORED = {command: [f.name for f in fields(command) if f.name != "staged"] for command in _NUMBERS}


def encode(command: Command) -> list[Any]:
    kind = type(command)
    return [_NUMBERS[kind], *(getattr(command, name) for name in _STORED[kind])]


def decode(entry: tuple[Any, ...]) -> Command:
    """Raises Damaged for what this version does not know."""
    number, *values = entry
    kind = _BY_NUMBER.get(number)
    if kind is None or len(values) != len(_STORED[kind]):
        raise Damaged(f"the ledger has an entry {number!r} of {len(values)} fields", "Update this worker.")
    return kind(*values)


def pack(entry: list[Any]) -> bytes:
    packed: bytes = msgpack.packb(entry)
    return packed


def unpack(data: Buffer) -> tuple[Any, ...]:
    """Arrays come back as tuples, so that equal commands are equal."""
    entry: tuple[Any, ...] = msgpack.unpackb(data, use_list=False, strict_map_key=False)
    return entry


# What follows from a command, for the service to carry out.


@dataclass(frozen=True, slots=True)
class Merges:
    """Each (target, source): in the record that holds the command."""

    pairs: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Release:
    """How far every pipeline has completed the source's segments; None: no pipeline reads it any more.
    To be done when the command is durable.
    """

    source: str
    segments: Segments | None


@dataclass(frozen=True, slots=True)
class Truncate:
    """What may be given up, of each segment the bytes below an offset."""

    segments: Segments


@dataclass(frozen=True, slots=True)
class Sweep:
    """Staged segments whose names begin so are of no use any more."""

    prefix: str


Effect: TypeAlias = Merges | Release | Truncate | Sweep
