"""`penstock pipeline`: list the pipelines that a worker knows, reset, fork, bisect or drop one."""

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from penstock.cli.bisect import bisect
from penstock.cli.connect import DataOption, JsonOption, WorkerOption, YesOption, report, worker_to_read
from penstock.cli.embedded_worker import worker_for_change
from penstock.cli.texts import show_epoch, watermark_table
from penstock.client.coordinator import CoordinatorClient, PipelineStatus
from penstock.core.errors import PipelineError
from penstock.core.sizes import show_size

_WIDTH = 140
"""For output to a file or a pipe, so that no column is cut short."""

_RETRY_SECONDS = 3.0
"""How long to wait for a worker that is about to start: a person is waiting."""

_STOP_FIRST = (
    "Stop it first: press Ctrl-C in its penstock run, or remove it from the application and run penstock apply. Then "
    "reset it, and start it again."
)
_PARTIAL = "--accept-partial resets it anyway. A worker with --retention keep removes no input."

_COLOURS = {"STARTING": "yellow", "RUNNING": "green", "FAILING": "red", "STOPPED": "yellow"}

app = typer.Typer(help="List pipelines; reset, fork, bisect or drop one.", no_args_is_help=True)


def register(commands: typer.Typer) -> None:
    commands.add_typer(app, name="pipeline")


@app.command("list")
def list_pipelines(worker: WorkerOption = None, data: DataOption = None, as_json: JsonOption = False) -> None:
    """List pipelines: state, last epoch planned, committed and complete, and what blocks their watermarks."""
    with CoordinatorClient(worker_to_read(worker, data), _RETRY_SECONDS) as client:
        found = client.pipelines()
    if as_json:
        typer.echo(json.dumps([asdict(one) for one in found]))
        return
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _WIDTH
    console.print(*[_table(found), watermark_table(found)] if found else ["no pipelines"], sep="\n")
    for one in found:
        if one.blocked is not None:
            console.print(f"{escape(one.name)} is {escape(one.blocked)}", soft_wrap=True)


def _table(found: list[PipelineStatus]) -> Table:
    epochs = ("planned", "committed", "complete")
    table = Table("pipeline", "state", "incarnation", "generation", *epochs, "lag")
    for one in found:
        state = f"[{_COLOURS[one.state]}]{one.state}[/]"
        reached = map(show_epoch, (one.planned, one.merged, one.complete))
        table.add_row(
            escape(one.name), state, str(one.incarnation), str(one.generation), *reached, show_size(one.lag_bytes)
        )
    return table


@app.command("reset")
def reset(
    name: str,
    accept_partial: Annotated[
        bool, typer.Option("--accept-partial", help="Even if retention has removed some of its input.")
    ] = False,
    yes: YesOption = False,
    worker: WorkerOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Discard the state of a pipeline, which then starts from scratch.

    Its next start renames the old checkpoint. Output that exists stays;
    what is read again is emitted again.
    """
    with worker_for_change(worker, data, yes=yes) as address, CoordinatorClient(address, _RETRY_SECONDS) as client:
        known = _known(client, name)
        if known.state in ("STARTING", "RUNNING"):
            raise PipelineError(f"{name} is {known.state.lower()}", _STOP_FIRST)
        left = client.stored_input(name)
        typer.echo(f"{show_size(left.stored)} of {show_size(left.total)} of its input is still stored", err=as_json)
        if not left.is_whole and not accept_partial:
            raise PipelineError(
                f"{name} was not reset: retention has removed {show_size(left.total - left.stored)} of its input, and "
                "results that need it would be missing or wrong",
                _PARTIAL,
            )
        if not yes:
            what = f"{name} (last epoch {show_epoch(known.complete)}, {known.state})"
            typer.confirm(f"Discard the state of {what} and start from scratch?", abort=True, err=as_json)
        client.reset(name, accept_partial=accept_partial)
    report(
        f"{name} is reset: its next start renames the old checkpoint and starts from scratch",
        as_json=as_json,
        pipeline=name,
        input_bytes=left.total,
        stored_bytes=left.stored,
    )


@app.command("fork")
def fork(
    old: Annotated[str, typer.Argument(metavar="OLD", help="A pipeline that has committed an epoch.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="A name that no pipeline has.")],
    yes: YesOption = False,
    worker: WorkerOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Register NEW to start where OLD is: after its last committed epoch.

    NEW has no state, outputs or sinks yet. OLD stays as it is. Start NEW
    with penstock run or apply.
    """
    with worker_for_change(worker, data, yes=yes) as address, CoordinatorClient(address, _RETRY_SECONDS) as client:
        known = _known(client, old)
        forked = client.fork(new, old)
    if as_json:
        typer.echo(json.dumps({"pipeline": new, "forked_from": old, "epoch": forked.epoch}))
        return
    typer.echo(f"{new} starts where {old} is: after epoch {show_epoch(forked.epoch)}")
    if known.buffered_events:
        typer.echo(
            f"{old} has buffered {known.buffered_events:,} events to emit them in order: {new} does not get them"
        )
    if known.open_windows or (known.open_windows_wait is not None and not known.buffered_events):
        count = "windows" if known.open_windows is None else f"{known.open_windows} windows"
        typer.echo(f"{old} has {count} open: in {new} they contain only events from here on")
    if known.state in ("STARTING", "RUNNING"):
        typer.echo(f"{old} is {known.state.lower()}, and keeps running: both process new events")
    typer.echo(f"acknowledgements and retention wait for {new} from now on: start it, or penstock pipeline drop {new}")


@app.command("drop")
def drop(
    name: str,
    outputs: Annotated[bool, typer.Option("--outputs", help="Delete its output, too.")] = False,
    yes: YesOption = False,
    worker: WorkerOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Drop a pipeline: it no longer delays acknowledgements or retention."""
    with worker_for_change(worker, data, yes=yes) as address, CoordinatorClient(address, _RETRY_SECONDS) as client:
        known = _known(client, name)
        if not yes:
            what = f"{name} ({known.state}, {show_size(known.lag_bytes)} not read yet)"
            typer.confirm(f"Drop {what}{', with all its output' if outputs else ''}?", abort=True, err=as_json)
        client.drop(name, outputs=outputs)
    report(f"dropped {name}", as_json=as_json, pipeline=name, dropped=True, outputs=outputs)


def _known(client: CoordinatorClient, name: str) -> PipelineStatus:
    for one in client.pipelines():
        if one.name == name:
            return one
    raise PipelineError(f"pipeline {name!r} not found", "List them: penstock pipeline list")


app.command("bisect")(bisect)
