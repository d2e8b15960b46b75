"""`penstock epoch`: epochs that are not delivered yet, and what to do when one cannot be."""

import json
import math
from dataclasses import asdict
from typing import Annotated, Any

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
from penstock.client.coordinator import CoordinatorClient, EpochStatus, Waiting
from penstock.core.errors import PipelineError
from penstock.core.sizes import show_size

_WIDTH = 140
"""For output to a file or a pipe, so that no column is cut short."""

_RETRY_SECONDS = 3.0
"""How long to wait for a worker that is about to start: a person is waiting."""

_SHOWN_MAX = 20
"""Epochs per pipeline in the table: later ones only wait for the first ones. The JSON output has all."""

_COLOURS = {"REFUSED": "red", "WAITING": "red", "DIVERGED": "red", "DELIVERING": "green", "DECIDED": "green"}

app = typer.Typer(help="Inspect epochs that sinks do not have yet; retry or park one.", no_args_is_help=True)


def register(commands: typer.Typer) -> None:
    commands.add_typer(app, name="epoch")


@app.command("list")
def list_epochs(
    pipeline: Annotated[str | None, typer.Argument(help="Only of this pipeline.", show_default=False)] = None,
    worker: WorkerOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the epochs that are not delivered everywhere, oldest first, and what they wait for."""
    with CoordinatorClient(worker_to_read(worker, data), _RETRY_SECONDS) as client:
        names = [one.name for one in client.pipelines()] if pipeline is None else [pipeline]
        found = {name: client.epochs(name) for name in names}
    if as_json:
        rows: list[dict[str, Any]] = [{"pipeline": name} | asdict(one) for name, all_ in found.items() for one in all_]
        typer.echo(json.dumps(rows))
        return
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _WIDTH
    console.print(_table(found) if any(found.values()) else "everything is delivered")
    for name, epochs in found.items():
        if len(epochs) > _SHOWN_MAX:
            console.print(f"and {len(epochs) - _SHOWN_MAX} more of {escape(name)}")


def _table(found: dict[str, list[EpochStatus]]) -> Table:
    table = Table("pipeline", "epoch", "size", "state", "waits for")
    for name, epochs in found.items():
        for one in epochs[:_SHOWN_MAX]:
            state = f"[{_COLOURS.get(one.state, 'default')}]{one.state}[/]"
            waits = escape("\n".join(map(_waits, one.waiting)))
            table.add_row(escape(name), str(one.epoch), show_size(one.bytes), state, waits)
    return table


def _waits(one: Waiting) -> str:
    text = f"{one.sink}: {one.reason}" if one.reason else one.sink
    if not one.attempts:
        return text
    when = f", again in {math.ceil(one.retry_seconds)} s" if one.retry_seconds > 0 else ""
    return f"{text} ({one.attempts} {'try' if one.attempts == 1 else 'tries'}{when})"


@app.command("retry")
def retry(
    pipeline: str,
    worker: WorkerOption = None,
    data: DataOption = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Retry delivery now instead of waiting for the next attempt."""
    with CoordinatorClient(worker_to_change(worker, data, yes=yes), _RETRY_SECONDS) as client:
        client.retry(pipeline)
    text = f"retrying delivery of {pipeline}; see penstock epoch list {pipeline}"
    report(text, as_json=as_json, pipeline=pipeline, retrying=True)


@app.command("park")
def park(
    pipeline: str,
    epoch: int,
    sink: Annotated[
        str | None, typer.Option(help="Only for this sink, instead of all that refuse it.", show_default=False)
    ] = None,
    yes: YesOption = False,
    worker: WorkerOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Set aside an epoch that a sink refuses.

    This is final: the sink continues with the next epoch. The rows of the
    parked epoch can be read as the source pipeline:PIPELINE/parked.SINK.
    """
    with CoordinatorClient(worker_to_change(worker, data, yes=yes), _RETRY_SECONDS) as client:
        known = _known(client, pipeline, epoch)
        refusing = {one.sink for one in client.sinks() if one.pipeline == pipeline and one.state == "REFUSED"}
        sinks = [one for one in known.waiting if (one.sink in refusing if sink is None else one.sink == sink)]
        if not sinks:
            raise _nothing_to_park(pipeline, known, sink)
        if not yes:
            typer.echo("\n".join(_waits(one) for one in sinks), err=as_json)
            names = " and ".join(one.sink for one in sinks)
            what = f"epoch {epoch} of {pipeline} ({show_size(known.bytes)} in all ports)"
            typer.confirm(f"Park {what}? This is final: {names} will never get it.", abort=True, err=as_json)
        for one in sinks:  # each by name, so that only what was shown is parked
            client.park(pipeline, epoch, one.sink)
    if as_json:
        kept = {one.sink: f"pipeline:{pipeline}/parked.{one.sink}" for one in sinks}
        typer.echo(json.dumps({"pipeline": pipeline, "epoch": epoch, "parked": kept}))
        return
    for one in sinks:
        typer.echo(f"parked epoch {epoch} of {pipeline}; its rows for {one.sink} can be read as a source")
        typer.echo(
            f"  pipeline:{pipeline}/parked.{one.sink}   (penstock segment cat pipeline/{pipeline}/parked.{one.sink})"
        )


def _known(client: CoordinatorClient, pipeline: str, epoch: int) -> EpochStatus:
    epochs = client.epochs(pipeline)
    for one in epochs:
        if one.epoch == epoch:
            return one
    waiting = ", ".join(str(one.epoch) for one in epochs[:_SHOWN_MAX]) or "none"
    raise PipelineError(f"epoch {epoch} of {pipeline} waits for no sink", f"Epochs that wait: {waiting}.")


def _nothing_to_park(pipeline: str, epoch: EpochStatus, sink: str | None) -> PipelineError:
    waiting = ", ".join(one.sink for one in epoch.waiting)
    if not waiting:
        return PipelineError(
            f"epoch {epoch.epoch} of {pipeline} waits for the epochs before it",
            f"Epochs are delivered, and parked, in their order: penstock epoch list {pipeline}",
        )
    if sink is not None:
        return PipelineError(
            f"epoch {epoch.epoch} of {pipeline} does not wait for {sink!r}", f"It waits for: {waiting}."
        )
    return PipelineError(
        f"no sink refuses epoch {epoch.epoch} of {pipeline}", f"Name one with --sink; it waits for: {waiting}."
    )
