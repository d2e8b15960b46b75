"""`penstock status`: what is wrong, how fast everything flows, and what pipelines and sinks do."""

import json
import time
from typing import Annotated

import typer
from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from penstock.cli.connect import DataOption, JsonOption, WorkerOption, get_json, worker_to_read
from penstock.cli.open_windows import open_window_notes
from penstock.cli.segment.list import segments_of
from penstock.cli.status_view import view
from penstock.coordinator.messages import PipelineStatus
from penstock.core.errors import Unavailable

_WATCH_SECONDS = 1.0
_WIDTH = 140
"""Of what goes to a file or a pipe."""

AllOption = Annotated[
    bool, typer.Option("--all", help="Show everything, whether it fits the screen or not; internal segments, too.")
]


def register(app: typer.Typer) -> None:
    app.command("status")(status)


def status(
    worker: WorkerOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
    is_all: AllOption = False,
    watch: Annotated[bool, typer.Option("--watch", help="Keep showing it until Ctrl-C.")] = False,
) -> None:
    """Show what is wrong, and the pipelines, sources and sinks with their rates.

    What is wrong comes first. On a terminal the output fits the screen: what
    does not fit is counted, and --all shows it. Rates are over the last 10 seconds.
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
    """A worker that is away is waited for."""
    with Live(console=console, auto_refresh=False, screen=console.is_terminal) as live:
        while True:
            try:
                live.update(_shown(address, console, is_all=is_all), refresh=True)
            except Unavailable as error:
                live.update(Text(f"{error}\nwaiting for it …"), refresh=True)
            time.sleep(_WATCH_SECONDS)


def _shown(address: str, console: Console, *, is_all: bool) -> RenderableType:
    """On a terminal a line is left for the prompt that follows."""
    status, segments = get_json(address, "/status"), [*segments_of(address)]
    height = console.height - 1 if console.is_terminal else None
    notes = open_window_notes(map(PipelineStatus.from_json, status.get("pipelines", [])))
    return view(address, status, segments, width=console.width, height=height, is_all=is_all, notes=notes)
