"""`penstock status`: what is wrong, how fast everything flows, and what pipelines and sinks do."""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from penstock.cli.connect import DataOption, JsonOption, WorkerOption, get_json, worker_status, worker_to_read
from penstock.cli.overview import NAMED, bucket_line, deployed, limited, sections, sentences, shard_lines, worker_line
from penstock.cli.screen import rendered, shares
from penstock.cli.segment import segments_of
from penstock.cli.sink import sink_table
from penstock.cli.texts import watermark_table
from penstock.core.errors import Unavailable
from penstock.core.sizes import show_size
from penstock.protocol.api.status import ApplicationStatus, ConnectorStatus, WorkerStatus

# The connectors of an application: what each does, and what keeps its streams from sending.

_COLOURS = {"connected": "green", "disconnected": "red", "failed": "red", "paused": "yellow", "draining": "yellow"}


def connector_table(connectors: Sequence[ConnectorStatus], application: ApplicationStatus) -> Table:
    title = f"application, revision {application.revision}: {application.state}"
    columns = ("connector", "type", "state", "streams", "waiting", "in", "out", "dead letters", "outbox", "guarantee")
    table = Table(*columns, title=title, title_justify="left", title_style="bold")
    for one in connectors:
        state = "paused" if one.paused else one.state
        shown = f"[{_COLOURS.get(state, 'default')}]{state}[/]"
        counts = (one.streams, one.blocked_count, one.events_in, one.events_out, one.dead_letters)
        table.add_row(
            *(escape(one.name), escape(one.type), shown, *(f"{count:,}" for count in counts)),
            *(show_size(one.outbox_bytes), _guarantee(one.guarantee)),
        )
    return table


def _guarantee(guarantee: Mapping[str, str]) -> str:
    return ", ".join(f"{port}: {promise}" for port, promise in guarantee.items())


# The screen.


def view(
    address: str,
    status: WorkerStatus,
    segments: Sequence[Mapping[str, Any]],
    *,
    width: int,
    height: int | None = None,
    is_all: bool = False,
) -> RenderableType:
    """In `height` lines at most, if that is possible. `is_all`: everything, the worker's own segments included."""
    height = None if is_all else height
    named = None if is_all else NAMED
    top = [*worker_line(address, status, width), *bucket_line(status.store.bucket, width)]
    top += [*shard_lines(status.shards, width, named), *limited(sentences(status, named), width, height)]
    shown_sections = sections(status, segments, is_all=is_all)
    room = None if height is None else height - len(top)
    parts: list[RenderableType] = [*top]
    for section, shown in zip(shown_sections, shares(shown_sections, room), strict=True):
        parts += rendered(section, shown, width)
    return Group(*parts, *(_details(status) if is_all else ()))


def _details(status: WorkerStatus) -> Iterator[RenderableType]:
    """Tables with all there is to know of connectors, watermarks and sinks."""
    if (application := deployed(status)) is not None:
        yield connector_table(status.connectors, application)
    if status.pipelines:
        yield watermark_table(status.pipelines)
    if status.sinks:
        yield sink_table(status.sinks, "sinks")


_WATCH_SECONDS = 1.0
_WIDTH = 140
"""For output to a file or a pipe."""

AllOption = Annotated[
    bool, typer.Option("--all", help="Show everything, even if it does not fit the screen; also internal segments.")
]


def register(app: typer.Typer) -> None:
    app.command("status")(status)


def status(
    worker: WorkerOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
    is_all: AllOption = False,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh until Ctrl-C.")] = False,
) -> None:
    """Show what is wrong, and the pipelines, sources and sinks with their rates.

    What is wrong comes first. On a terminal the output fits the screen: what
    does not fit is counted, and --all shows it. Rates are over the last 10 s.
    """
    address = worker_to_read(worker, data)
    if as_json:
        typer.echo(json.dumps(get_json(address, "/status")))
        return
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _WIDTH
    if watch:
        _watch(address, console, is_all=is_all)
    else:
        console.print(_shown(address, console, is_all=is_all))


def _watch(address: str, console: Console, *, is_all: bool) -> None:
    """Waits for a worker that is unavailable."""
    with Live(console=console, auto_refresh=False, screen=console.is_terminal) as live:
        while True:
            try:
                live.update(_shown(address, console, is_all=is_all), refresh=True)
            except Unavailable as error:
                live.update(Text(f"{error}\nwaiting for it …"), refresh=True)
            time.sleep(_WATCH_SECONDS)


def _shown(address: str, console: Console, *, is_all: bool) -> RenderableType:
    """On a terminal a line is left for the prompt that follows."""
    status, segments = worker_status(address), [*segments_of(address)]
    height = console.height - 1 if console.is_terminal else None
    return view(address, status, segments, width=console.width, height=height, is_all=is_all)
