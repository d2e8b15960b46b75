"""The flow as a picture: sources, pipelines and sinks as boxes in columns, with rates on the lines between them. Pure.

WorkerStatus ──graph──▶ boxes and lines ──drawn──▶ SVG, whose colours are those of the page
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from html import escape
from urllib.parse import urlencode

from penstock.core.sizes import show_size
from penstock.protocol.api.pipelines import PipelineStatus
from penstock.protocol.api.status import WorkerStatus

BOX_WIDTH, BOX_HEIGHT = 200, 58
_GAP_X, _GAP_Y, _MARGIN = 130, 22, 16
_TITLE_MAX, _TEXT_MAX = 24, 30
"""Characters that fit into a box."""
BOXES_MAX = 200
"""More cannot be read: the rest is on the pages that list them."""


@dataclass(frozen=True, slots=True)
class Box:
    key: str
    title: str
    text: str
    """A line about its state or rate."""
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

    def columns(self) -> list[list[Box]]:
        """From left to right: each box is to the right of all that lead to it, and sinks are in the last column. What
        goes round in a circle is broken where it was found first.
        """
        rank = dict.fromkeys(self.boxes, 0)
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


def graph(status: WorkerStatus) -> Graph:
    """What is deployed, and what flows now."""
    found = Graph()
    blocked = {one.pipeline for one in status.blockages if one.is_blocking and one.pipeline}
    links = {one.link for one in status.blockages if one.is_blocking}
    for name in _sources(status):
        found.boxes[f"source:{name}"] = _source(name, status, is_blocking=f"source {name}" in links)
    for pipeline in status.pipelines:
        found.boxes[f"pipeline:{pipeline.name}"] = _pipeline(pipeline, status, pipeline.name in blocked)
    for sink in status.sinks:
        rate = status.rates.sinks.get(sink.pipeline, {}).get(sink.sink)
        text = sink.state.lower() if sink.reason or rate is None else f"{show_rate(rate.rows_per_second)} rows/s"
        trouble = f"sink {sink.sink}" in links or bool(sink.reason)
        key = f"sink:{sink.pipeline}/{sink.sink}"
        href = link("sink", pipeline=sink.pipeline, name=sink.sink)
        found.boxes[key] = Box(key, sink.sink, text, href, trouble)
        found.lines.append(Line(f"pipeline:{sink.pipeline}", key, sink.port, trouble))
    found.lines += [line for pipeline in status.pipelines for line in _inputs(pipeline, status, found.boxes)]
    found.lines = [line for line in found.lines if line.start in found.boxes and line.end in found.boxes]
    return found


def _sources(status: WorkerStatus) -> Iterable[str]:
    """Those that pipelines read, then those that nobody reads yet."""
    read = [source for one in status.pipelines for names in one.inputs.values() for source in names]
    known = [name for name in read if not name.startswith("pipeline:")]
    others = [name for name in status.sources if not name.endswith(".err") and not name.startswith("system.")]
    return [*dict.fromkeys([*known, *others])][:BOXES_MAX]


def _source(name: str, status: WorkerStatus, *, is_blocking: bool) -> Box:
    rate, source = status.rates.sources.get(name), status.sources.get(name)
    connector = next((one for one in status.connectors if one.name == name), None)
    trouble = is_blocking or (connector is not None and connector.state in ("failed", "disconnected"))
    if trouble and connector is not None and connector.reason:
        text = connector.state
    elif rate is not None:
        text = f"{show_rate(rate.events_per_second)} events/s"
    else:
        text = "a segment" if name.startswith("segment:") else "no events yet"
    if source is not None and not trouble:
        text += f" · {show_size(source.retained_bytes)}"
    return Box(f"source:{name}", name, text, link("source", name=name), trouble)


def _pipeline(one: PipelineStatus, status: WorkerStatus, is_blocked: bool) -> Box:
    rates = status.rates.pipelines.get(one.name)
    text = one.state.lower()
    if one.state == "RUNNING" and rates is not None:
        text = f"{show_rate(rates.rows_in_per_second)} rows/s"
        text += f" · {rates.latency_seconds:.2g} s" if rates.latency_seconds is not None else ""
    trouble = is_blocked or one.state == "FAILING"
    return Box(f"pipeline:{one.name}", one.name, text, link("pipeline", name=one.name), trouble)


def _inputs(one: PipelineStatus, status: WorkerStatus, boxes: Mapping[str, Box]) -> Iterable[Line]:
    for sources in one.inputs.values():
        for source in sources:
            start = f"source:{source}"
            if source.startswith("pipeline:"):
                start = f"pipeline:{source.removeprefix('pipeline:').partition('/')[0]}"
            rate = status.rates.sources.get(source)
            text = f"{show_rate(rate.bytes_per_second, size=True)}/s" if rate is not None else ""
            yield Line(start, f"pipeline:{one.name}", text, start in boxes and boxes[start].trouble)


def link(page: str, **named: str) -> str:
    """The address of a page about something. Names may contain slashes."""
    return f"/{page}?{urlencode(named)}"


def show_rate(value: float, *, size: bool = False) -> str:
    """Short, for a box: 0, 0.4, 12, 1,234, 12k, 3.4M."""
    if size:
        return show_size(int(value))
    if value >= 1_000_000:
        return f"{value / 1_000_000:.1f}M"
    if value >= 10_000:
        return f"{value / 1000:.0f}k"
    return f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:.1f}"


def drawn(found: Graph) -> str:
    """An SVG whose boxes are links. What is in trouble has a thick dashed line and a sign, so that it shows without
    colours.
    """
    columns = found.columns()
    if not columns:
        return ""
    height = max(len(column) for column in columns) * (BOX_HEIGHT + _GAP_Y) - _GAP_Y + 2 * _MARGIN
    width = len(columns) * (BOX_WIDTH + _GAP_X) - _GAP_X + 2 * _MARGIN
    at: dict[str, tuple[float, float]] = {}
    for number, column in enumerate(columns):
        used = len(column) * (BOX_HEIGHT + _GAP_Y) - _GAP_Y
        for row, box in enumerate(column):
            at[box.key] = (_MARGIN + number * (BOX_WIDTH + _GAP_X), (height - used) / 2 + row * (BOX_HEIGHT + _GAP_Y))
    parts = [_line(line, at) for line in found.lines]
    parts += [_box(box, *at[box.key]) for column in columns for box in column]
    return (
        f'<svg class="flow" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'aria-label="The flow from sources to sinks">{"".join(parts)}</svg>'
    )


def _box(box: Box, x: float, y: float) -> str:
    sign = "⚠ " if box.trouble else ""
    name = escape(_short(box.title, _TITLE_MAX))
    return (
        f'<a href="{escape(box.href)}" class="box{" trouble" if box.trouble else ""}" '
        f'aria-label="{escape(box.title)}: {escape(box.text)}">'
        f'<rect x="{x}" y="{y}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="8"/>'
        f'<text x="{x + 12}" y="{y + 24}" class="title">{sign}{name}</text>'
        f'<text x="{x + 12}" y="{y + 44}" class="text">{escape(_short(box.text, _TEXT_MAX))}</text></a>'
    )


def _line(line: Line, at: Mapping[str, tuple[float, float]]) -> str:
    (x1, y1), (x2, y2) = at[line.start], at[line.end]
    x1, y1, y2 = x1 + BOX_WIDTH, y1 + BOX_HEIGHT / 2, y2 + BOX_HEIGHT / 2
    middle = (x1 + x2) / 2
    kind = "line trouble" if line.trouble else "line"
    label = f'<text x="{middle}" y="{(y1 + y2) / 2 - 6}" class="label">{escape(_short(line.text, 18))}</text>'
    return (
        f'<path class="{kind}" d="M{x1} {y1} C{middle} {y1} {middle} {y2} {x2 - 2} {y2}"/>{label if line.text else ""}'
    )


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
