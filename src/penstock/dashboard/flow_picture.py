"""The flow as a picture: sources, segments, pipelines and sinks are boxes, with rates on the lines between. Pure.

WorkerStatus ──graph──▶ boxes and lines ──drawn──▶ SVG, whose colours are those of the page
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from html import escape
from itertools import chain
from urllib.parse import urlencode

from penstock.core.sizes import show_size
from penstock.protocol.api.delivery import SinkStatus
from penstock.protocol.api.pipelines import PipelineStatus
from penstock.protocol.api.status import ConnectorStatus, WorkerStatus

BOX_WIDTH, BOX_HEIGHT = 176, 58
_GAP, _MARGIN = 22, 14
_LABEL_GAP, _LABEL_GAP_PHONE = 116, 44
"""The space between two columns, or on a phone between two rows: a label has to fit."""
_ACROSS_PHONE, _GAP_PHONE, _EDGE_PHONE = 2, 10, 2
"""On a phone: boxes side by side, the space between them, and beside them. Together 390 pixels less the margins."""
_TITLE_MAX, _TEXT_MAX, _LABEL_MAX = 19, 25, 18
"""How many characters fit."""
BOXES_MAX = 200
"""Sources. More cannot be read: the overview lists the others below the picture."""

_OUTPUT = "pipeline:"
_SEGMENT = "segment:"


@dataclass(frozen=True, slots=True)
class Box:
    key: str
    title: str
    text: str
    """A line about its state."""
    href: str
    trouble: bool = False


@dataclass(frozen=True, slots=True)
class Line:
    start: str
    end: str
    text: str = ""
    trouble: bool = False


@dataclass(slots=True)
class Graph:
    boxes: dict[str, Box] = field(default_factory=dict)
    lines: list[Line] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    """Sources that have no box."""

    def columns(self) -> list[list[Box]]:
        """From left to right: each box is to the right of all boxes that lead to it, segments are beside their sources,
        and sinks are in the last column. A circle is broken where it was found first.
        """
        rank = {key: int(key.startswith("segments:")) for key in self.boxes}
        for _ in range(len(self.boxes)):
            changed = False
            for line in self.lines:
                if rank[line.end] <= rank[line.start] < len(self.boxes) - 1:
                    rank[line.end], changed = rank[line.start] + 1, True
            if not changed:
                break
        last = max(rank.values(), default=0)
        for key in rank:
            if key.startswith("sink:"):
                rank[key] = last
        used = sorted({*rank.values()})
        return [[box for key, box in self.boxes.items() if rank[key] == one] for one in used]


# What is in the picture.


def graph(status: WorkerStatus) -> Graph:
    """What is deployed, and what flows now. Whatever blocks is red, and so are the lines where the flow stops; what
    waits for it is not.
    """
    return _Picture(status).graph()


class _Picture:
    def __init__(self, status: WorkerStatus) -> None:
        self._status = status
        blocking = [one for one in status.blockages if one.is_blocking]
        self._blocking = blocking
        self._blamed = {one.link for one in blocking}
        self._pipelines = {one.pipeline for one in blocking if not one.link.startswith("sink ")}
        self._connectors = {one.name: one for one in status.connectors}
        self._is_disk_blocking = any(one.kind == "disk" for one in blocking)
        self._found = Graph()

    def graph(self) -> Graph:
        status, boxes = self._status, self._found.boxes
        starting = {one.name: one.sources for one in status.starting}
        reads = {one.name: [*chain(*one.inputs.values())] or starting.get(one.name, ()) for one in status.pipelines}
        reads = {**starting, **reads}
        for name in self._sources(chain(*reads.values())):
            self._add_source(name)
        known = {one.name: one for one in status.pipelines}
        for name in reads:
            boxes[f"pipeline:{name}"] = self._pipeline(name, known.get(name))
        for sink in status.sinks:
            self._add_sink(sink)
        for name, sources in reads.items():
            self._found.lines += self._inputs(name, sources)
        self._found.lines = [line for line in self._found.lines if line.start in boxes and line.end in boxes]
        return self._found

    def _sources(self, read: Iterable[str]) -> list[str]:
        """Sources that pipelines read, then those that nothing reads yet. Connectors that could be sources but are used
        as sinks only are left out.
        """
        known = [name for name in read if not name.startswith(_OUTPUT)]
        sinks = {one.url for one in self._status.sinks}
        others = [
            name
            for name, one in self._status.sources.items()
            if not name.endswith(".err") and not name.startswith("system.") and (one.messages or name not in sinks)
        ]
        # Segments that are read themselves come last, so that the others stand beside, or below, their sources.
        named = sorted(dict.fromkeys([*known, *others]), key=lambda name: name.startswith(_SEGMENT))
        self._found.left_out = named[BOXES_MAX:]
        return named[:BOXES_MAX]

    def _add_source(self, name: str) -> None:
        """A source is followed by its segments. A segment that a pipeline reads directly has nothing before it."""
        source, rate = self._status.sources.get(name), self._status.rates.sources.get(name)
        key, href = f"source:{name}", link("source", name=name)
        if name.startswith(_SEGMENT):
            segment = name.removeprefix(_SEGMENT)
            self._found.boxes[_storage(name)] = Box(
                _storage(name), segment, "a segment", link("segments", name=segment)
            )
            return
        connector = self._connectors.get(name)
        trouble = self._is_connector_blamed(name) or f"source {name}" in self._blamed
        sessions = 0 if source is None else source.sessions
        state = f"{sessions:,} program{'' if sessions == 1 else 's'}" if connector is None or sessions else ""
        text = state or (f"{connector.type}, {connector.state}" if connector is not None else "no events yet")
        self._found.boxes[key] = Box(key, name, text, href, trouble)
        if source is not None:
            count = len(source.segments)
            title = f"{count:,} segment{'' if count == 1 else 's'}"
            text, at = f"{show_size(source.retained_bytes)} retained", link("segments", prefix=f"connector/{name}/")
            self._found.boxes[_storage(name)] = Box(_storage(name), title, text, at, self._is_disk_blocking)
            events = "" if rate is None else f"{show_rate(rate.events_per_second)} events/s"
            self._found.lines.append(Line(key, _storage(name), events, trouble))

    def _is_connector_blamed(self, name: str) -> bool:
        connector = self._connectors.get(name)
        failed = connector is not None and connector.state in ("failed", "disconnected")
        return failed or f"connector {name}" in self._blamed

    def _pipeline(self, name: str, one: PipelineStatus | None) -> Box:
        rates = self._status.rates.pipelines.get(name)
        latency = "" if rates is None or rates.latency_seconds is None else f", latency {rates.latency_seconds:.2g} s"
        state = "starting Spark" if one is None else one.state.lower()
        waits = [
            each.link for each in self._status.blockages if each.pipeline == name and each.link.startswith("sink ")
        ]
        trouble = name in self._pipelines or state == "failing"
        text = f"waits for {waits[0]}" if waits and not trouble else state + (latency if state == "running" else "")
        return Box(f"pipeline:{name}", name, text, link("pipeline", name=name), trouble)

    def _add_sink(self, sink: SinkStatus) -> None:
        rate = self._status.rates.sinks.get(sink.pipeline, {}).get(sink.sink)
        connector = self._connectors.get(sink.url)
        trouble = self._is_sink_blamed(sink)
        text = _sink_state(sink, connector)
        key = f"sink:{sink.pipeline}/{sink.sink}"
        self._found.boxes[key] = Box(
            key, sink.sink, text, link("sink", pipeline=sink.pipeline, name=sink.sink), trouble
        )
        label = f"{sink.port}: {show_rate(0.0 if rate is None else rate.rows_per_second)} rows/s"
        self._found.lines.append(Line(f"pipeline:{sink.pipeline}", key, label, trouble))

    def _is_sink_blamed(self, sink: SinkStatus) -> bool:
        is_blamed = any(one.is_at_sink(sink.pipeline, sink.sink) for one in self._blocking)
        return is_blamed or bool(sink.reason) or self._is_connector_blamed(sink.url)

    def _inputs(self, name: str, sources: Iterable[str]) -> Iterable[Line]:
        read, trouble = [*sources], name in self._pipelines
        for source in read:
            label = self._read_rate(name, source, is_only=len(read) == 1)
            yield Line(self._origin(source), f"pipeline:{name}", label, trouble)

    def _origin(self, source: str) -> str:
        """The box that a pipeline reads from. A source that has stored nothing yet has no segments."""
        if source.startswith(_OUTPUT):
            return f"pipeline:{source.removeprefix(_OUTPUT).partition('/')[0]}"
        return _storage(source) if _storage(source) in self._found.boxes else f"source:{source}"

    def _read_rate(self, name: str, source: str, *, is_only: bool) -> str:
        """How fast the pipeline reads its only source. With several, how fast this one grows: rows are not counted by
        source.
        """
        rates = self._status.rates
        if source.startswith(_OUTPUT):
            producer, _, port = source.removeprefix(_OUTPUT).partition("/")
            before = rates.pipelines.get(producer)
            return port if before is None else f"{port}: {show_rate(before.rows_out_per_second)} rows/s"
        if is_only:
            rows = rates.pipelines.get(name)
            return "" if rows is None else f"{show_rate(rows.rows_in_per_second)} rows/s"
        events = rates.sources.get(source)
        return "" if events is None else f"{show_rate(events.events_per_second)} events/s"


def _storage(source: str) -> str:
    """The key of the box of a source's segments."""
    return f"segments:{source}"


def _sink_state(sink: SinkStatus, connector: ConnectorStatus | None) -> str:
    if connector is not None and connector.state in ("failed", "disconnected"):
        return connector.state
    behind = f", {sink.lacking:,} epochs behind" if sink.lacking > 1 else f", {sink.guarantee}"
    return sink.state.lower() + behind


def link(page: str, **named: str) -> str:
    """The address of a page about something. Names may contain slashes."""
    return f"/{page}?{urlencode(named)}"


def show_rate(value: float) -> str:
    """Short, for a label: 0, 0.4, 12, 1,234, 12k, 3.4M."""
    if value >= 1_000_000:
        return f"{value / 1_000_000:.1f}M"
    if value >= 10_000:
        return f"{value / 1000:.0f}k"
    return f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:.1f}"


# How it is drawn.


def drawn(found: Graph, *, is_phone: bool = False) -> str:
    """An SVG whose boxes are links, from left to right, or on a phone from top to bottom. Whatever is in trouble has a
    thick dashed line and a sign, so that it is visible without colours.
    """
    columns = found.columns()
    if not columns:
        return ""
    at, width, height = _stacked(columns) if is_phone else _side_by_side(columns)
    lines = [_line(line, at, is_phone=is_phone, beside=_beside(line, found.lines)) for line in found.lines]
    parts = [*(path for path, _ in lines), *(label for _, label in lines)]  # no line crosses a label
    parts += [_box(box, *at[box.key]) for column in columns for box in column]
    return (
        f'<svg class="flow" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="group" aria-label="The flow from sources to sinks">{"".join(parts)}</svg>'
    )


_Places = dict[str, tuple[float, float]]


def _side_by_side(columns: list[list[Box]]) -> tuple[_Places, int, int]:
    """Where each box is, and the size of the picture."""
    height = _extent(max(map(len, columns)), BOX_HEIGHT, _GAP)
    at: _Places = {}
    for number, column in enumerate(columns):
        top = (height - _extent(len(column), BOX_HEIGHT, _GAP)) / 2 + _MARGIN
        for row, box in enumerate(column):
            at[box.key] = (_MARGIN + number * (BOX_WIDTH + _LABEL_GAP), top + row * (BOX_HEIGHT + _GAP))
    return at, _extent(len(columns), BOX_WIDTH, _LABEL_GAP), height


def _stacked(columns: list[list[Box]]) -> tuple[_Places, int, int]:
    across = _ACROSS_PHONE
    rows = [column[at : at + across] for column in columns for at in range(0, len(column), across)]
    at: _Places = {}
    for number, row in enumerate(rows):
        for place, box in enumerate(row):
            x, y = place * (BOX_WIDTH + _GAP_PHONE), number * (BOX_HEIGHT + _LABEL_GAP_PHONE)
            at[box.key] = (_EDGE_PHONE + x, _MARGIN + y)
    width = across * (BOX_WIDTH + _GAP_PHONE) - _GAP_PHONE + 2 * _EDGE_PHONE
    return at, width, _extent(len(rows), BOX_HEIGHT, _LABEL_GAP_PHONE)


def _extent(count: int, size: int, gap: int) -> int:
    return count * (size + gap) - gap + 2 * _MARGIN


def _box(box: Box, x: float, y: float) -> str:
    sign = "⚠ " if box.trouble else ""
    kind = "box" + (" trouble" if box.trouble else "") + (" storage" if box.key.startswith("segments:") else "")
    name = escape(_short(sign + box.title, _TITLE_MAX))
    about = escape(f"{sign}{box.title}: {box.text}")
    return (
        f'<a href="{escape(box.href)}" class="{kind}" aria-label="{about}"><title>{about}</title>'
        f'<rect x="{x}" y="{y}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="8"/>'
        f'<text x="{x + 12}" y="{y + 24}" class="title">{name}</text>'
        f'<text x="{x + 12}" y="{y + 44}" class="text">{escape(_short(box.text, _TEXT_MAX))}</text></a>'
    )


def _line(line: Line, at: _Places, *, is_phone: bool, beside: str) -> tuple[str, str]:
    """The line and its label."""
    (x1, y1), (x2, y2) = at[line.start], at[line.end]
    if is_phone:
        x1, x2, y1 = x1 + BOX_WIDTH / 2, x2 + BOX_WIDTH / 2, y1 + BOX_HEIGHT
        middle = (y1 + y2) / 2
        path = _down(x1, y1, x2, y2)
        places = {"end": (x2, y2 - 12), "start": (x1, y1 + 20), "middle": ((x1 + x2) / 2, middle + 4)}
    else:
        x1, y1, y2 = x1 + BOX_WIDTH, y1 + BOX_HEIGHT / 2, y2 + BOX_HEIGHT / 2
        middle = (x1 + x2) / 2
        path = f"M{x1} {y1} C{middle} {y1} {middle} {y2} {x2 - 2} {y2}"
        across = _LABEL_GAP / 2
        places = {"end": (x2 - across, y2 - 7), "start": (x1 + across, y1 - 7), "middle": (middle, (y1 + y2) / 2 - 7)}
    x, y = places[beside]
    label = f'<text x="{x}" y="{y}" class="label">{escape(_short(line.text, _LABEL_MAX))}</text>' if line.text else ""
    return f'<path class="line{" trouble" if line.trouble else ""}" d="{path}"/>', label


def _down(x1: float, y1: float, x2: float, y2: float) -> str:
    """On a phone. Where other boxes are below, it runs between the two columns: it must not seem to lead to one."""
    if y2 - y1 <= _LABEL_GAP_PHONE:
        middle = (y1 + y2) / 2
        return f"M{x1} {y1} C{x1} {middle} {x2} {middle} {x2} {y2 - 2}"
    half, between = _LABEL_GAP_PHONE / 2, _EDGE_PHONE + BOX_WIDTH + _GAP_PHONE / 2
    above, below = y1 + 2 * half, y2 - 2 * half
    away = f"C{x1} {y1 + half} {between} {y1 + half} {between} {above}"
    return f"M{x1} {y1} {away} V{below} C{between} {y2 - half} {x2} {y2 - half} {x2} {y2 - 2}"


def _beside(line: Line, lines: Iterable[Line]) -> str:
    """Where a line's label goes, so that no two overlap: near the box that has only this line."""
    if sum(one.end == line.end for one in lines) == 1:
        return "end"
    return "start" if sum(one.start == line.start for one in lines) == 1 else "middle"


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
