"""Requests to the coordinator about pipelines, their epochs and inputs, and its replies."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, Self, TypeAlias

import msgspec

from penstock.core.counts import show_count
from penstock.core.errors import RequestError
from penstock.protocol.api.codec import Count, Epoch, Positive, Request, Time
from penstock.protocol.stored.names import Form, Source

SourceNames: TypeAlias = Annotated[Sequence[str], msgspec.Meta(max_length=1000)]
"""A pipeline reads at most 1,000 segments; each name is looked up."""

Segments: TypeAlias = Mapping[str, Count]
"""Segment → offset."""


@dataclass(frozen=True, slots=True)
class AtTime:
    """From the first record whose highest event time is at or after this time."""

    timestamp_us: int


@dataclass(frozen=True, slots=True)
class AtSegments:
    """At these offsets. Segments that are not named are read from their start."""

    segments: Segments


LoadState: TypeAlias = Literal["reported", "unreported"]
"""Whether the operator that reads these control rows reports the contents of its state, as `penstock.windows` does."""


Starting: TypeAlias = Literal["earliest", "latest"] | AtTime | AtSegments
"""Where a reader without an offset begins."""


class Place(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The JSON form of AtTime or AtSegments: one of the two fields is set."""

    timestamp_us: Time | None = None
    segments: Segments | None = None

    def __post_init__(self) -> None:
        if (self.timestamp_us is None) == (self.segments is None):
            raise ValueError("expected `timestamp_us` or `segments`")


StartingPlace: TypeAlias = Literal["earliest", "latest"] | Place


def place_of(starting: Starting) -> StartingPlace:
    match starting:
        case AtTime(timestamp_us):
            return Place(timestamp_us=timestamp_us)
        case AtSegments(segments):
            return Place(segments=segments)
    return starting


def starting_of(place: StartingPlace) -> Starting:
    if not isinstance(place, Place):
        return place
    if place.timestamp_us is not None:
        return AtTime(place.timestamp_us)
    return AtSegments(in_order(place.segments or {}))


def in_order(segments: Segments) -> dict[str, int]:
    """Sorted by name."""
    return dict(sorted(segments.items()))


def segments_from_json(data: Any) -> dict[str, int]:
    """Validated and sorted by name: names are text, offsets are whole and not negative. Raises RequestError."""
    try:
        return in_order(msgspec.convert(data, Segments))
    except msgspec.ValidationError:
        raise RequestError(f"{data!r} is not a map from segments to offsets", 'Write {"segment": offset, …}.') from None


@dataclass(frozen=True, slots=True)
class InputSpec:
    """One load of a pipeline: the sources it reads, and where its first epoch begins."""

    sources: Sequence[str]
    starting: Starting = "earliest"


@dataclass(frozen=True, slots=True)
class Limits:
    """The size of an epoch, and how much of a pipeline's output may wait; None: the worker's default."""

    bytes: Positive | None = None
    rows: Positive | None = None
    undelivered_bytes: Positive | None = None


@dataclass(frozen=True, slots=True)
class InputOffset:
    """A position in all of an input's segments, as stored in Spark's checkpoint: the end of an epoch, or the start of
    the first one (NO_EPOCH). `epoch` is None for a load without a pipeline.
    """

    segments: Segments
    epoch: Epoch | None = None
    incarnation: Count | None = None
    watermark: int | None = None
    """In microseconds; None while nothing is known."""

    def __post_init__(self) -> None:
        if (self.epoch is None) != (self.incarnation is None):
            raise ValueError("expected both `epoch` and `incarnation`, or neither")

    def as_json(self) -> dict[str, Any]:
        if self.epoch is None:
            return {"segments": dict(sorted(self.segments.items()))}
        return {
            "epoch": self.epoch,
            "incarnation": self.incarnation,
            "segments": dict(sorted(self.segments.items())),
            "watermark": self.watermark,
        }

    def text(self) -> str:
        """Compact JSON with sorted keys: equal offsets have equal texts."""
        return json.dumps(self.as_json(), sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """The inverse of `as_json`. Raises RequestError."""
        try:
            return msgspec.convert(data, cls)
        except msgspec.ValidationError as error:
            raise RequestError(
                f"{data!r:.300} is not an offset: {error}",
                "Spark's checkpoint contains offsets of another source, or is damaged.",
            ) from None


@dataclass(frozen=True, slots=True)
class Started:
    """A new generation of a pipeline. `epoch` is the last planned one, or NO_EPOCH."""

    generation: int
    incarnation: int
    epoch: int
    segment_port: int
    tls: bool
    store: str | None = None
    """The URL of the bucket into which checkpoints on the driver's machine are mirrored; None: they are not."""
    manifest: str = ""
    """The mirrored checkpoint that the query continues from; "": none was mirrored."""


@dataclass(frozen=True, slots=True)
class MirroredCheckpoint:
    """What the ledger has of a pipeline's checkpoint in the bucket."""

    manifest: str
    """The one of the last commit; "": it was not mirrored."""
    merged: int
    """The last merged epoch, or NO_EPOCH."""
    shard: int = 0
    """The shard of the pipeline, below which its objects are."""


@dataclass(frozen=True, slots=True)
class Cut:
    """`offset` equals the start if there is nothing new. `blocked` is then the reason, unless nothing has arrived."""

    offset: InputOffset
    blocked: str | None = None
    is_lacking: bool = False
    """Some parts of committed epochs were not decoded to their end: `missing_parts` names them."""
    left_out: Sequence["Range"] = ()
    """Events between the start and `offset` that no task may read, because they are buried."""
    workers: Mapping[str, str] = field(default_factory=dict)
    """As in Splits."""


@dataclass(frozen=True, slots=True)
class Rereading:
    """Of a batch that is run again: where it starts, and the events that no task may read, because they are buried."""

    segments: Segments
    left_out: Sequence["Range"] = ()


@dataclass(frozen=True, slots=True)
class Running:
    """Spark's current batch contains the epochs after `start_epoch`, up to `end_epoch`. The watermarks at both ends are
    in microseconds; None while unknown.
    """

    start_epoch: int
    end_epoch: int
    before: int | None
    after: int | None
    sources: Sequence[str] = ()
    """Those that the pipeline reads."""


@dataclass(frozen=True, slots=True)
class StoredInput:
    """Bytes that a pipeline's sources have received since its first epoch began, and how many of them are
    still stored.
    """

    stored: int
    total: int

    @property
    def is_whole(self) -> bool:
        return self.stored == self.total


@dataclass(frozen=True, slots=True)
class Staged:
    """A segment that a task has staged for an output port, with its length and its number of rows (None: unknown).
    With a `target`, it is for that segment of a stream of Pravega's clients instead, and the port does not matter.
    """

    port: str
    segment: str
    length: Count
    rows: Count | None = None
    target: str = ""


class Span(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """An active segment of a stream of Pravega's clients: it has the routing keys whose hashes are in [low, high)."""

    segment: str
    low: float
    high: float

    @property
    def range(self) -> tuple[float, float]:
        return self.low, self.high


class Range(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The bytes [start, end) of a segment; in JSON an array of the three."""

    segment: str
    start: Count
    end: Count

    def __post_init__(self) -> None:
        if self.start > self.end:
            raise ValueError("the range ends before it starts")


@dataclass(frozen=True, slots=True)
class BatchRanges:
    """What the first epoch reads that is planned and not committed, or the last one if there is none."""

    epoch: int
    inputs: Mapping[str, Sequence[Range]]
    watermark: int | None = None
    """Before the epoch, in microseconds."""
    is_committed: bool = False


@dataclass(frozen=True, slots=True)
class Splits:
    """`splits` are contiguous and in order; `lost` are the requested bytes that no longer exist."""

    splits: Sequence[Range]
    lost: Sequence[Range] = ()
    workers: Mapping[str, str] = field(default_factory=dict)
    """Segment → the HTTP address of the worker that serves it, for those of other shards."""


@dataclass(frozen=True, slots=True)
class WatermarkBlocker:
    """What blocks a pipeline's watermark: a stream of a connector, the worker's clock, or an output. The last two
    have no stream.
    """

    source: str
    stream_id: int | None = None
    stream: str = ""
    """The stream's name."""
    time: int | None = None
    """Its own watermark, in microseconds; None: none of its events was read yet, or the output has no watermark."""

    def text(self) -> str:
        if self.stream_id is None and Source.parse(self.source).form is Form.CONNECTOR:
            return f"the worker's clock, for source {self.source}"
        who = f"stream {self.stream or self.stream_id!r}"
        if self.stream_id is None:
            is_output = Source.parse(self.source).form is Form.OUTPUT
            who = f"{'output' if is_output else 'stream'} {self.source}"
        of = "" if self.stream_id is None else f" of source {self.source}"
        if self.time is not None:
            return f"{who}{of}"
        return f"{who}{of}, {'which has no watermark' if self.stream_id is None else 'of which no event was read'} yet"


@dataclass(frozen=True, slots=True)
class StartingPipeline:
    """A pipeline that processes no events yet, because Spark is starting. Its driver may not have registered it yet."""

    name: str
    sources: Sequence[str]
    ready_in_seconds: float | None
    """An estimate; None if unknown."""


@dataclass(frozen=True, slots=True)
class QueryFailure:
    """Why a pipeline does not run, as its driver reports it."""

    text: Annotated[str, msgspec.Meta(max_length=1000)]
    failures: Annotated[int, msgspec.Meta(ge=0)]
    """In a row."""
    restart_in_seconds: float | None
    """None: the driver does not restart it."""
    hint: Annotated[str, msgspec.Meta(max_length=1000)] = ""
    """What to do about it."""

    def __str__(self) -> str:
        times = "" if self.failures < 2 else f" {self.failures} times in a row"
        if self.restart_in_seconds is None:
            return f"it has failed{times} and stays stopped: {self.text}"
        when = f"restarts in {seconds} s" if (seconds := round(self.restart_in_seconds)) else "is being restarted"
        return f"it has failed{times} and {when}: {self.text}"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryReport:
    """What a driver knows about its running query: what Spark's JVM has answered, and how long ago. The driver's own
    heartbeat shows only that the driver lives.
    """

    jvm_silent_seconds: Annotated[float, msgspec.Meta(ge=0)]
    """Since the JVM has answered."""
    doing: Annotated[str, msgspec.Meta(max_length=1000)] = ""
    """What the query does, in Spark's words: "Waiting for next trigger"."""
    tasks_done: Count = 0
    """Of the jobs that run now."""
    tasks: Count = 0
    unmoved_seconds: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """Since these numbers, or what it does, have changed."""

    def later(self, seconds: float) -> "QueryReport":
        """The same report, so much later."""
        return replace(
            self,
            jvm_silent_seconds=self.jvm_silent_seconds + seconds,
            unmoved_seconds=self.unmoved_seconds + seconds,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineStatus:
    """A pipeline as `penstock pipeline list` shows it. Epochs: the last one of each kind, or NO_EPOCH."""

    name: str
    state: Literal["STARTING", "RUNNING", "FAILING", "STOPPED"]
    """STARTING: it will process events as soon as Spark is up; FAILING: its query has failed, or its driver has been
    silent for too long.
    """
    incarnation: int
    generation: int
    planned: int
    merged: int
    delivered: int
    complete: int
    proved: int
    lag_bytes: int
    undelivered_bytes: int
    watermark: int | None
    blocked: str | None
    """What blocks its next cut: "blocked by …"; None: nothing."""
    heartbeat_age_seconds: float | None
    inputs: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Input → its sources."""
    outputs: Sequence[str] | None = None
    """Its ports; None: not known yet."""
    watermark_blocked_by: WatermarkBlocker | None = None
    """None if nothing blocks the watermark: no stream is active, or all sources have ended."""
    is_reset: bool = False
    """It was reset and has not been started since: its older checkpoint is useless."""
    watermark_unmoved_seconds: float | None = None
    """How long the watermark has not moved, as far as the worker knows; None: unknown."""
    open_windows: int | None = None
    """Windows that have not fired, one for each key and window; None: nothing was reported since the worker started."""
    open_windows_end: int | None = None
    """When the first of them ends, or the first buffered event can be emitted, in microseconds."""
    open_windows_wait: str | None = None
    """What they wait for, as a phrase that follows "2 windows open, "; None: no window is open. Some may be open
    without being reported: those of Spark's own operators, or after a restart of the worker.
    """
    buffered_events: int | None = None
    """Events that wait for the watermark, to be emitted in order; they wait for the same as open windows. None: nothing
    was reported since the worker started.
    """

    open_windows_sources: Sequence[str] = ()
    """The sources whose windows no clock closes: only further events or the end of the source do."""
    open_windows_by_clock: bool = False
    """The worker's clock closes them all, while the pipeline runs."""
    failure: QueryFailure | None = None
    """Why its query does not run; None: it runs, or its driver is silent."""
    driver_silent_seconds: float | None = None
    """Since the last heartbeat of its driver, whatever its query has asked since; None: its driver sends none."""
    asked_seconds: float | None = None
    """Since its query last asked for an epoch, or merged one."""
    running_epoch: int | None = None
    """The epoch that Spark processes now: its offsets are fixed, and its output is not merged."""
    running_seconds: float | None = None
    """For how long."""
    query: QueryReport | None = None
    """What its driver knows about the query, as of now; None: it has not reported anything."""

    def open_windows_text(self) -> str | None:
        """A sentence about open windows; None: no window is open, as far as the worker knows."""
        if self.open_windows_wait is None:
            return None
        contents = [f"{show_count(self.open_windows, 'window')} open"] if self.open_windows else []
        contents += [f"{show_count(self.buffered_events, 'event')} buffered"] if self.buffered_events else []
        return f"{self.name}: {' and '.join(contents) or 'windows may be open'}, {self.open_windows_wait}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketNumbers:
    """One bucket of one operator after an epoch. Late events are counted since the state was created."""

    bucket: Count
    open_windows: Count
    keys: Count
    state_bytes: Count
    late_kept: Count
    late_dropped: Count
    waiting: Count = 0
    """Windows that have not fired, one for each key and window."""
    first_end: Time | None = None
    """When the first of them ends, in microseconds."""
    next_time: Time | None = None
    """The watermark at which something fires or is removed next."""
    buffered: Count = 0
    """Events that wait for the watermark, to be emitted in order."""


class StartInput(Request, frozen=True, kw_only=True):
    sources: SourceNames
    starting: StartingPlace

    def spec(self) -> InputSpec:
        return InputSpec(self.sources, starting_of(self.starting))


class Start(Request, frozen=True, kw_only=True):
    inputs: Annotated[Mapping[str, StartInput], msgspec.Meta(max_length=100)]
    outputs: Sequence[str] | None = None
    limits: Limits | None = None
    fresh: bool | None = None
    request: str


class Announce(Request, frozen=True, kw_only=True):
    """The sources that each pipeline will read."""

    pipelines: Annotated[Mapping[str, SourceNames], msgspec.Meta(max_length=1000)]


class Initial(Request, frozen=True, kw_only=True):
    generation: Count
    input: str


class Attach(Request, frozen=True, kw_only=True):
    generation: Count
    input: str
    load: str
    sources: SourceNames
    upto: Segments | None = None


class AskCut(Request, frozen=True, kw_only=True):
    generation: Count
    input: str
    start: InputOffset
    load: str = ""
    upto: Segments | None = None
    limits: Limits | None = None
    wait_ms: Count = 0
    state: LoadState | None = None


class Reading(Request, frozen=True, kw_only=True):
    generation: Count
    input: str
    start: InputOffset
    end: InputOffset


ManifestName: TypeAlias = Annotated[str, msgspec.Meta(max_length=1000)]
"""The ledger has one for each pipeline."""


class Merge(Request, frozen=True, kw_only=True):
    generation: Count | None = None
    batch: Count
    staged: Sequence[Staged]
    manifest: ManifestName = ""
    """The mirrored checkpoint of this epoch."""


class AskRoute(Request, frozen=True, kw_only=True):
    """Where the tasks of this epoch route the rows for this target."""

    generation: Count | None = None
    epoch: Count
    target: str


class SegmentRoute(msgspec.Struct, frozen=True):
    """All active segments of the target, ordered by their key ranges."""

    spans: Sequence[Span]


class Mirror(Request, frozen=True, kw_only=True):
    """The checkpoint of a pipeline with Spark's own sinks was mirrored."""

    generation: Count
    before: ManifestName
    """The manifest that it is based on: the last one that was recorded."""
    manifest: ManifestName


class Abort(Request, frozen=True, kw_only=True):
    generation: Count | None = None
    batch: Count


class Complete(Request, frozen=True, kw_only=True):
    generation: Count
    epoch: Count


class Describe(Request, frozen=True, kw_only=True):
    """The names and Spark types of the fields of each port."""

    generation: Count
    schemas: Mapping[str, Sequence[tuple[str, str]]]


class Heartbeat(Request, frozen=True, kw_only=True):
    generation: Count
    stopped: bool = False
    failed: bool = False
    failure: QueryFailure | None = None
    query: QueryReport | None = None


class Reset(Request, frozen=True, kw_only=True):
    accept_partial: bool = False


class Fork(Request, frozen=True, kw_only=True):
    """The pipeline in the path starts where this one is."""

    origin: str


class Forked(msgspec.Struct, frozen=True):
    epoch: int
    """The last committed epoch of the other pipeline: the new one reads what follows."""


class Drop(Request, frozen=True, kw_only=True):
    outputs: bool = False


class ReportWindows(Request, frozen=True, kw_only=True):
    generation: Count | None = None
    operator: str
    epoch: Count
    buckets: Sequence[BucketNumbers]


class Resolve(Request, frozen=True, kw_only=True):
    sources: SourceNames
    position: StartingPlace


class CutSources(Request, frozen=True, kw_only=True):
    sources: SourceNames
    start: Segments
    upto: Segments | None = None
    limits: Limits | None = None
    wait_ms: Count = 0


class AskSplits(Request, frozen=True, kw_only=True):
    ranges: Sequence[Range]
    parts: Count
    bytes_min: Count = 0
    skip_lost: bool = False


class NameStreams(Request, frozen=True, kw_only=True):
    ids: Sequence[int]


class DeclareWatermark(Request, frozen=True, kw_only=True):
    time_us: Time
    stream: str | int | None = None
    """A stream's name or id; None: all streams that the source has now."""
    after: int | None = None


class PipelineList(msgspec.Struct, frozen=True):
    pipelines: Sequence[PipelineStatus]


class SegmentOffsets(msgspec.Struct, frozen=True):
    segments: Mapping[str, int]


class StreamNames(msgspec.Struct, frozen=True):
    names: Sequence[str]


class StreamCount(msgspec.Struct, frozen=True):
    streams: int
