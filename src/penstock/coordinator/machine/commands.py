"""Commands change the coordinator's state; effects are what the service must do after one.

In the ledger a command is a MessagePack array: the number of its kind, then its fields in order.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

import msgpack

from penstock.core.errors import Damaged
from penstock.core.types import Buffer
from penstock.protocol.api.pipelines import Segments


@dataclass(frozen=True, slots=True)
class Start:
    """Starts a new generation, or adds inputs to the one that the same request has started."""

    pipeline: str
    request: str
    inputs: Mapping[str, tuple[tuple[str, ...], Segments]]
    """Input → its sources, and where it starts in those of their segments that it did not read before."""
    outputs: tuple[str, ...] | None
    limits: tuple[int | None, int | None, int | None]
    """Bytes and rows of an epoch; undelivered bytes."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Decides the next cut. The leader has asked for it, which proves that everything before it is committed."""

    pipeline: str
    generation: int
    load: str
    """`INPUT/ID`: the id distinguishes loads of the same input."""
    ends: Segments
    """Those that differ from the last cut; none if only the watermark does."""
    watermark: int | None


@dataclass(frozen=True, slots=True)
class Ask:
    """Spark has asked from epoch `start`, and the answer was `end`, which was known before."""

    pipeline: str
    generation: int
    load: str
    """As in Plan."""
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Attach:
    """A query starts in a generation that had another one: any load may become the leader."""

    pipeline: str
    generation: int


@dataclass(frozen=True, slots=True)
class Read:
    """Spark reads from the cut of `start` to that of `end` without having asked: it runs a batch again."""

    pipeline: str
    generation: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Merge:
    """The output of an epoch becomes part of the output segments. It has read between the running cuts."""

    pipeline: str
    generation: int | None
    epoch: int
    ends: Mapping[str, int]
    """Port → where its output segment ends afterwards."""
    staged: tuple[tuple[str, str], ...] = ()
    """(port, segment) in order. Not in the ledger: the journal record of the entry merges them."""
    manifest: str = ""
    """The mirrored checkpoint with which Spark runs this epoch again; "": it is not mirrored."""
    merges: tuple[tuple[str, str], ...] = ()
    """More merges of the same record, (target, segment). Not in the ledger either."""


@dataclass(frozen=True, slots=True)
class Mirror:
    """The checkpoint of a pipeline with Spark's own sinks is mirrored. It is based on the one that was before."""

    pipeline: str
    generation: int
    before: str
    manifest: str


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
    """Output segments that are deleted with it: segments created later under these names are others."""


@dataclass(frozen=True, slots=True)
class Retain:
    """Changes the retention."""

    mode: str
    amount: int


@dataclass(frozen=True, slots=True)
class MarkTime:
    """Records the lengths of the segments that have grown since the last mark."""

    time_us: int
    segments: Segments


@dataclass(frozen=True, slots=True)
class Expire:
    """Data before the marks up to this time may be removed."""

    time_us: int


@dataclass(frozen=True, slots=True)
class Bind:
    """Binds sinks to ports of the pipeline, which may be unknown until now. A sink that is already bound keeps its
    position.
    """

    pipeline: str
    sinks: Mapping[str, tuple[str, str, bool, int]]
    """Name → port, URL, whether it votes, and where in the output segment it starts if it is new."""
    emptied: tuple[str, ...] = ()
    """Ports whose output segments are empty."""


@dataclass(frozen=True, slots=True)
class Unbind:
    pipeline: str
    sink: str


@dataclass(frozen=True, slots=True)
class Attempt:
    """A round of two-phase commit starts, under a number that is never used again."""

    pipeline: str


@dataclass(frozen=True, slots=True)
class Decide:
    """All sinks of the round have voted yes: its epoch is committed at them. This is the commit point."""

    pipeline: str
    attempt: int
    epoch: int
    sent: Mapping[str, int]
    """Sink → the id of its next message."""


@dataclass(frozen=True, slots=True)
class Follow:
    """A non-voting sink has taken the epoch."""

    pipeline: str
    sink: str
    epoch: int
    sent: int


@dataclass(frozen=True, slots=True)
class Park:
    """The epoch is set aside for this sink, which never gets it."""

    pipeline: str
    sink: str
    epoch: int
    staged: tuple[tuple[str, str], ...] = ()
    """(target, segment): the copy of its bytes. Not in the ledger: the journal record of the entry merges it."""


@dataclass(frozen=True, slots=True)
class Replay:
    """The dead letters of a port are replayed, up to an offset in its output segment."""

    pipeline: str
    port: str
    after: int
    """Where the last replay ended."""
    upto: int
    starts: Mapping[str, int]
    """Input → where its replay segment ended before: an input that has not read it starts there."""
    staged: tuple[tuple[str, str], ...] = ()
    """(target, segment): copies of the events. Not in the ledger: the journal record of the entry merges them."""


@dataclass(frozen=True, slots=True)
class ReplayChosen:
    """Single dead letters of a port are replayed, in whatever order they are chosen."""

    pipeline: str
    port: str
    ranges: tuple[tuple[int, int], ...]
    """Where each starts and ends in the port's output segment, ascending. None was replayed before."""
    starts: Mapping[str, int]
    """As in Replay."""
    staged: tuple[tuple[str, str], ...] = ()
    """As in Replay."""


@dataclass(frozen=True, slots=True)
class Describe:
    """Records the fields of the JSON rows of the pipeline's ports, as its query is built now."""

    pipeline: str
    generation: int
    schemas: Mapping[str, tuple[tuple[str, str], ...]]
    """Port → names and Spark types of the fields. Ports whose rows Penstock does not encode are not in it."""


@dataclass(frozen=True, slots=True)
class Adopt:
    """A voting sink whose data does not fit the ledger continues from what it has."""

    pipeline: str
    sink: str
    before: tuple[int, str]
    """`sent` and `decided` as they were when the sink was compared."""
    at: int
    """Where in the output segment it continues. Lower than before: what follows is delivered again."""
    sent: int
    decided: str
    attempts: int
    """The highest attempt that the sink knows: none up to there is used again."""
    accepted: str
    """`gap`, `duplicates`, or "" if neither remains."""
    by: str
    time_us: int


@dataclass(frozen=True, slots=True)
class Fork:
    """Registers a pipeline that starts after the last committed epoch of another one."""

    pipeline: str
    origin: str


@dataclass(frozen=True, slots=True)
class Bury:
    """Tasks leave these events out, and they leave through `err` instead; with `undo`, tasks read them again."""

    pipeline: str
    events: tuple[tuple[str, int, int], ...]
    """(segment, offset, end)."""
    reason: str
    undo: bool


@dataclass(frozen=True, slots=True)
class Serve:
    """A process begins to serve the shard of a cluster: what it sends to other shards carries its number."""


@dataclass(frozen=True, slots=True)
class Place:
    """A source that a pipeline is going to read is in another shard, which learns how far the pipeline is."""

    source: str
    shard: int


@dataclass(frozen=True, slots=True)
class Subscribe:
    """A pipeline of another shard, its home, is going to read a source of this one, from these positions on. `term` and
    `number` order what the home shard sends: see `machine.subscriptions`.
    """

    home: int
    term: int
    number: int
    source: str
    pipeline: str
    positions: Segments


@dataclass(frozen=True, slots=True)
class Advance:
    """How far all pipelines of another shard are in a source of this one. Replaces what was known of them."""

    home: int
    term: int
    number: int
    source: str
    pipelines: tuple[str, ...]
    done: Segments
    """Segment → how far they all have completed it."""
    floor: Segments
    """Segment → what is before it none of them reads again."""


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    """No pipeline of that shard reads the source any more."""

    home: int
    term: int
    number: int
    source: str


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
    | Adopt
    | Fork
    | Bury
    | Mirror
    | Serve
    | Place
    | Subscribe
    | Advance
    | Unsubscribe
    | ReplayChosen
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
    21: Adopt,
    22: Fork,
    23: Bury,
    24: Mirror,
    25: Serve,
    26: Place,
    27: Subscribe,
    28: Advance,
    29: Unsubscribe,
    30: ReplayChosen,
}
_NUMBERS = {command: number for number, command in _BY_NUMBER.items()}
_NOT_STORED = ("staged", "merges")
_STORED = {command: [f.name for f in fields(command) if f.name not in _NOT_STORED] for command in _NUMBERS}
_OPTIONAL: dict[type[Command], int] = {Merge: 1}
"""How many of the last fields are stored only if they have a value: older versions do not have them."""


def encode(command: Command) -> list[Any]:
    kind = type(command)
    values = [getattr(command, name) for name in _STORED[kind]]
    for _ in range(_OPTIONAL.get(kind, 0)):
        if not values[-1]:
            values.pop()
    return [_NUMBERS[kind], *values]


def decode(entry: tuple[Any, ...]) -> Command:
    """Raises Damaged for a command that this version does not know."""
    number, *values = entry
    kind = _BY_NUMBER.get(number)
    if kind is None or not 0 <= len(_STORED[kind]) - len(values) <= _OPTIONAL.get(kind, 0):
        raise Damaged(
            f"the ledger has an entry of unknown kind {number!r} with {len(values)} fields",
            "Use the version of Penstock that wrote it, or a newer one.",
        )
    return kind(**dict(zip(_STORED[kind], values, strict=False)))


def pack(entry: list[Any]) -> bytes:
    packed: bytes = msgpack.packb(entry)
    return packed


def unpack(data: Buffer) -> tuple[Any, ...]:
    """Arrays become tuples, so that equal commands compare equal."""
    entry: tuple[Any, ...] = msgpack.unpackb(data, use_list=False, strict_map_key=False)
    return entry


# Effects.


@dataclass(frozen=True, slots=True)
class Merges:
    """Merge each (target, source), in the journal record of the command."""

    pairs: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Release:
    """Acknowledge the source up to what every pipeline has completed; None: no pipeline reads it any more. To be done
    when the command is durable.
    """

    source: str
    segments: Segments | None


@dataclass(frozen=True, slots=True)
class Truncate:
    """Segment → offset below which its bytes may be removed."""

    segments: Segments


@dataclass(frozen=True, slots=True)
class Sweep:
    """Delete the staged segments whose names start with this prefix."""

    prefix: str


Effect: TypeAlias = Merges | Release | Truncate | Sweep
