"""A worker's /status for people: first what is wrong, in sentences; then pipelines, sources and sinks in tables.
`penstock status` prints it, and `penstock top` shows it live.
"""

from collections.abc import Iterator, Mapping, Sequence
from textwrap import wrap
from typing import Any

from rich.text import Text

from penstock.cli.screen import Column, Level, Row, Section
from penstock.cli.texts import printable, show_clock_time, show_epoch
from penstock.core.counts import show_count
from penstock.core.durations import show_latency, show_seconds
from penstock.core.sizes import show_size
from penstock.dashboard.catch_up import backlogs
from penstock.protocol.api.delivery import SinkStatus
from penstock.protocol.api.pipelines import PipelineStatus
from penstock.protocol.api.status import (
    ApplicationStatus,
    Blockage,
    BucketStatus,
    ConnectorStatus,
    PipelineRates,
    ShardStatus,
    SinkRates,
    SourceRates,
    SourceStatus,
    WorkerStatus,
)
from penstock.protocol.stored.names import (
    CONNECTOR_PREFIX,
    COORDINATOR_PREFIX,
    OUTPUT_PREFIX,
    STAGING_PREFIX,
    SYSTEM_PREFIX,
)

INTERNAL = (CONNECTOR_PREFIX, COORDINATOR_PREFIX, OUTPUT_PREFIX, STAGING_PREFIX)
"""Segments of the worker itself: what they contain is shown as sources and pipelines."""

_SENTENCE_LINES = 2
"""Lines for one problem on a screen; --all and --json show all of it."""

_NOTHING_BLOCKED = "nothing is blocked"

NAMED = 3
"""At most so many pipelines in one sentence, and sentences of one kind; the table has all pipelines."""

_REPEATED = ("failing", "driver", "spark")
"""Kinds of blockages that all pipelines of a Spark session may have at the same time."""

_BAD_STATES = ("disconnected", "failed")
_BAD_SINKS = ("REFUSED", "WAITING", "DIVERGED")

_PIPELINE_COLUMNS = (
    Column("PIPELINE", is_name=True),
    Column("STATE", is_left=True),
    Column("IN/S"),
    Column("OUT/S"),
    Column("LAG"),
    Column("LATENCY"),
    Column("EPOCH"),
    Column("WATERMARK", is_optional=True),
    Column("UNDELIVERED", is_optional=True),
    Column("READS", is_name=True, is_optional=True),
)
_SOURCE_COLUMNS = (
    Column("SOURCE", is_name=True),
    Column("STATE", is_left=True),
    Column("EVENTS/S"),
    Column("BYTES/S"),
    Column("STREAMS"),
    Column("STORED"),
    Column("TYPE", is_optional=True, is_left=True),
    Column("WAITING", is_optional=True),
    Column("DEAD LETTERS", is_optional=True),
)
_SINK_COLUMNS = (
    Column("SINK", is_name=True),
    Column("OF PIPELINE", is_name=True),
    Column("STATE", is_left=True),
    Column("ROWS/S"),
    Column("BEHIND"),
    Column("TO", is_name=True, is_optional=True),
    Column("PARKED", is_optional=True),
)
_SEGMENT_COLUMNS = (Column("SEGMENT", is_name=True), Column("SIZE"), Column("START"), Column("END"))


def sections(
    status: WorkerStatus, segments: Sequence[Mapping[str, Any]] = (), *, is_all: bool = False
) -> tuple[Section, Section, Section, Section]:
    rates = status.rates
    shown = [one for one in segments if is_all or not one["name"].startswith(INTERNAL)]
    return (
        pipeline_section(status),
        source_section(status, is_all=is_all),
        sink_section(status.sinks, rates.sinks),
        segment_section(shown),
    )


# What is at the top.


def sentences(status: WorkerStatus, named: int | None = NAMED) -> list[tuple[str, str]]:
    """Sentences with their styles: first what is wrong, then what is waited for. Where many pipelines have the same
    problem, only `named` of them get a sentence; None: all.
    """
    troubles = [(f"! {sentence}", style) for sentence, style in _status_sentences(status, named)]
    is_well = not troubles and all(one.kind == "idle" for one in status.blockages)
    well = [(_NOTHING_BLOCKED, "green")] if is_well and status.pipelines else []
    notes = [*_notes(status.blockages, named), *backlogs(status, named)]
    return [*troubles, *well, *((printable(note), "") for note in notes)]


def worker_line(address: str, status: WorkerStatus, width: int) -> list[Text]:
    """One line, without the parts that do not fit."""
    parts = [f"penstock {status.version} on {address}", f"up {show_seconds(status.uptime_seconds)}"]
    parts.append(f"{show_size(status.store.live_bytes)} stored")
    if (application := deployed(status)) is not None:
        parts.append(f"application {application.state}, revision {application.revision}")
    parts.append(f"rates: last {show_seconds(status.rates.seconds)}")
    return [fitting(parts, width, "bold")]


def bucket_line(bucket: BucketStatus | None, width: int) -> list[Text]:
    """One line, if the journal is in a bucket. A failure of the bucket is among the problems instead."""
    if bucket is None:
        return []
    a_month = f"{show_rate(bucket.requests_per_month)} a month"
    parts = [
        f"journal in {bucket.url}",
        f"lease {bucket.lease}",
        f"{bucket.objects:,} objects, {show_size(bucket.bytes)}",
        f"{show_rate(bucket.requests_per_second)} requests/s ({a_month})",
        f"{show_size(bucket.cached_bytes)} cached",
    ]
    return [fitting(parts, width, "yellow" if bucket.problem or bucket.lease != "held" else "")]


def shard_lines(shards: Sequence[ShardStatus], width: int, shown: int | None) -> Iterator[Text]:
    """In a cluster: where each shard is, and what it contains."""
    for one in shards[:shown]:
        if not one.is_served:
            yield fitting([f"shard {one.shard}: no worker serves it now"], width, "red")
            continue
        where = f"shard {one.shard} on {one.host or one.worker} ({one.addresses.get('http', '')})"
        parts = [where, *(f"{len(names)} {what}{'' if len(names) == 1 else 's'}" for what, names in _contents(one))]
        yield fitting(parts, width, "")
    if shown is not None and len(shards) > shown:
        yield Text(f"… and {len(shards) - shown} more shards: penstock cluster status")


def _contents(shard: ShardStatus) -> tuple[tuple[str, Sequence[str]], ...]:
    return ("source", shard.sources), ("pipeline", shard.pipelines)


def fitting(parts: list[str], width: int, style: str) -> Text:
    """In one line, without the parts that do not fit."""
    while len(parts) > 1 and len(" · ".join(parts)) > width:
        parts.pop()
    return Text(" · ".join(parts), style)


def deployed(status: WorkerStatus) -> ApplicationStatus | None:
    return status.application if status.application is not None and status.application.revision else None


def limited(sentences: Sequence[tuple[str, str]], width: int, height: int | None) -> list[Text]:
    """Sentences with their styles, wrapped. They take at most a third of the screen, and a few lines each."""
    lines_max = None if height is None else _SENTENCE_LINES
    room = max(height // 3, _SENTENCE_LINES) if height is not None else None
    shown: list[Text] = []
    for number, (sentence, style) in enumerate(sentences):
        lines = wrap(sentence, width, subsequent_indent="  ", max_lines=lines_max, placeholder=" …")
        if room is not None and len(shown) + len(lines) > room:
            return [*shown, Text(f"… and {len(sentences) - number} more: penstock status --all", "yellow")]
        shown += [Text(line, style) for line in lines]
    return shown


def _status_sentences(status: WorkerStatus, named: int | None) -> Iterator[tuple[str, str]]:
    """Sentences with their styles. Where many pipelines have the same problem, only `named` get one; None: all."""
    for problem in status.problems:
        yield printable(problem), "bold red"
    for name, why in status.damaged_sources.items():
        yield printable(f"source {name!r}: {why}"), "bold red"
    blocking = [one for one in status.blockages if one.is_blocking]
    yield from ((sentence, "red") for sentence in _repeated(blocking, named))
    former = {one.pipeline for one in blocking if one.kind == "former"}  # has a sentence with advice, among the others
    stopped = [one for one in status.pipelines if one.state == "STOPPED" and one.lag_bytes and one.name not in former]
    if stopped and named is not None:
        lag = show_size(sum(one.lag_bytes for one in stopped))
        them = "it" if len(stopped) == 1 else "them"
        yield f"{_named(stopped)} STOPPED (start {them} with penstock run): {lag} behind", "yellow"
    apart = (*_REPEATED, "streams") if named is None else (*_REPEATED, "streams", "stopped")
    others = [str(one) for one in blocking if one.kind not in apart]
    for sentence in [*others, *stream_troubles(status.connectors)]:
        yield printable(sentence), "yellow"


def _repeated(blockages: Sequence[Blockage], named: int | None) -> Iterator[str]:
    found = [one for one in blockages if one.kind in _REPEATED]
    yield from (printable(str(one)) for one in found[:named])
    if more := {one.pipeline for one in found[len(found) if named is None else named :]}:
        yield f"{len(more)} more {'pipelines are' if len(more) > 1 else 'pipeline is'} blocked: penstock status --all"


def _notes(blockages: Sequence[Blockage], named: int | None) -> Iterator[str]:
    """What pipelines wait for although nothing is blocked."""
    notes = [one for one in blockages if not one.is_blocking]
    idle = [one for one in notes if one.kind == "idle"]
    yield from (str(one) for one in notes if one.kind != "idle")
    yield from (str(one) for one in idle[:named])
    if more := {one.pipeline for one in idle[len(idle) if named is None else named :]}:
        yield f"{len(more)} more {'pipelines wait' if len(more) > 1 else 'pipeline waits'} for events"


def _named(pipelines: Sequence[PipelineStatus]) -> str:
    if len(pipelines) == 1:
        return f"pipeline {pipelines[0].name} is"
    named = ", ".join(one.name for one in pipelines[:NAMED])
    more = f" and {len(pipelines) - NAMED} more" if len(pipelines) > NAMED else ""
    return f"pipelines {named}{more} are"


def stream_troubles(connectors: Sequence[ConnectorStatus]) -> list[str]:
    """Sentences: which stream is blocked, and by what."""
    return [sentence for one in connectors for sentence in _sentences(one)]


def _sentences(one: ConnectorStatus) -> Iterator[str]:
    for tripped in one.tripped_streams:
        stream = f"stream #{tripped.stream_id} of {tripped.connector}"
        yield f"connector {one.name}'s breaker for {stream} is tripped: {tripped.why}"
    if (more := one.tripped_count - len(one.tripped_streams)) > 0:
        yield f"connector {one.name}'s breakers are tripped for {more:,} more streams"
    for blocked in one.blocked_streams:
        yield f"stream {blocked.stream} of {one.name} is blocked: {blocked.why}"
    if (more := one.blocked_count - len(one.blocked_streams)) > 0:
        yield f"and {more:,} more streams of {one.name}"


# The tables.


def pipeline_section(status: WorkerStatus) -> Section:
    rates = status.rates.pipelines
    blocked = {one.pipeline for one in status.blockages if one.is_blocking}
    rows = [
        _pipeline(one, rates.get(one.name, PipelineRates()), one.name in blocked or bool(one.blocked))
        for one in status.pipelines
    ]
    return Section("pipeline", _PIPELINE_COLUMNS, rows, "running")


def _pipeline(one: PipelineStatus, rates: PipelineRates, is_blocked: bool) -> Row:
    level = Level.OK
    if one.state not in ("RUNNING", "STARTING") or is_blocked:
        level = Level.BAD if one.state == "FAILING" else Level.WARNING
    reads = ", ".join(dict.fromkeys(source for sources in one.inputs.values() for source in sources))
    cells = (
        *(one.name, "BLOCKED" if is_blocked and one.state == "RUNNING" else one.state),
        *(show_rate(rates.rows_in_per_second), show_rate(rates.rows_out_per_second)),
        *(show_size(one.lag_bytes), show_latency(rates.latency_seconds), show_epoch(one.complete)),
        *(show_clock_time(one.watermark), show_size(one.undelivered_bytes), reads),
    )
    return Row(cells, level)


def source_section(status: WorkerStatus, *, is_all: bool) -> Section:
    sources, connectors, rates = status.sources, {one.name: one for one in status.connectors}, status.rates.sources
    silent = [name for name, one in connectors.items() if "out" in one.guarantee and name not in sources]
    names = [name for name in sources if is_all or not name.startswith(SYSTEM_PREFIX)]
    rows = [
        _source(name, sources.get(name), connectors.get(name), rates.get(name, SourceRates()))
        for name in sorted([*names, *silent])
    ]
    return Section("source", _SOURCE_COLUMNS, rows, "no trouble")


def _source(name: str, source: SourceStatus | None, connector: ConnectorStatus | None, rates: SourceRates) -> Row:
    """`source` is None before its first event; `connector` is None for one that programs send to."""
    state, level = _source_state(source, connector)
    streams, retained = (0, 0) if source is None else (source.streams, source.retained_bytes)
    waiting, dead_letters = (0, 0) if connector is None else (connector.blocked_count, connector.dead_letters)
    cells = (
        *(name, state, show_rate(rates.events_per_second), show_size(round(rates.bytes_per_second))),
        *(f"{streams:,}", show_size(retained), _type(source, connector)),
        *(f"{waiting:,}" if waiting else "", f"{dead_letters:,}" if dead_letters else ""),
    )
    return Row(cells, level)


def _type(source: SourceStatus | None, connector: ConnectorStatus | None) -> str:
    """Empty for a source that nothing was sent to since the worker started, for example because its application is no
    longer deployed.
    """
    if connector is not None:
        return connector.type
    return "programs" if source is not None and source.had_programs else ""


def _source_state(source: SourceStatus | None, connector: ConnectorStatus | None) -> tuple[str, Level]:
    state = "" if connector is None else connector.state
    if state in _BAD_STATES:
        return state, Level.BAD
    if source is not None and not source.has_room:
        return "full", Level.WARNING
    if connector is not None and (connector.paused or connector.blocked_count):
        return "paused" if connector.paused else "waiting", Level.WARNING
    if source is not None and source.has_finished:
        return "ended", Level.OK
    if connector is None and source is not None:
        state = "connected" if source.sessions else "not connected"
    return state or "ready", Level.OK


def sink_section(sinks: Sequence[SinkStatus], rates: Mapping[str, Mapping[str, SinkRates]]) -> Section:
    rows = [_sink(one, rates.get(one.pipeline, {}).get(one.sink, SinkRates())) for one in sinks]
    return Section("sink", _SINK_COLUMNS, rows, "ready")


def _sink(one: SinkStatus, rates: SinkRates) -> Row:
    level = Level.BAD if one.state in _BAD_SINKS else Level.WARNING if one.lacking and one.reason else Level.OK
    behind = show_count(one.lacking, "epoch") if one.lacking else ""
    rate = show_rate(rates.rows_per_second)
    return Row((one.sink, one.pipeline, one.state, rate, behind, one.url, str(one.parked or "")), level)


def segment_section(segments: Sequence[Mapping[str, Any]]) -> Section:
    """The largest first."""
    by_size = sorted(segments, key=lambda segment: segment["start"] - segment["length"])
    rows = [
        Row((one["name"], show_size(one["length"] - one["start"]), f"{one['start']:,}", f"{one['length']:,}"))
        for one in by_size
    ]
    return Section("segment", _SEGMENT_COLUMNS, rows, "penstock segment list")


# Numbers.


def show_rate(value: float) -> str:
    """With two or three significant digits: 0.4, 12, 3.4k, 1.2M."""
    if value and value < 10:
        return f"{value:.1f}"
    for unit in ("", "k", "M"):
        if value < 1000 or unit == "M":
            break
        value /= 1000
    return f"{value:.1f}{unit}" if unit and value < 100 else f"{value:.0f}{unit}"
