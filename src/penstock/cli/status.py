"""`penstock status`: what a worker holds, what pipelines and sinks do, and who holds the chain when nothing moves."""

import json
import time
from typing import Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from penstock.cli.connect import DataOption, JsonOption, WorkerOption, get_json, worker_to_read
from penstock.cli.connector_tables import connector_table, connector_troubles
from penstock.cli.open_windows import open_window_lines
from penstock.cli.sink import sink_table
from penstock.cli.sizes import show_size
from penstock.cli.watermarks import watermark_table
from penstock.coordinator.delivery_messages import SinkStatus
from penstock.coordinator.messages import PipelineStatus
from penstock.core.errors import Unavailable

_WATCH_SECONDS = 1.0
_WIDTH = 140
"""Of what goes to a file or a pipe: no column is cut short."""

_SEGMENTS_SHOWN = 20
"""The largest; `penstock segment list` has all of them."""

_NOT_SHOWN = ("connector/", "coordinator/", "staging/")
"""Segments that are shown otherwise, or are no data."""

_COLOURS = {"STARTING": "yellow", "RUNNING": "green", "FAILING": "red", "STOPPED": "yellow"}


def register(app: typer.Typer) -> None:
    app.command("status")(status)


def status(
    worker: WorkerOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
    watch: Annotated[bool, typer.Option("--watch", help="Go on showing it until Ctrl-C.")] = False,
) -> None:
    """Show connectors, segments, pipelines and sinks, and who holds the chain when nothing moves."""
    address = worker_to_read(worker, data)
    found = get_json(address, "/status")
    if as_json:
        typer.echo(json.dumps(found))
        return
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _WIDTH
    if watch:
        _watch(address, console)
    else:
        console.print(_view(address, found, _segments(address)))


def _watch(address: str, console: Console) -> None:
    """A worker that is away is waited for."""
    with Live(console=console, auto_refresh=False, screen=console.is_terminal) as live:
        while True:
            try:
                live.update(_view(address, get_json(address, "/status"), _segments(address)), refresh=True)
            except Unavailable as error:
                live.update(Text(f"{error}\nwaiting for it …"), refresh=True)
            time.sleep(_WATCH_SECONDS)


def _segments(address: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = get_json(address, "/segments")["segments"]
    return [segment for segment in found if not segment["name"].startswith(_NOT_SHOWN)]


def _view(address: str, status: dict[str, Any], segments: list[dict[str, Any]]) -> RenderableType:
    pipelines = [PipelineStatus.from_json(told) for told in status.get("pipelines", [])]
    parts: list[RenderableType] = [_worker(address, status), *_problems(status)]
    hosted = status.get("connectors", [])
    application = status.get("application") or {"revision": 0}
    parts += [connector_table(hosted, application), *connector_troubles(hosted)] if application["revision"] else []
    parts += [_connectors(status["gateway"]["sources"])] if status["gateway"]["sources"] else []
    parts += [_segment_table(segments)] if segments else []
    parts += [_pipelines(pipelines), watermark_table(pipelines)] if pipelines else []
    sinks = [SinkStatus(**told) for told in status.get("sinks", [])]
    parts += [sink_table(sinks, "sinks")] if sinks else []
    waiting = open_window_lines(pipelines)
    return Group(*parts, *waiting, *_holds(status.get("holds", []), [] if waiting else pipelines))


def _worker(address: str, status: dict[str, Any]) -> Text:
    store = status["store"]
    held = f"{store['segments']} segments with {show_size(store['live_bytes'])}"
    return Text(f"worker {status['version']} on {address} (pid {status['pid']}): {held}")


def _problems(status: dict[str, Any]) -> list[Text]:
    damaged = [f"source {name!r}: {why}" for name, why in status["gateway"].get("damaged_sources", {}).items()]
    return [Text(problem, "bold red") for problem in (*status["problems"], *damaged)]


def _connectors(sources: dict[str, Any]) -> Table:
    table = _table("sources", "source", "streams", "idle", "held", "ack", "room", "ended")
    for name, connector in sources.items():
        room = "yes" if connector["has_room"] else "[red]no[/]"
        held = show_size(connector["held_bytes"])
        idle, ended = connector.get("idle_streams", 0), "yes" if connector.get("has_finished") else ""
        table.add_row(escape(name), f"{connector['streams']:,}", f"{idle:,}", held, connector["ack"], room, ended)
    return table


def _segment_table(segments: list[dict[str, Any]]) -> Table:
    table = _table("outputs and other segments", "segment", "start", "end", "size")
    by_size = sorted(segments, key=lambda segment: segment["start"] - segment["length"])
    for segment in by_size[:_SEGMENTS_SHOWN]:
        start, end = segment["start"], segment["length"]
        table.add_row(escape(segment["name"]), f"{start:,}", f"{end:,}", show_size(end - start))
    if len(segments) > _SEGMENTS_SHOWN:
        table.caption = f"and {len(segments) - _SEGMENTS_SHOWN} more: penstock segment list"
    return table


def _pipelines(pipelines: list[PipelineStatus]) -> Table:
    columns = ("pipeline", "state", "reads", "planned", "merged", "complete", "lag", "undelivered")
    table = _table("pipelines: the last epoch of each kind", *columns)
    for each in pipelines:
        reads = ", ".join(dict.fromkeys(source for sources in each.inputs.values() for source in sources))
        epochs = (str(each.planned), str(each.merged), str(each.complete))
        sizes = (show_size(each.lag_bytes), show_size(each.undelivered_bytes))
        state = f"[{_COLOURS.get(each.state, 'default')}]{each.state}[/]"
        table.add_row(escape(each.name), state, escape(reads), *epochs, *sizes)
    return table


def _table(title: str, *columns: str) -> Table:
    return Table(*columns, title=title, title_justify="left", title_style="bold")


def _holds(sentences: list[str], pipelines: list[PipelineStatus]) -> list[Text]:
    if sentences:
        return [Text("who holds the chain:", "bold"), *(Text(f"  {sentence}") for sentence in sentences)]
    return [Text("nobody holds the chain")] if pipelines else []
