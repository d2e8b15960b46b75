"""`penstock source`: what is said of a source besides its messages."""

from typing import Annotated

import typer

from penstock.cli.connect import DataOption, WorkerOption, YesOption, worker_to_change
from penstock.cli.event_times import parse_event_time
from penstock.cli.texts import show_time
from penstock.client.coordinator import CoordinatorClient

_RETRY_SECONDS = 3.0
"""For a worker that is about to start; a person waits for the answer."""

app = typer.Typer(help="Say that a source has ended, or how far its streams are.", no_args_is_help=True)


@app.command("end")
def end(name: str, worker: WorkerOption = None, data: DataOption = None, yes: YesOption = False) -> None:
    """Say that a source has ended for good: it closes all windows.

    Where all that a pipeline reads has ended, its watermark is the end of
    time. What the source sends later is stored, and late.
    """
    with CoordinatorClient(worker_to_change(worker, data, yes=yes), _RETRY_SECONDS) as client:
        client.end_source(name)
    typer.echo(f"{name} has ended")


@app.command("watermark")
def watermark(
    name: str,
    time: Annotated[str, typer.Argument(help="Like 2026-01-31T12:00:00Z, or in microseconds since 1970.")],
    stream: Annotated[
        str | None, typer.Option(metavar="ID", help="Of this stream alone, by its name or its id.")
    ] = None,
    worker: WorkerOption = None,
    data: DataOption = None,
    yes: YesOption = False,
) -> None:
    """Say that no more events before a time come on the streams of a source.

    Times before 1970 begin with a dash: write -- before them.
    """
    time_us = parse_event_time(time)
    with CoordinatorClient(worker_to_change(worker, data, yes=yes), _RETRY_SECONDS) as client:
        count = client.declare_watermark(name, time_us, stream)
    typer.echo(f"{name}: no more events before {show_time(time_us)} UTC on {count} stream{'' if count == 1 else 's'}")
