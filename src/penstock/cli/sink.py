"""`penstock sink`: where the output of pipelines goes."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from penstock.cli.connect import (
    DataOption,
    JsonOption,
    WorkerOption,
    YesOption,
    report,
    worker_to_change,
    worker_to_read,
)
from penstock.client.coordinator import CoordinatorClient, Rewound, SinkSpec, SinkStatus
from penstock.core.counts import show_count
from penstock.core.errors import PipelineError
from penstock.core.sizes import show_size
from penstock.spark.pipelines import DEFAULT_PORT, with_sinks

if TYPE_CHECKING:
    from penstock.connectors.api import About

_WIDTH = 140
"""For output to a file or a pipe, so that no column is cut short."""

_RETRY_SECONDS = 3.0
"""How long to wait for a worker that is about to start: a person is waiting."""

_COLOURS = {
    "READY": "green",
    "IN ROUND": "green",
    "VOTED": "green",
    "CONNECTING": "yellow",
    "REFUSED": "red",
    "WAITING": "red",
    "DIVERGED": "red",
}

app = typer.Typer(help="Bind sinks to the output ports of pipelines.", no_args_is_help=True)


def register(commands: typer.Typer) -> None:
    commands.add_typer(app, name="sink")


@app.command("add")
def add(
    pipeline: str,
    url: Annotated[str, typer.Argument(help="Like file:results; see penstock sink types. Or a deployed connector.")],
    name: Annotated[str | None, typer.Option(help="The sink's name. Default: its type.", show_default=False)] = None,
    port: Annotated[str, typer.Option(help="The pipeline's output port.")] = DEFAULT_PORT,
    worker: WorkerOption = None,
    data: DataOption = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Bind a sink to a pipeline, which need not have started yet.

    Relative paths are relative to the worker's working directory. If the
    name is bound already, it continues at the new URL where it was.
    """
    shown = _shown(url)
    with CoordinatorClient(worker_to_change(worker, data, yes=yes), _RETRY_SECONDS) as client:
        before = [one for one in client.sinks() if one.pipeline == pipeline]
        chosen = name or _free_name(SinkSpec(port, shown), before)
        client.bind(pipeline, {chosen: SinkSpec(port, url)})
        bound = _known(client, pipeline, chosen)
        is_known = pipeline in [one.name for one in client.pipelines() if one.inputs]
    if as_json:
        typer.echo(json.dumps({**asdict(bound), "pipeline_has_run": is_known}))
        return
    typer.echo(f"{pipeline}/{port} goes to {bound.url} ({bound.guarantee}) as {chosen}")
    if not is_known:
        typer.echo(f"{pipeline} has not run yet: its output goes there from its first run")


def _shown(url: str) -> str:
    """Raises RequestError for a mistake in a URL, before the request to the worker."""
    from penstock.connectors.secrets import UnsetVariable  # here: other commands need no connectors
    from penstock.connectors.urls import is_url, named, parse_sink

    if not is_url(url):
        return url
    try:
        return parse_sink(url).shown
    except UnsetVariable:  # the worker may have it
        return named(url)


def _free_name(spec: SinkSpec, bound: list[SinkStatus]) -> str:
    """A name for the sink: its present one if it is already bound."""
    taken = {one.sink: SinkSpec(one.port, one.url) for one in bound}
    return next(name for name, one in with_sinks(taken, [spec]).items() if one == spec)


@app.command("list")
def list_sinks(worker: WorkerOption = None, data: DataOption = None, as_json: JsonOption = False) -> None:
    """List sinks: guarantee, state, bytes sent and epochs parked."""
    with CoordinatorClient(worker_to_read(worker, data), _RETRY_SECONDS) as client:
        found = client.sinks()
    if as_json:
        typer.echo(json.dumps([asdict(one) for one in found]))
        return
    _console().print(sink_table(found) if found else "no sinks")


def sink_table(found: Sequence[SinkStatus], title: str | None = None) -> Table:
    table = Table("pipeline", "port", "sink", "url", "guarantee", "state", "sent", "parked", title=title)
    table.title_justify, table.title_style = "left", "bold"
    for one in found:
        state = f"[{_COLOURS.get(one.state, 'default')}]{one.state}[/]"
        state += f"\n{escape(one.reason)}" if one.reason else ""
        texts = map(escape, (one.pipeline, one.port, one.sink, one.url, one.guarantee))
        table.add_row(*texts, state, show_size(one.sent), str(one.parked))
    return table


@app.command("ddl")
def ddl(
    name: Annotated[str, typer.Argument(metavar="[PIPELINE/]SINK", help="The sink; see penstock sink list.")],
    worker: WorkerOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the SQL that makes a sink's table fit the pipeline's rows.

    CREATE TABLE if it does not exist, ALTER TABLE for missing columns; nothing
    is changed. The worker looks at the table as it is now. To let the sink do
    it by itself, add create=true to its URL.
    """
    with CoordinatorClient(worker_to_read(worker, data), _RETRY_SECONDS) as client:
        sink = _named(client.sinks(), name)
        found = client.ddl(sink.pipeline, sink.sink)
    if as_json:
        typer.echo(json.dumps(asdict(found)))
        return
    for statement in found.statements:
        typer.echo(f"{statement};")
    if not found.statements:
        typer.echo(f"-- table {found.table} fits the rows of {sink.pipeline}/{sink.port}: nothing to do")


def _named(sinks: list[SinkStatus], name: str) -> SinkStatus:
    """By `PIPELINE/SINK`, or by the sink's name alone if only one pipeline has a sink of that name."""
    found = [one for one in sinks if name in (one.sink, f"{one.pipeline}/{one.sink}")]
    if len(found) > 1:
        names = ", ".join(f"{one.pipeline}/{one.sink}" for one in found)
        raise PipelineError(f"{len(found)} sinks are called {name!r}", f"Name one of: {names}")
    if not found:
        raise PipelineError(f"sink {name!r} not found", "List them: penstock sink list")
    return found[0]


@app.command("rewind")
def rewind(
    name: Annotated[str, typer.Argument(metavar="SINK", help="The sink; see penstock sink list.")],
    pipeline: Annotated[
        str | None, typer.Option(help="Its pipeline, if several have such a sink.", show_default=False)
    ] = None,
    accept_gap: Annotated[
        bool, typer.Option("--accept-gap", help="Continue although the sink lacks epochs that are no longer stored.")
    ] = False,
    accept_duplicates: Annotated[
        bool, typer.Option("--accept-duplicates", help="Continue although rows may arrive at the sink twice.")
    ] = False,
    yes: YesOption = False,
    worker: WorkerOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Continue a sink that is older or newer than the worker's data.

    A sink in the state DIVERGED was restored from another copy than the
    worker. The epochs that it lacks are delivered again, if the output still
    has them.
    """
    with CoordinatorClient(worker_to_change(worker, data, yes=yes), _RETRY_SECONDS) as client:
        sink = _named(client.sinks(), name if pipeline is None else f"{pipeline}/{name}")
        if (accept_gap or accept_duplicates) and not yes:
            typer.echo(sink.reason)
            what = "Its missing epochs are never delivered." if accept_gap else "Rows may arrive at it twice."
            typer.confirm(f"Continue {sink.sink} of {sink.pipeline} from what it has? {what}", abort=True)
        done = client.rewind(sink.pipeline, sink.sink, accept_gap=accept_gap, accept_duplicates=accept_duplicates)
    typer.echo(json.dumps(asdict(done)) if as_json else f"{done.found}\n{_rewound(done)}")


def _rewound(done: Rewound) -> str:
    if done.accepted:
        return f"the sink continues from what it has; accepted, and recorded in the ledger: {done.accepted}"
    return f"delivering {show_count(done.again, 'epoch')} again"


@app.command("remove")
def remove(
    pipeline: str,
    sink: str,
    yes: YesOption = False,
    worker: WorkerOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Unbind a sink: it gets nothing more, and blocks nothing any more.

    Epochs that it does not have yet are never delivered to it. Bound again,
    it starts from scratch.
    """
    with CoordinatorClient(worker_to_change(worker, data, yes=yes), _RETRY_SECONDS) as client:
        known = _known(client, pipeline, sink)
        if not yes:
            epochs = "1 epoch that waits" if known.lacking == 1 else f"{known.lacking} epochs that wait"
            what = f"{epochs} for it never {'reaches' if known.lacking == 1 else 'reach'} it"
            what = what if known.lacking else "nothing waits for it"
            typer.confirm(f"Remove {sink} ({known.url}) from {pipeline}? {what}", abort=True, err=as_json)
        client.unbind(pipeline, sink)
    report(f"removed {sink} from {pipeline}", as_json=as_json, pipeline=pipeline, sink=sink, lacked=known.lacking)


def _known(client: CoordinatorClient, pipeline: str, sink: str) -> SinkStatus:
    for one in client.sinks():
        if (one.pipeline, one.sink) == (pipeline, sink):
            return one
    raise PipelineError(f"{pipeline} has no sink {sink!r}", "List them: penstock sink list")


@app.command("types")
def types(as_json: JsonOption = False) -> None:
    """List the connector types that can be sinks: URL, guarantee and options."""
    found = [*_types()]
    if as_json:
        typer.echo(json.dumps(found))
        return
    table = Table("url", "guarantee", "what", "options", show_lines=True)
    for one in found:
        guarantee = one["guarantee"] + ("\ntransactional" if one["transactional"] else "")
        needs = f"\npip install 'penstock-streams[{one['extra']}]'" if one["extra"] else ""
        texts = (one["url"], guarantee, f"{one['text']}{needs}", "\n".join(one["options"]))
        table.add_row(*map(escape, texts))
    _console().print(table)


def _types() -> Iterator[dict[str, Any]]:
    from penstock.connectors.registry import CONNECTORS
    from penstock.connectors.urls import written

    for name in CONNECTORS.names():
        about = CONNECTORS.get(name).about
        can = about.capabilities
        if can.sink is not None and not can.is_linked:
            yield {
                "type": name,
                "url": written(about),
                "guarantee": can.sink.value,
                "transactional": can.votes,
                "text": about.text,
                "extra": about.extra,
                "options": _options(about),
            }


def _options(about: "About") -> list[str]:
    from penstock.application.type_pages import url_options

    lines = []
    for option in url_options(about):
        default = f"  [{option.default}]" if option.default else "  required" if option.required else ""
        lines.append(f"{option.name}={option.values}{default}")
    return lines


def _console() -> Console:
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _WIDTH
    return console
