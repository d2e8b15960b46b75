"""The reply to GET /status: everything that a worker reports about itself, its sources and its pipelines. Also the
replies to health probes.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

import msgspec

from penstock.protocol.api.delivery import SinkStatus
from penstock.protocol.api.pipelines import PipelineStatus, StartingPipeline


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """The base of all parts of a status."""


class BucketStatus(Part, frozen=True, kw_only=True):
    """The object store that the journal is in."""

    url: str
    worker: str
    """The id by which other workers know this one."""
    lease: str
    """held; late, when it could not be renewed in time and others may take over; taken, when one has"""
    objects: int
    """Of the shard's journal. Mirrored checkpoints and the cluster's records would take a listing, and are left out."""
    bytes: int
    """Of the same objects."""
    log_objects: int
    """Objects of the log since its last checkpoint, which a take-over must read."""
    cached_bytes: int
    requests: dict[str, int]
    """Since the start, by kind: get, put, delete, list."""
    failures: dict[str, int]
    """Since the start, by kind: throttled, unreachable, forbidden, full."""
    bytes_read: int
    bytes_written: int
    requests_per_second: float
    """Over the last ten seconds."""
    requests_per_month: int
    """At this rate."""
    problem: str
    """Why nothing becomes durable; empty if it does."""


class StoreStatus(Part, frozen=True, kw_only=True):
    segments: int
    chapters: int
    live_bytes: int
    journal_end: int
    journal_durable: int
    journal_queued_bytes: int
    recovery_seconds: float
    compaction_moved_bytes: int
    chapters_dropped: int
    oldest_unsynced_seconds: float
    """How long the oldest write that is not on disk has been waiting; 0 if everything is."""
    disk_free_bytes: int
    """On the file system of the journal."""
    disk_full: bool
    """Appends are refused until there is room."""
    damaged: int
    """Segments and files that cannot be read."""
    bucket: BucketStatus | None = None
    """None for a journal on a disk."""


class TraceStatus(Part, frozen=True, kw_only=True):
    """Spans of traces, since the worker started."""

    spans_exported: int
    spans_dropped: int
    """Because the queue was full, or the collector did not accept them."""
    spans_queued: int


class LoopStatus(Part, frozen=True, kw_only=True):
    """How often the event loop was blocked for more than 0.25 s since the worker started, and the longest time."""

    stalls: int
    longest_stall_seconds: float
    lag_seconds: float
    """Its delay at the last measurement."""


class SegmentServerStatus(Part, frozen=True, kw_only=True):
    open_connections: int
    paused_connections: int
    unacknowledged_bytes: int
    tail_reads: int
    connections: int
    connections_refused: int
    connections_evicted: int
    protocol_errors: int
    appends: int
    appended_bytes: int
    duplicates: int
    refused: int
    reads: int
    read_bytes: int
    locates: int = 0
    """Replies to readers that then read the journal's files themselves, on the same machine or in a bucket."""
    located_bytes: int = 0
    located_remote_bytes: int = 0
    """Those of them that are only in the bucket for the reader."""
    locates_refused: int = 0
    """Of readers on other machines while the journal is in no bucket, or all while short-circuit reads are off."""


# Sources, and the sessions of programs that send to them.


class SourceDefaults(Part, frozen=True, kw_only=True):
    """The settings that a new source gets."""

    event_time_unit: str
    event_time_ingest: bool


class SourceStatus(Part, frozen=True, kw_only=True):
    """Counters are since the worker started."""

    messages: int
    message_bytes: int
    duplicates: int
    acks_await_pipelines: bool
    """Whether acknowledgements wait until pipelines have completed the messages."""
    released: Mapping[str, int]
    """Segment → up to where all pipelines have completed it; empty if acknowledgements do not wait for them."""
    acknowledged: Mapping[str, int]
    waiting_bytes: int
    """Durable, but not acknowledged yet."""
    segments: Sequence[str]
    sessions: int
    """The number of programs that are connected."""
    credits: int
    """How many messages they may send."""
    streams: int
    retained_bytes: int
    has_room: bool
    ack: str
    idle_streams: int
    has_finished: bool
    max_disorder_seconds: float
    idle_timeout_seconds: float | None
    event_time_unit: str
    event_time_ingest: bool
    when_all_idle: str
    has_arrival_times: bool
    last_event_us: int | None
    silent_seconds: float | None = None
    """Since its last event, or since a program has connected or disconnected after that; None: neither has happened
    since the worker started.
    """
    had_programs: bool = False
    """Whether a program has been connected since the worker started."""
    event_time_field: str | None = None
    """The field of its events that contains their time."""
    untimed: int = 0
    """Events without a usable time in it: they got their arrival time, or are dead letters."""


class SourceTotals(Part, frozen=True, kw_only=True):
    """Totals of all sources. Counters are since the worker started."""

    count: int
    active_streams: int
    closing_streams: int
    known_streams: int
    idle_streams: int
    messages: int
    message_bytes: int
    duplicates: int
    streams_opened: int
    streams_refused: int
    streams_ended: int
    untimed: int = 0
    """Events without a usable time in the field that should contain it."""


class SessionStatus(Part, frozen=True, kw_only=True):
    """One connection on the connector protocol. Before its HELLO it has no source."""

    peer: str
    program: str
    source: str | None
    state: str
    streams: int = 0
    credits: int = 0
    in_flight_bytes: int = 0
    ack_lag_seconds: float = 0.0


class SessionError(Part, frozen=True, kw_only=True):
    peer: str
    error: str


class SessionTotals(Part, frozen=True, kw_only=True):
    """Totals of all sessions. Counters are since the worker started."""

    open: int
    credits: int
    in_flight_bytes: int
    ack_lag_seconds: float
    """The highest of any session."""
    joined: int
    refused: int
    frames_sent: int
    protocol_errors: int
    errors_from_sources: int
    closed_for_room: int


# The application and its connectors.


class ApplicationStatus(Part, frozen=True, kw_only=True):
    """`revision` is 0 if nothing is deployed."""

    revision: int
    name: str
    state: str
    waits_for: Sequence[str]
    """What a drain waits for."""
    reason: str = ""
    """Why it has failed, if its state is `failed`; then no part of it runs."""


class BlockedStream(Part, frozen=True, kw_only=True):
    """A stream that may not send, and why."""

    stream_id: int
    stream: str
    """Its name, or # and its id."""
    why: str


class TrippedStream(Part, frozen=True, kw_only=True):
    """A stream whose breaker at this sink is not passing, and why."""

    connector: str
    stream_id: int
    why: str


class ConnectorStatus(Part, frozen=True, kw_only=True):
    name: str
    id: str
    instance: str
    type: str
    state: str
    """starting, connected, disconnected, ended, failed, draining or stopped, whether it is paused or not."""
    reason: str
    streams: int = 0
    """The number of open streams."""
    blocked_count: int = 0
    """The number of open streams that may not send."""
    blocked_streams: Sequence[BlockedStream] = ()
    """Some of them."""
    paused: bool = False
    paused_streams: Sequence[int] = ()
    breaker: str = ""
    """The state of its `in` port as a whole: passing, tripped or probing; "" if it has none."""
    breaker_reason: str = ""
    """Why its `in` port accepts nothing; "" if it accepts events."""
    tripped_streams: Sequence[TrippedStream] = ()
    """Some of the streams that its `in` port has tripped."""
    tripped_count: int = 0
    events_in: int = 0
    bytes_in: int = 0
    events_out: int = 0
    dead_letters: int = 0
    """Input that could not become an event, and output that could not be sent."""
    outbox_bytes: int = 0
    """Retained on disk for tripped streams."""
    guarantee: Mapping[str, str] = {}
    """By port."""
    reached_at: str = ""
    """Where programs reach it, for people."""
    counts: Mapping[str, int] = {}


class OperatorStatus(Part, frozen=True, kw_only=True):
    """Totals over an operator's buckets. `waiting` counts what people call open windows: one for each key and window
    that has not fired. `open_windows` counts windows that have state, a window once for all keys, also those that have
    fired and may still be corrected. `bucket_bytes` is the size of the largest bucket: the limit applies to it.
    """

    pipeline: str
    operator: str
    epoch: int
    buckets: int
    open_windows: int
    keys: int
    state_bytes: int
    bucket_bytes: int
    late_kept: int
    late_dropped: int
    waiting: int
    first_end: int | None
    buffered: int = 0


# How fast everything flows.


class SourceRates(Part, frozen=True, kw_only=True):
    events_per_second: float = 0.0
    bytes_per_second: float = 0.0


class PipelineRates(Part, frozen=True, kw_only=True):
    """`rows_in` and `rows_out` count from the start of the worker."""

    rows_in_per_second: float = 0.0
    bytes_in_per_second: float = 0.0
    rows_out_per_second: float = 0.0
    epoch_seconds: float | None = None
    """Of the last epoch, from its cut to its completion; None: there was none yet."""
    latency_seconds: float | None = None
    """Of the last epoch, from the arrival of its first event to its completion; None: there was none yet."""
    rows_in: int = 0
    rows_out: Mapping[str, int] = {}
    """By port; those of `err` are dead letters."""


class SinkRates(Part, frozen=True, kw_only=True):
    rows_per_second: float = 0.0
    epochs_per_second: float = 0.0


class RatesStatus(Part, frozen=True, kw_only=True):
    seconds: float
    """The period over which rates are computed."""
    sources: Mapping[str, SourceRates]
    pipelines: Mapping[str, PipelineRates]
    sinks: Mapping[str, Mapping[str, SinkRates]]
    """By pipeline and name."""


BlockageKind: TypeAlias = Literal[
    "disk",
    "application",
    "connector",
    "streams",
    "sink",
    "output",
    "spark",
    "driver",
    "failing",
    "stopped",
    "former",
    "unheard",
    "source",
    "starting",
    "windows",
    "idle",
]


class Blockage(Part, frozen=True, kw_only=True):
    """A link of the chain from sources to sinks that others wait for."""

    kind: BlockageKind
    link: str
    """The name of what blocks: "sink files", "Spark's JVM", "source orders"."""
    text: str
    """A sentence: what is blocked, by what, why, and for how long."""
    hint: str = ""
    """What to do."""
    pipeline: str = ""
    """The pipeline that is blocked, if it is one."""
    seconds: float | None = None
    """For how long the link has been waited for, if that is known."""

    @property
    def is_blocking(self) -> bool:
        """Whether anything that could proceed does not: otherwise everything waits for events, time, or a start."""
        return self.kind not in ("unheard", "starting", "windows", "idle")

    def is_at_sink(self, pipeline: str, name: str) -> bool:
        """Whether this sink is what blocks. Sinks of other pipelines may have the same name."""
        return (self.pipeline, self.link) == (pipeline, f"sink {name}")

    def __str__(self) -> str:
        return f"{self.text}. {self.hint}" if self.hint else self.text


class ShardStatus(Part, frozen=True, kw_only=True):
    """A shard of the cluster, in the status of a host."""

    shard: int
    worker: str
    """The process that owns it; "" if no worker has ever served it."""
    host: str
    addresses: dict[str, str]
    is_served: bool
    sources: Sequence[str]
    pipelines: Sequence[str]
    problems: Sequence[str]


class WorkerStatus(Part, frozen=True, kw_only=True):
    version: str
    id: str
    pid: int
    data: str
    uptime_seconds: float
    ports: dict[str, int]
    """The ports `connector`, `segment` and `http`."""
    tls: bool
    problems: Sequence[str]
    blockages: Sequence[Blockage]
    """What blocks progress; causes come before their consequences. Then what everything waits for that is not blocked.
    """
    store: StoreStatus
    loop: LoopStatus
    segment_server: SegmentServerStatus
    sources: Mapping[str, SourceStatus]
    source_totals: SourceTotals
    source_defaults: SourceDefaults
    damaged_sources: Mapping[str, str]
    """Source → why it is refused."""
    sessions: Sequence[SessionStatus]
    session_totals: SessionTotals
    session_errors: Sequence[SessionError]
    """The most recent ones."""
    application: ApplicationStatus | None
    """None if the stored deployment cannot be read."""
    connectors: Sequence[ConnectorStatus]
    pipelines: Sequence[PipelineStatus]
    starting: Sequence[StartingPipeline]
    sinks: Sequence[SinkStatus]
    windows: Sequence[OperatorStatus]
    rates: RatesStatus
    shards: Sequence[ShardStatus] = ()
    """Of a host: all shards of the cluster. Everything else is then what they have together."""


class Health(Part, frozen=True, kw_only=True):
    """The reply to /live, /ready and /health; its HTTP status is 503 unless it is `ok`."""

    ok: bool
    problems: Sequence[str] = ()
