"""The pages of `penstock top`, as lines. Pure: they depend only on the worker's answers and the screen's width."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from textwrap import wrap

from rich.text import Text

from penstock.cli.overview import limited, sections, sentences, shard_lines, worker_line
from penstock.cli.screen import STYLES, Column, Level, Row, Section, rendered
from penstock.cli.texts import printable
from penstock.cli.top.feed import Place, Seen
from penstock.client.coordinator import EpochStatus
from penstock.core.durations import show_latency, show_seconds
from penstock.core.sizes import show_size
from penstock.dashboard.charts import phases
from penstock.dashboard.facts import pipeline_facts, sink_facts, source_facts
from penstock.dashboard.flow_picture import show_rate
from penstock.protocol.api.history import EpochTimes
from penstock.protocol.api.pipelines import PipelineStatus
from penstock.protocol.api.status import Blockage, SessionStatus, WorkerStatus

ROWS_MAX = 300
"""Rows of one table. Rows that need attention come first; a last line counts those that are left out."""

_NAME_WIDTH = 16
"""Width of the names of facts."""

_MARK = "! "
"""Before what needs attention, so that it shows without colours."""

_BARS = "▁▂▃▄▅▆▇█"

KEYS = (
    ("↑ ↓, j k", "move"),
    ("PgUp PgDn, Home End", "move by a page, or to an end"),
    ("Enter, →, l", "open the source, pipeline, epoch or sink of this line"),
    ("Esc, ←, h", "back"),
    ("o", "the overview"),
    ("p", "pause, to read or to copy; p again continues"),
    ("?", "these keys; any key closes them"),
    ("q, Ctrl-C", "end"),
)


@dataclass(frozen=True, slots=True)
class Line:
    text: Text
    target: Place | None = None
    """What Enter opens."""
    is_heading: bool = False
    """A title, the head of a table, or an empty line: it cannot be selected."""


def title(seen: Seen, width: int) -> Text:
    """The line at the top: which worker, and how it is."""
    if seen.status is None:
        return Text("penstock top", "bold")
    return worker_line(seen.address, seen.status, width)[0]


def banner(seen: Seen, now: float, width: int) -> list[Text]:
    """Why the data is old, or which worker it comes from; a few lines at most."""
    if not seen.problem:
        return [Text(line) for line in wrap(printable(seen.note), width, max_lines=2)]
    why = wrap(f"{_MARK}{printable(seen.problem)}", width, subsequent_indent="  ", max_lines=3, placeholder=" …")
    old = f"What you see is {show_seconds(now - seen.at)} old. " if seen.status is not None else ""
    return [Text(line, "bold red") for line in [*why, f"  {old}Asking again …"]]


def page(seen: Seen, width: int, height: int) -> list[Line]:
    """The page about the place that was asked for."""
    status = seen.status
    if status is None:
        return []
    match seen.place.kind:
        case "overview":
            return [*_overview(status, width, height)]
        case "source":
            return [*_source(status, seen, width)]
        case "pipeline":
            return [*_pipeline(status, seen, width)]
        case "epoch":
            return [*_epoch(seen, width)]
        case "sink":
            return [*_sink(status, seen, width)]


# The overview.


def _overview(status: WorkerStatus, width: int, height: int) -> Iterator[Line]:
    """What `penstock status` shows, with lines that can be opened."""
    yield from (Line(text) for text in limited(sentences(status), width, height))
    yield from (Line(text) for text in shard_lines(status.shards, width, 3))
    pipelines, sources, sinks, _ = sections(status)
    if not (pipelines.rows or sources.rows or sinks.rows):
        yield Line(Text("nothing is deployed; start an application: penstock run app.yaml"))
    yield from _table(pipelines, width, lambda row: Place("pipeline", row.cells[0]))
    yield from _table(sources, width, lambda row: Place("source", row.cells[0]))
    yield from _table(sinks, width, lambda row: Place("sink", row.cells[0], row.cells[1]))


# A source.

_PROGRAM_COLUMNS = (
    Column("PROGRAM", is_name=True),
    Column("STATE", is_left=True),
    Column("STREAMS"),
    Column("CREDITS"),
    Column("ACK LAG"),
    Column("IN FLIGHT", is_optional=True),
    Column("ADDRESS", is_left=True, is_optional=True),
)
_STREAM_COLUMNS = (Column("STREAM THAT MAY NOT SEND", is_name=True), Column("WHY", is_name=True))


def _source(status: WorkerStatus, seen: Seen, width: int) -> Iterator[Line]:
    name = seen.place.name
    connector = next((one for one in status.connectors if one.name == name), None)
    if name not in status.sources and connector is None:
        yield Line(Text(f"there is no source {printable(name)} now; it appears with its first event"))
        return
    yield from _troubles(status, width, lambda one: one.link == f"source {name}")
    yield from _facts(source_facts(status, name, seen.newest), width)
    yield from _chart(seen, "events/s", f"source/{name}/events", width)
    yield from _chart(seen, "bytes/s", f"source/{name}/bytes", width)
    if connector is not None:
        blocked = [Row((one.stream, one.why), Level.WARNING) for one in connector.blocked_streams]
        yield from _table(Section("stream", _STREAM_COLUMNS, blocked), width)
    programs = sorted((one for one in status.sessions if one.source == name), key=lambda one: -one.ack_lag_seconds)
    yield from _table(Section("program", _PROGRAM_COLUMNS, [*map(_program, programs)]), width)
    readers = [one for one in status.pipelines if any(name in names for names in one.inputs.values())]
    rows = [Row((one.name, one.state, show_size(one.lag_bytes))) for one in readers]
    columns = (Column("READ BY", is_name=True), Column("STATE", is_left=True), Column("LAG"))
    yield from _table(Section("pipeline", columns, rows), width, lambda row: Place("pipeline", row.cells[0]))


def _program(one: SessionStatus) -> Row:
    cells = (one.program, one.state, f"{one.streams:,}", f"{one.credits:,}", f"{one.ack_lag_seconds:.1f} s")
    return Row((*cells, show_size(one.in_flight_bytes), one.peer))


# A pipeline.

_UNDELIVERED_COLUMNS = (
    Column("EPOCH NOT DELIVERED"),
    Column("STATE", is_left=True),
    Column("SIZE"),
    Column("WAITS FOR", is_name=True),
)
_PAST_COLUMNS = (
    Column("COMPLETE EPOCH"),
    Column("CUT AT"),
    Column("WAITED"),
    Column("SPARK"),
    Column("DELIVERY"),
)
_OPERATOR_COLUMNS = (
    Column("OPERATOR", is_name=True),
    Column("OPEN WINDOWS"),
    Column("KEYS"),
    Column("STATE"),
    Column("LATE"),
)
_PAST_MAX = 20


def _pipeline(status: WorkerStatus, seen: Seen, width: int) -> Iterator[Line]:
    name = seen.place.name
    found = next((one for one in status.pipelines if one.name == name), None)
    if found is None:
        yield Line(Text(f"there is no pipeline {printable(name)} now; it appears when it starts"))
        return
    yield from _troubles(status, width, lambda one: one.pipeline == name)
    yield from _facts(pipeline_facts(found, status), width)
    for title, series in (("rows/s in", "rows_in"), ("rows/s out", "rows_out"), ("lag", "lag_bytes")):
        yield from _chart(seen, title, f"pipeline/{name}/{series}", width)
    yield from _chart(seen, "latency", f"pipeline/{name}/latency_seconds", width)
    yield from _table(_undelivered(seen.undelivered), width, lambda row: Place("epoch", row.cells[0], name))
    yield from _table(_past(seen.past()), width, lambda row: Place("epoch", row.cells[0], name))
    yield from _neighbours(found, status, width)
    operators = [
        Row(
            (
                one.operator,
                f"{one.waiting:,}",
                f"{one.keys:,}",
                show_size(one.state_bytes),
                f"{one.late_kept + one.late_dropped:,}",
            )
        )
        for one in status.windows
        if one.pipeline == name
    ]
    yield from _table(Section("operator", _OPERATOR_COLUMNS, operators), width)


def _neighbours(found: PipelineStatus, status: WorkerStatus, width: int) -> Iterator[Line]:
    """Its sources and its sinks."""
    reads = dict.fromkeys(source for names in found.inputs.values() for source in names)
    inputs = [Row((name, _rate_of(status, name))) for name in reads]
    columns = (Column("READS", is_name=True), Column("EVENTS/S"))
    yield from _table(Section("source", columns, inputs), width, lambda row: _reader(row.cells[0]))
    _, _, sinks, _ = sections(status)
    own = [row for row in sinks.rows if row.cells[1] == found.name]
    section = Section("sink", sinks.columns, own, sinks.fine)
    yield from _table(section, width, lambda row: Place("sink", row.cells[0], row.cells[1]))


def _rate_of(status: WorkerStatus, source: str) -> str:
    rate = status.rates.sources.get(source)
    return "" if rate is None else show_rate(rate.events_per_second)


def _reader(source: str) -> Place:
    if source.startswith("pipeline:"):
        return Place("pipeline", source.removeprefix("pipeline:").partition("/")[0])
    return Place("source", source)


def _undelivered(epochs: Sequence[EpochStatus]) -> Section:
    rows = [
        Row(
            (str(one.epoch), one.state, show_size(one.bytes), ", ".join(each.sink for each in one.waiting)),
            Level.WARNING if any(each.reason for each in one.waiting) else Level.OK,
        )
        for one in epochs
    ]
    return Section("epoch", _UNDELIVERED_COLUMNS, rows, "penstock epoch list")


def _past(epochs: Sequence[EpochTimes]) -> Section:
    rows = [
        Row((str(one.number), _clock(one.cut), *(show_latency(part) for part in phases(one))))
        for one in epochs[:_PAST_MAX]
    ]
    return Section("epoch", _PAST_COLUMNS, rows)


# An epoch.


def _epoch(seen: Seen, width: int) -> Iterator[Line]:
    number, name = int(seen.place.name), seen.place.pipeline
    yield Line(Text(f"epoch {number} of {printable(name)}", "bold"), Place("pipeline", name))
    waiting = next((one for one in seen.undelivered if one.epoch == number), None)
    past = next((one for one in seen.past() if one.number == number), None)
    if waiting is not None:
        yield from _facts([("State", waiting.state), ("Size", show_size(waiting.bytes))], width)
        for each in waiting.waiting:
            text = f"{_MARK if each.reason else ''}sink {each.sink} ({each.port}): {each.reason or 'is receiving it'}"
            tries = f", {each.attempts} attempts, the next one in {each.retry_seconds:.0f} s" if each.attempts else ""
            yield from _sentence(printable(f"{text}{tries}"), "red" if each.reason else "", width)
    elif past is not None:
        yield from _facts(_epoch_facts(past), width)
    else:
        yield Line(Text("it is older than the last epochs that the worker remembers"))


def _epoch_facts(one: EpochTimes) -> Iterator[tuple[str, object]]:
    waited, spark, delivery = phases(one)
    if one.arrived is not None:
        yield "First arrival", _clock(one.arrived)
    yield "Cut", f"{_clock(one.cut)}, after {show_latency(waited)} of waiting"
    if one.merged is not None:
        yield "Merged", f"{_clock(one.merged)}, after {show_latency(spark)} in Spark"
    yield "Complete", f"{_clock(one.complete)}, after {show_latency(delivery)} of delivery"


# A sink.


def _sink(status: WorkerStatus, seen: Seen, width: int) -> Iterator[Line]:
    place = seen.place
    found = next((one for one in status.sinks if (one.sink, one.pipeline) == (place.name, place.pipeline)), None)
    if found is None:
        yield Line(Text(f"{printable(place.pipeline)} has no sink {printable(place.name)} now"))
        return
    yield from _troubles(status, width, lambda one: one.is_at_sink(place.pipeline, place.name))
    yield Line(
        Text(f"sink {printable(place.name)} of {printable(place.pipeline)}", "bold"), Place("pipeline", place.pipeline)
    )
    yield from _facts(sink_facts(found, status), width)
    yield from _chart(seen, "rows/s", f"sink/{place.pipeline}/{place.name}/rows", width)
    lacking = [one for one in seen.undelivered if any(each.sink == place.name for each in one.waiting)]
    yield from _table(_undelivered(lacking), width, lambda row: Place("epoch", row.cells[0], place.pipeline))


# Parts of pages.


def _troubles(status: WorkerStatus, width: int, concerns: Callable[[Blockage], bool]) -> Iterator[Line]:
    """What blocks it, or what it blocks."""
    for one in status.blockages:
        if one.is_blocking and concerns(one):
            yield from _sentence(f"{_MARK}{printable(str(one))}", "red", width)


def _sentence(text: str, style: str, width: int) -> Iterator[Line]:
    yield from (Line(Text(line, style)) for line in wrap(text, width, subsequent_indent="  "))


def _facts(facts: Iterable[tuple[str, object]], width: int) -> Iterator[Line]:
    for name, value in facts:
        shown = f"{printable(name):{_NAME_WIDTH}} "
        lines = wrap(printable(str(value)), max(width - len(shown), 20)) or [""]
        yield Line(Text.assemble((shown, "bold"), lines[0]))
        yield from (Line(Text(f"{'':{len(shown)}}{line}")) for line in lines[1:])


def _table(section: Section, width: int, target: Callable[[Row], Place] | None = None) -> Iterator[Line]:
    """Rows that need attention come first, with a mark. `target` returns what a row opens."""
    if not section.rows:
        return
    head, *lines = rendered(section, min(len(section.rows), ROWS_MAX), width - len(_MARK))
    yield Line(Text(""), is_heading=True)
    yield Line(Text(f"{'':{len(_MARK)}}{head.plain}", "bold"), is_heading=True)
    rows = section.sorted_rows()
    for number, line in enumerate(lines):
        row = rows[number] if number < min(len(rows), ROWS_MAX) else None  # the last line may count the rest
        mark = _MARK if row is not None and row.level is not Level.OK else ""
        text = Text(f"{mark:{len(_MARK)}}{line.plain}", "" if row is None else STYLES[row.level])
        yield Line(text, None if row is None or target is None else target(row))


def _chart(seen: Seen, name: str, series: str, width: int) -> Iterator[Line]:
    """The last values that fit, as bars; nothing if the worker does not have the series."""
    known = [value for value in seen.history.series.get(series, ()) if value is not None]
    if len(known) < 2:
        return
    room = max(width - _NAME_WIDTH - 32, 10)
    shown = known[-room:]
    is_size = series.endswith(("bytes", "lag_bytes"))
    last, most = (_value(one, is_size=is_size) for one in (shown[-1], max(shown)))
    span = show_seconds(len(shown) * seen.history.seconds)
    yield Line(Text.assemble((f"{name:{_NAME_WIDTH}} ", "bold"), f"{bars(shown)} {last}, most {most} in {span}"))


def bars(values: Sequence[float]) -> str:
    """A character for each value; 0 and less are the lowest."""
    most = max(values, default=0.0)
    if most <= 0:
        return _BARS[0] * len(values)
    return "".join(_BARS[min(int(max(value, 0.0) / most * len(_BARS)), len(_BARS) - 1)] for value in values)


def _value(value: float, *, is_size: bool) -> str:
    return show_size(int(value)) if is_size else show_rate(value)


def _clock(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%H:%M:%S")
