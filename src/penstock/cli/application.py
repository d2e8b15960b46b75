"""`penstock apply`, `stop`, `pause` and `resume`: how operators control an application."""

import json
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from penstock.application.config.loading import load
from penstock.application.config.types import KnownTypes
from penstock.cli.connect import DataOption, JsonOption, WorkerOption, YesOption, report, worker_to_change
from penstock.cli.former_pipelines import PruneOption, settle_former
from penstock.cli.open_windows import staying_open
from penstock.cli.waiting import waiting
from penstock.client.coordinator.client import ApplicationClient
from penstock.core.errors import RequestError
from penstock.core.logs import LogLevel

_LOOK_SECONDS = 0.2
_RETRY_SECONDS = 10.0
"""How long to wait for a worker that is restarting."""

StreamOption = Annotated[
    str | None,
    typer.Option("--stream", metavar="S", help="Only this stream of the connector: its name, or # and its id."),
]
IdArgument = Annotated[str, typer.Argument(metavar="ID", help="A connector; with instances, one of them: ID.eu")]


_DONE = {
    "stopped": "stopped",
    "started": "started",
    "restarted": "restarted",
    "configured": "reconfigured",
    "relinked": "relinked",
    "pipelines_stopped": "pipelines to stop",
    "pipelines_started": "pipelines to start",
    "pipelines_restarted": "pipelines to restart",
}


def register(app: typer.Typer) -> None:
    app.command("apply")(apply)
    app.command("stop")(stop)
    app.command("pause")(pause)
    app.command("log-level")(log_level)
    app.command("resume")(resume)


def apply(
    file: Annotated[Path, typer.Argument(help="The application: a YAML file.")],
    worker: WorkerOption = None,
    data: DataOption = None,
    yes: YesOption = False,
    prune: PruneOption = False,
    as_json: JsonOption = False,
) -> None:
    """Deploy a changed application: start, stop and relink what differs, and leave the rest running.

    Nothing changes unless the whole file is valid. A running penstock run
    restarts the pipelines that changed. Pipelines that are no longer in the
    file are stopped; on a terminal you are asked whether to drop them.
    """
    if file.suffix.lower() not in (".yaml", ".yml"):
        raise RequestError(
            f"penstock apply takes a .yaml file, not {file}", f"Start a changed Python file again: penstock run {file}"
        )
    loaded = load(file, KnownTypes(), os.environ, leaves_unset=True)
    console = Console(stderr=True, highlight=False)
    for note in loaded.notes:
        console.print(f"note: {note}", markup=False, soft_wrap=True)
    address = worker_to_change(worker, data, yes=yes, retry_seconds=_RETRY_SECONDS)
    with waiting(f"deploying {file.name} …"), ApplicationClient(address, _RETRY_SECONDS) as client:
        before = client.application().deployment.pipelines
        done = client.apply(loaded.deployment, file.name)
    if as_json:
        typer.echo(json.dumps(done))
    else:
        _report(done)
    settle_former(address, before, prune=prune, ask=not yes and not as_json, report=partial(typer.echo, err=as_json))


def _report(answer: dict[str, Any]) -> None:
    typer.echo(f"revision {answer['revision']}")
    lines = [f"{text}: {', '.join(answer[key])}" for key, text in _DONE.items() if answer.get(key)]
    typer.echo("\n".join(lines or ["nothing changed"]))
    for sentence in answer.get("notes", ()):
        typer.echo(sentence)


def stop(
    worker: WorkerOption = None,
    data: DataOption = None,
    yes: YesOption = False,
    wait: Annotated[
        bool,
        typer.Option(
            help="Wait until everything is delivered. --no-wait returns at once; the application still drains."
        ),
    ] = True,
    as_json: JsonOption = False,
) -> None:
    """Stop the application: stop reading, process and deliver everything that was read, then close.

    Nothing is lost: penstock apply or penstock run continues from there.
    Ctrl-C ends the waiting, not the drain.
    """
    with _client(worker, data, yes=yes) as client:
        client.drain()
        state = _wait(client, report=partial(typer.echo, err=as_json)) if wait else "draining"
    if as_json:
        typer.echo(json.dumps({"state": state}))


def _wait(client: ApplicationClient, report: Callable[[str], None]) -> str:
    """Print what the drain waits for, whenever that changes. Returns the state in which the application is then."""
    console = Console(stderr=True, highlight=False)
    shown: Sequence[str] = []
    while (found := client.application()).state == "draining":
        if found.waits_for != shown:
            shown = found.waits_for
            for sentence in shown:
                console.print(f"waiting: {sentence}", markup=False, soft_wrap=True)
        time.sleep(_LOOK_SECONDS)
    if found.state == "drained":
        report("everything is delivered: the application is stopped")
    else:
        report(f"the application was started again in the meantime (revision {found.revision})")
    for sentence in staying_open(client.status().pipelines):
        report(sentence)
    return found.state


def log_level(
    level: Annotated[LogLevel, typer.Argument(metavar="debug|info|warning|error")],
    worker: WorkerOption = None,
    data: DataOption = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Change what a running worker logs, until it ends."""
    with _client(worker, data, yes=yes) as client:
        client.set_log_level(level.value)
    report(f"the worker logs at level {level.value}, until it ends", as_json=as_json, level=level.value)


def pause(
    connector: IdArgument,
    stream: StreamOption = None,
    worker: WorkerOption = None,
    data: DataOption = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Pause a connector, or one of its streams, until penstock resume. Restarts and breakers do not end a pause."""
    with _client(worker, data, yes=yes) as client:
        client.pause(connector, _stream(stream))
    report(f"{_named(connector, stream)} is paused", as_json=as_json, connector=connector, stream=stream, paused=True)


def resume(
    connector: IdArgument,
    stream: StreamOption = None,
    worker: WorkerOption = None,
    data: DataOption = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Resume a connector, or one of its streams, after penstock pause."""
    with _client(worker, data, yes=yes) as client:
        client.resume(connector, _stream(stream))
    report(f"{_named(connector, stream)} continues", as_json=as_json, connector=connector, stream=stream, paused=False)


def _named(connector: str, stream: str | None) -> str:
    return connector if stream is None else f"{stream} of {connector}"


def _client(worker: str | None, data: Path | None, *, yes: bool) -> ApplicationClient:
    return ApplicationClient(worker_to_change(worker, data, yes=yes, retry_seconds=_RETRY_SECONDS), _RETRY_SECONDS)


def _stream(text: str | None) -> str | int | None:
    """`#12` is an id; anything else a name."""
    is_id = text is not None and text.startswith("#") and text[1:].isascii() and text[1:].isdigit()
    return int(text[1:]) if text is not None and is_id else text
