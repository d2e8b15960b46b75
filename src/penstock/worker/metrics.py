"""The worker's metrics for Prometheus, read from the parts that keep them at each scrape.

Each kind of thing that there are several of has a table: a line for each metric, with its help text and where its value
comes from.
"""

import platform
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Generic, NamedTuple, TypeAlias, TypeVar

import msgspec
from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock.access.refusals import Port
from penstock.core.supervisor import TaskState
from penstock.protocol.api.delivery import EpochStatus, SinkStatus
from penstock.protocol.api.pipelines import PipelineStatus
from penstock.protocol.api.status import (
    BucketStatus,
    ConnectorStatus,
    LoopStatus,
    OperatorStatus,
    Part,
    SegmentServerStatus,
    SessionTotals,
    SourceStatus,
    SourceTotals,
    StoreStatus,
    TraceStatus,
)
from penstock.worker.certificates import expires_at

Families: TypeAlias = type[CounterMetricFamily] | type[GaugeMetricFamily]

T = TypeVar("T")

GAUGE, COUNTER = GaugeMetricFamily, CounterMetricFamily

LISTED_MAX = 1000


class Numbered(Collector):
    """Every number of a part of the status as a metric `penstock_<part>_<name>`."""

    def __init__(
        self, part: str, status: Callable[[], Part], *, counters: Collection[str], texts: Mapping[str, str]
    ) -> None:
        """`counters` are counters, the others gauges. The name alone explains those that `texts` has not."""
        self._prefix = f"penstock_{part}_"
        self._status = status
        self._counters = counters
        self._texts = texts

    def collect(self) -> Iterator[Metric]:
        for name, value in msgspec.structs.asdict(self._status()).items():
            if not isinstance(value, int | float):
                continue
            family = COUNTER if name in self._counters else GAUGE
            yield family(self._prefix + name, self._texts.get(name) or _text(name), value)


_STORE = {
    "segments": "Segments that exist",
    "chapters": "Files or objects that the journal consists of",
    "journal_end": "Where the journal ends, in bytes since its beginning",
    "journal_durable": "Up to where it is durable",
    "live_bytes": "Bytes that segments store: compare with the disk",
    "journal_queued_bytes": "Bytes received and not yet durable",
    "recovery_seconds": "How long the journal was read at the start",
    "compaction_moved_bytes": "Bytes that compaction has written again",
    "chapters_dropped": "Files or objects of the journal deleted, because nothing in them was needed",
    "oldest_unsynced_seconds": "How long the oldest write has been waiting for the disk",
    "disk_free_bytes": "Free bytes on the disk of the journal",
    "disk_full": "1 while appends are refused for lack of room",
    "damaged": "Segments and files that cannot be read",
}


def store(status: Callable[[], StoreStatus]) -> Collector:
    return Numbered("store", status, counters=("compaction_moved_bytes", "chapters_dropped"), texts=_STORE)


_TRACES = {
    "spans_exported": "Spans that a collector has taken",
    "spans_dropped": "Spans that were lost: the queue was full, or the collector did not accept them",
    "spans_queued": "Spans that wait",
}


def traces(status: Callable[[], TraceStatus]) -> Collector:
    return Numbered("traces", status, counters=("spans_exported", "spans_dropped"), texts=_TRACES)


_LOOP = {
    "stalls": "How often the event loop stood still for more than 0.25 s",
    "longest_stall_seconds": "The longest time that it stood still",
    "lag_seconds": "How late it was at the last measurement",
}


def loop(status: Callable[[], LoopStatus]) -> Collector:
    return Numbered("loop", status, counters=("stalls",), texts=_LOOP)


_ALL_SOURCES = {
    "count": "Sources",
    "idle_streams": "Streams that the watermark does not wait for, because they are silent",
    "messages": "Messages stored",
    "message_bytes": "Bytes of messages stored",
    "duplicates": "Messages that were sent again and dropped",
    "untimed": "Events without a usable time in the field that should contain it",
}


def sources(status: Callable[[], SourceTotals]) -> Collector:
    streams = ("streams_opened", "streams_refused", "streams_ended")
    counters = ("messages", "message_bytes", "duplicates", "untimed", *streams)
    return Numbered("sources", status, counters=counters, texts=_ALL_SOURCES)


_SESSIONS = {
    "open": "Programs that are connected",
    "credits": "Messages that they may send",
    "in_flight_bytes": "Bytes that they have sent and that are not durable yet",
    "ack_lag_seconds": "How long the oldest unacknowledged message of any program has waited",
    "joined": "Programs that have connected",
    "refused": "Programs that were refused",
    "errors_from_sources": "ERROR frames from programs",
    "closed_for_room": "Programs disconnected because the quota or the disk was full; they resume",
}


def sessions(status: Callable[[], SessionTotals]) -> Collector:
    errors = ("protocol_errors", "errors_from_sources", "closed_for_room")
    return Numbered("sessions", status, counters=("joined", "refused", "frames_sent", *errors), texts=_SESSIONS)


_SEGMENT_SERVER = {
    "paused_connections": "Peers that are being slowed down",
    "unacknowledged_bytes": "Bytes of appends that are not durable yet",
    "tail_reads": "Reads that wait for new bytes",
    "connections": "Connections accepted",
    "connections_evicted": "Idle connections closed for new ones, at --connections",
    "protocol_errors": "Connections closed for what they sent",
    "duplicates": "Appends that were already stored",
    "refused": "Appends refused: quota, full disk, sealed",
    "read_bytes": "Bytes that readers got over the socket",
    "located_bytes": "Bytes that readers were to read from the journal's files or objects themselves",
    "located_remote_bytes": "Those of the located bytes that the reader finds in the bucket alone",
    "locates": "Replies to readers that then read the files or objects themselves",
    "locates_refused": "Such readers refused: on another machine without a bucket, or with --no-short-circuit",
}


def segment_server(status: Callable[[], SegmentServerStatus]) -> Collector:
    connections = ("connections", "connections_refused", "connections_evicted", "protocol_errors")
    data = ("appends", "appended_bytes", "duplicates", "refused", "reads", "read_bytes")
    located = ("locates", "located_bytes", "located_remote_bytes", "locates_refused")
    return Numbered("segment", status, counters=(*connections, *data, *located), texts=_SEGMENT_SERVER)


class Line(NamedTuple, Generic[T]):
    family: Families
    name: str
    text: str
    value: Callable[[T], float | None]
    """None: this one has no value now."""


class Table(Collector, Generic[T]):
    """Metrics `penstock_<part>_<name>` of things that are listed on request, one for each label: of at most LISTED_MAX
    things, so that a worker with many sources does not flood its monitoring.
    """

    def __init__(
        self,
        part: str,
        labels: Mapping[str, Callable[[T], str]],
        lines: Sequence[Line[T]],
        listed: Callable[[], Sequence[T]],
    ) -> None:
        self._prefix = f"penstock_{part}_"
        self._labels = labels
        self._lines = lines
        self._listed = listed

    def collect(self) -> Iterator[Metric]:
        found = self._listed()[:LISTED_MAX]
        for line in self._lines:
            family = line.family(self._prefix + line.name, line.text, labels=[*self._labels])
            for one in found:
                if (value := line.value(one)) is not None:
                    family.add_metric([label(one) for label in self._labels.values()], value)
            yield family


def _text(name: str) -> str:
    return name.replace("_", " ").capitalize()


_BUCKET: list[Line[BucketStatus]] = [
    Line(
        GAUGE,
        "objects",
        "Objects of the journal, without mirrored checkpoints and the cluster's records",
        attrgetter("objects"),
    ),
    Line(GAUGE, "bytes", "Their size", attrgetter("bytes")),
    Line(GAUGE, "log_objects", "Objects of the log that a take-over must read", attrgetter("log_objects")),
    Line(GAUGE, "cached_bytes", "Local copies of objects", attrgetter("cached_bytes")),
    Line(COUNTER, "bytes_read", "Bytes read from the bucket", attrgetter("bytes_read")),
    Line(COUNTER, "bytes_written", "Bytes written to the bucket", attrgetter("bytes_written")),
    Line(
        GAUGE, "lease_held", "0 while the lease is not renewed: others may take over", lambda one: one.lease == "held"
    ),
    Line(GAUGE, "blocked", "1 while nothing becomes durable because of the bucket", lambda one: bool(one.problem)),
]
_BUCKET_REQUESTS: list[Line[tuple[str, int]]] = [
    Line(COUNTER, "requests", "Requests to the bucket, by kind", itemgetter(1))
]
_BUCKET_FAILURES: list[Line[tuple[str, int]]] = [
    Line(COUNTER, "failed_requests", "Requests that have failed, by problem", itemgetter(1))
]


def bucket(status: Callable[[], BucketStatus | None]) -> Iterator[Collector]:
    """Without values if the journal is on a disk."""

    def listed() -> list[BucketStatus]:
        return [] if (found := status()) is None else [found]

    yield Table("bucket", {}, _BUCKET, listed)
    kind: dict[str, Callable[[tuple[str, int]], str]] = {"kind": itemgetter(0)}
    yield Table("bucket", kind, _BUCKET_REQUESTS, lambda: [pair for one in listed() for pair in one.requests.items()])
    yield Table("bucket", kind, _BUCKET_FAILURES, lambda: [pair for one in listed() for pair in one.failures.items()])


_SOURCES: list[Line[tuple[str, SourceStatus]]] = [
    Line(GAUGE, "lag_bytes", "Durable, and not acknowledged", lambda one: one[1].waiting_bytes),
    Line(GAUGE, "retained_bytes", "Stored", lambda one: one[1].retained_bytes),
    Line(GAUGE, "has_room", "0 while it is at its quota or the disk is full", lambda one: one[1].has_room),
    Line(GAUGE, "sessions", "Programs that are connected", lambda one: one[1].sessions),
    Line(GAUGE, "credits", "Messages that they may send", lambda one: one[1].credits),
]


def each_source(statuses: Callable[[], Mapping[str, SourceStatus]]) -> Collector:
    return Table("source", {"source": lambda one: one[0]}, _SOURCES, lambda: [*statuses().items()])


_TASKS: list[Line[TaskState]] = [
    Line(COUNTER, "deaths", "How often it has died since the worker started", lambda one: one.deaths),
    Line(GAUGE, "failing", "1 while it is dead, and for a while after it was restarted", lambda one: one.is_failing),
]


def tasks(listed: Callable[[], Sequence[TaskState]]) -> Collector:
    """The worker's background tasks."""
    return Table("task", {"task": lambda one: one.name}, _TASKS, listed)


_PIPELINES: list[Line[PipelineStatus]] = [
    Line(GAUGE, "incarnation", "The number of its incarnation: a reset changes it", attrgetter("incarnation")),
    Line(GAUGE, "generation", "The number of its generation: every start changes it", attrgetter("generation")),
    Line(GAUGE, "planned", "The last epoch planned; -1: none yet", attrgetter("planned")),
    Line(GAUGE, "committed", "The last epoch whose output is merged; -1: none yet", attrgetter("merged")),
    Line(GAUGE, "delivered", "The last epoch that all sinks have; -1: none yet", attrgetter("delivered")),
    Line(GAUGE, "complete", "The last epoch completed; -1: none yet", attrgetter("complete")),
    Line(GAUGE, "lag_bytes", "Durable data of its sources that it has not completed", attrgetter("lag_bytes")),
    Line(
        GAUGE,
        "undelivered_bytes",
        "Output that its readers have not completed; above a limit it waits",
        attrgetter("undelivered_bytes"),
    ),
    Line(
        GAUGE,
        "watermark_unmoved_seconds",
        "For how long its watermark has not moved",
        attrgetter("watermark_unmoved_seconds"),
    ),
    Line(
        GAUGE,
        "heartbeat_age_seconds",
        "Seconds since the last heartbeat of its driver, unless it is stopped",
        lambda one: None if one.state == "STOPPED" else one.heartbeat_age_seconds,
    ),
    Line(GAUGE, "running", "1 while it runs, or starts", lambda one: one.state in ("STARTING", "RUNNING")),
    Line(
        GAUGE,
        "watermark_seconds",
        "The watermark, in seconds since 1970",
        lambda one: None if one.watermark is None else one.watermark / 1e6,
    ),
]


def pipelines(listed: Callable[[], Sequence[PipelineStatus]]) -> Collector:
    return Table("pipeline", {"pipeline": lambda one: one.name}, _PIPELINES, listed)


def watermark_blockers(listed: Callable[[], Sequence[PipelineStatus]]) -> Collector:
    """1 for what blocks a pipeline's watermark: a stream of a source, or an output."""
    line = Line[PipelineStatus](GAUGE, "watermark_blocked", "1 for what blocks the watermark", lambda _: 1)
    labels: dict[str, Callable[[PipelineStatus], str]] = {
        "pipeline": lambda one: one.name,
        "source": lambda one: one.watermark_blocked_by.source if one.watermark_blocked_by else "",
        "stream_id": _stream_id,
        "stream": lambda one: one.watermark_blocked_by.stream if one.watermark_blocked_by else "",
    }
    return Table("pipeline", labels, [line], lambda: [one for one in listed() if one.watermark_blocked_by is not None])


def _stream_id(one: PipelineStatus) -> str:
    blocker = one.watermark_blocked_by
    return "" if blocker is None or blocker.stream_id is None else str(blocker.stream_id)


def undelivered_epochs(
    listed: Callable[[], Sequence[SinkStatus]], epochs: Callable[[str], Sequence[EpochStatus]]
) -> Collector:
    """How many epochs of each pipeline some sink lacks."""
    line = Line[str](GAUGE, "undelivered_epochs", "Epochs that some sink lacks", lambda name: len(epochs(name)))
    return Table("pipeline", {"pipeline": str}, [line], lambda: [*dict.fromkeys(one.pipeline for one in listed())])


def sinks(listed: Callable[[], Sequence[SinkStatus]], epochs: Callable[[str], Sequence[EpochStatus]]) -> Collector:
    lines: list[Line[SinkStatus]] = [
        Line(COUNTER, "sent_bytes", "Bytes of payloads that are committed at it", lambda one: one.sent),
        Line(COUNTER, "parked_epochs", "Epochs that were parked for it", lambda one: one.parked),
        Line(GAUGE, "lost", "1 while it cannot be reached", lambda one: one.state == "WAITING"),
        Line(GAUGE, "diverged", "1 while what it has does not fit the ledger", lambda one: one.state == "DIVERGED"),
        Line(GAUGE, "refused", "1 while it votes no", lambda one: one.state == "REFUSED"),
        Line(
            GAUGE,
            "failed_tries",
            "Failed attempts to deliver its next epoch",
            lambda one: _tries(one, epochs(one.pipeline)),
        ),
    ]
    return Table("sink", {"pipeline": lambda one: one.pipeline, "sink": lambda one: one.sink}, lines, listed)


def _tries(sink: SinkStatus, epochs: Sequence[EpochStatus]) -> int:
    return max((one.attempts for epoch in epochs for one in epoch.waiting if one.sink == sink.sink), default=0)


def refusals(listed: Callable[[], Sequence[tuple[Port, int]]]) -> Collector:
    line = Line[tuple[Port, int]](COUNTER, "requests", "Requests refused for lack of access", lambda one: one[1])
    return Table("refused", {"port": lambda one: one[0].value}, [line], listed)


_CONNECTORS: list[Line[ConnectorStatus]] = [
    Line(GAUGE, "streams", "Streams that are open", lambda one: one.streams),
    Line(
        GAUGE,
        "blocked_streams",
        "Streams that may not send: their breaker has tripped, or they are paused",
        lambda one: one.blocked_count,
    ),
    Line(GAUGE, "tripped_streams", "Streams whose breaker is tripped at its port in", lambda one: one.tripped_count),
    Line(
        GAUGE,
        "outbox_bytes",
        "Bytes in the outbox, for tripped streams",
        lambda one: one.outbox_bytes,
    ),
    Line(COUNTER, "events_in", "Events received", lambda one: one.events_in),
    Line(COUNTER, "bytes_in", "Bytes of events received", lambda one: one.bytes_in),
    Line(COUNTER, "events_out", "Events delivered", lambda one: one.events_out),
    Line(COUNTER, "dead_letters", "Events that could not be processed or delivered", lambda one: one.dead_letters),
    Line(GAUGE, "up", "1 if it listens, or is connected", lambda one: one.state == "connected"),
    Line(GAUGE, "paused", "1 while an operator has paused it", lambda one: one.paused),
]


def connectors(listed: Callable[[], Sequence[ConnectorStatus]]) -> Collector:
    return Table("connector", {"connector": lambda one: one.name, "type": lambda one: one.type}, _CONNECTORS, listed)


def own_counts(listed: Callable[[], Sequence[ConnectorStatus]]) -> Collector:
    """What connectors count themselves, by `what`."""
    line = Line[tuple[ConnectorStatus, str]](
        COUNTER, "own", "Counters of the connector itself", lambda each: each[0].counts[each[1]]
    )
    labels: dict[str, Callable[[tuple[ConnectorStatus, str]], str]] = {
        "connector": lambda each: each[0].name,
        "type": lambda each: each[0].type,
        "what": lambda each: each[1],
    }
    return Table("connector", labels, [line], lambda: [(one, what) for one in listed() for what in one.counts])


_WINDOWS: list[Line[OperatorStatus]] = [
    Line(GAUGE, "epoch", "The epoch that was reported last", lambda one: one.epoch),
    Line(GAUGE, "open_windows", "Windows that have state", lambda one: one.open_windows),
    Line(GAUGE, "keys", "Keys in all open windows, a key once for each window", lambda one: one.keys),
    Line(GAUGE, "state_bytes", "Bytes of state", lambda one: one.state_bytes),
    Line(
        GAUGE,
        "bucket_bytes",
        "Bytes of state of its largest bucket: the limit applies to it",
        attrgetter("bucket_bytes"),
    ),
    Line(
        GAUGE, "buffered_events", "Events that wait for the watermark, to be emitted in order", attrgetter("buffered")
    ),
    Line(COUNTER, "late_kept", "Late events that left through the late port", lambda one: one.late_kept),
    Line(COUNTER, "late_dropped", "Late events that were only counted", lambda one: one.late_dropped),
]


def windows(listed: Callable[[], Sequence[OperatorStatus]]) -> Collector:
    labels: dict[str, Callable[[OperatorStatus], str]] = {
        "pipeline": lambda one: one.pipeline,
        "operator": lambda one: one.operator,
    }
    return Table("window", labels, _WINDOWS, listed)


# The worker as a whole.

_WRITE_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


def journal_writes(registry: CollectorRegistry) -> Histogram:
    """Observed in the thread that writes the journal."""
    text = "The time to write and to sync a group of records"
    return Histogram("penstock_store_fsync_seconds", text, buckets=_WRITE_SECONDS, registry=registry)


def build(version: str) -> Collector:
    line = Line[str](GAUGE, "info", "1, with the version of Penstock and of Python", lambda _: 1)
    return Table("build", {"version": str, "python": lambda _: platform.python_version()}, [line], lambda: [version])


def certificates(file: Path | None) -> Collector:
    """Read again for each scrape: a certificate may be renewed while the worker runs."""
    text = "When the certificate expires, in seconds since 1970"
    line = Line[Path](GAUGE, "expiry_timestamp_seconds", text, expires_at)
    return Table("certificate", {}, [line], lambda: [] if file is None else [file])
