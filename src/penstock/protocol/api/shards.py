"""What the shards of a cluster ask of each other. All requests carry the cluster's secret."""

from collections.abc import Mapping, Sequence
from typing import Annotated, TypeAlias

import msgspec

from penstock.protocol.api.codec import Count, Request, Time
from penstock.protocol.api.pipelines import Limits, Range, Segments, StartingPlace

ShardNumber: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**31)]


class _OfHome(Request, frozen=True, kw_only=True):
    """About the pipelines of a home shard that read a source: see `coordinator.machine.subscriptions`."""

    home: ShardNumber
    term: Count
    number: Count
    source: str


class SubscribeTo(_OfHome, frozen=True, kw_only=True):
    """A pipeline is going to read the source from there; the reply has the offsets, which are retained."""

    pipeline: str
    starting: StartingPlace


class AdvanceIn(_OfHome, frozen=True, kw_only=True):
    """How far the pipelines are."""

    pipelines: Sequence[str]
    done: Segments
    floor: Segments


class UnsubscribeFrom(_OfHome, frozen=True, kw_only=True):
    """None of them reads it any more."""


class ClockWanted(msgspec.Struct, frozen=True):
    """What the windows of the pipelines wait for, if the source's watermark follows the worker's clock."""

    next_times: Sequence[Time] = ()
    is_unknown: bool = False


class Follow(Request, frozen=True, kw_only=True):
    """What is new in a source after these offsets. Waits until there is something, or `wait_ms`."""

    home: ShardNumber
    source: str
    after: Segments
    """Segment → where its next record starts; one that is not named: 0."""
    known: str = ""
    """The `version` of the last reply."""
    bytes_max: Count
    """Of heads, with an allowance for each record: see RECORD_BYTES."""
    opening_at: Segments | None = None
    """Also: which streams are open there."""
    reads_at: Segments = msgspec.field(default_factory=dict)
    """For outputs: from where the watermarks are needed."""
    wait_ms: Count = 0
    clock: ClockWanted = ClockWanted()


RECORD_BYTES = 64
"""What a record takes in memory beside its head."""


class Block(msgspec.Struct, frozen=True):
    """Consecutive records of a segment. Columns of little-endian numbers: 64 bits, for `lengths` 32."""

    ends: bytes
    arrivals: bytes
    """In microseconds; 0: not known."""
    lengths: bytes
    """Of the heads."""
    heads: bytes


class FollowedSegment(msgspec.Struct, frozen=True):
    begin: Count
    """The first offset that is still stored."""
    end: Count
    """Everything up to there is durable."""
    start: Count
    """Where the first record of the block starts."""
    block: Block
    number: int = 0
    """Of the segment: one that is created again under the same name has another one. 0: not known."""


class Opening(msgspec.Struct, frozen=True):
    """The state of a connector at some offsets: streams that are open, and segments that have ended for good."""

    streams: bytes
    """64-bit numbers, little-endian."""
    finished: Sequence[int]
    segments: int


class OutputRows(msgspec.Struct, frozen=True):
    """The watermarks of a pipeline's output."""

    is_registered: bool
    rows: Sequence[tuple[int, int | None]]
    """Where the output ended after an epoch, and the watermark there: the last one before the reader, and those that
    follow."""


class Followed(msgspec.Struct, frozen=True):
    version: str
    segments: Mapping[str, FollowedSegment]
    """All that the source has."""
    disorder_us: int = 0
    has_finished: bool = False
    times: tuple[bool, bool, float | None, int, int | None, int] | None = None
    """How a connector's events get their times, as in `coordinator.settings.SourceTimes`: for people."""
    opening: Opening | None = None
    output: OutputRows | None = None


class ResolveIn(Request, frozen=True, kw_only=True):
    """As `/sources/resolve`, for sources of this shard."""

    sources: Sequence[str]
    position: StartingPlace


class CutIn(Request, frozen=True, kw_only=True):
    """As `/sources/cut`."""

    sources: Sequence[str]
    start: Segments
    upto: Segments | None = None
    limits: Limits | None = None
    wait_ms: Count = 0


class SplitIn(Request, frozen=True, kw_only=True):
    """As `/splits`: the ranges in parts of about this size."""

    ranges: Sequence[Range]
    part_bytes: Count
    skip_lost: bool = False


class RowsIn(Request, frozen=True, kw_only=True):
    """Up to where there are at most so many rows; at least one record."""

    segment: str
    start: Count
    end: Count
    rows_max: Count


class EventIn(Request, frozen=True, kw_only=True):
    """Where the event at this place ends."""

    segment: str
    offset: Count


class EndOffset(msgspec.Struct, frozen=True):
    end: int


class Claims(Request, frozen=True, kw_only=True):
    """Commands of a partition of the source to its registry, in order: see `ingest.stream_claims`."""

    source: str
    commands: Sequence[bytes]


class ClaimsAnswered(msgspec.Struct, frozen=True):
    """One for each command."""

    answers: Sequence[bytes]


class HeldBy(Request, frozen=True, kw_only=True):
    """Which streams a partition of the source has under older terms than this one."""

    source: str
    partition: Count
    term: Count


class Held(msgspec.Struct, frozen=True):
    """Some of them, if there are many: whoever gives them up asks again."""

    streams: Sequence[tuple[int, int, int]]
    """Stream, and the term and number of its claim."""
    replaced_by: int = 0
    """A newer term has begun: the caller does not serve its shard any more."""


class Declared(Request, frozen=True, kw_only=True):
    """What the application declares about this source has changed: it is in the bucket. The reply comes when the
    partition there has it, and, if it is not to be read any more, everything that was read is durable.
    """

    source: str


class AskPlaces(Request, frozen=True, kw_only=True):
    """Where tasks read these segments."""

    segments: Sequence[str]


class Places(msgspec.Struct, frozen=True):
    """Segment → HTTP address of the worker that serves it; one that is not named: this worker."""

    workers: Mapping[str, str]
