"""`penstock source`: declarations about a source."""

import json
from typing import Annotated

import typer

from penstock.cli.connect import DataOption, JsonOption, WorkerOption, YesOption, report, worker_to_change
from penstock.cli.event_times import parse_event_time
from penstock.cli.texts import show_time
from penstock.client.coordinator import CoordinatorClient
from penstock.core.counts import show_count

_RETRY_SECONDS = 3.0
"""How long to wait for a worker that is about to start: a person is waiting."""

app = typer.Typer(help="Declare that a source has ended, or a watermark of its streams.", no_args_is_help=True)


def register(commands: typer.Typer) -> None:
    commands.add_typer(app, name="source")


@app.command("end")
def end(
    name: str,
    worker: WorkerOption = None,
    data: DataOption = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Declare that a source has ended for good: all its windows close.

    Once all sources of a pipeline have ended, its watermark is the end of
    time. Events that the source sends later are stored, and late.
    """
    with CoordinatorClient(worker_to_change(worker, data, yes=yes), _RETRY_SECONDS) as client:
        client.end_source(name)
    report(f"{name} has ended", as_json=as_json, source=name, ended=True)


@app.command("watermark")
def watermark(
    name: str,
    time: Annotated[str, typer.Argument(help="Like 2026-01-31T12:00:00Z, or in microseconds since 1970.")],
    stream: Annotated[str | None, typer.Option(metavar="ID", help="Only for this stream: its name or its id.")] = None,
    worker: WorkerOption = None,
    data: DataOption = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Declare that a source will send no more events from before a time.

    Times before 1970 begin with a dash: write -- before them.
    """
    time_us = parse_event_time(time)
    with CoordinatorClient(worker_to_change(worker, data, yes=yes), _RETRY_SECONDS) as client:
        count = client.declare_watermark(name, time_us, stream)
    if as_json:
        typer.echo(json.dumps({"source": name, "watermark_us": time_us, "streams": count}))
        return
    typer.echo(f"{name}: no more events before {show_time(time_us)} UTC on {show_count(count, 'stream')}")
