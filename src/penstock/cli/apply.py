"""`penstock apply`: a changed file becomes what runs."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from penstock.application.config.loading import load
from penstock.application.config.types import KnownTypes
from penstock.cli.connect import DataOption, WorkerOption, YesOption, worker_to_change
from penstock.client.coordinator.application import ApplicationClient
from penstock.core.errors import RequestError

_RETRY_SECONDS = 10.0
"""For a worker that is just being started again."""

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


def apply(
    file: Annotated[Path, typer.Argument(help="The application: a YAML file.")],
    worker: WorkerOption = None,
    data: DataOption = None,
    yes: YesOption = False,
) -> None:
    """Deploy a changed application: start, stop and relink what differs, and leave the rest running.

    Nothing changes unless the whole file is valid. A running penstock run restarts the pipelines that changed.
    """
    if file.suffix.lower() not in (".yaml", ".yml"):
        raise RequestError(
            f"penstock apply takes a .yaml file, not {file}", f"Start a changed Python file again: penstock run {file}"
        )
    loaded = load(file, KnownTypes(), os.environ)
    console = Console(stderr=True, highlight=False)
    for note in loaded.notes:
        console.print(f"note: {note}", markup=False, soft_wrap=True)
    with ApplicationClient(
        worker_to_change(worker, data, yes=yes, retry_seconds=_RETRY_SECONDS), _RETRY_SECONDS
    ) as client:
        _report(client.apply(loaded.deployment, file.name))


def _report(answer: dict[str, Any]) -> None:
    typer.echo(f"revision {answer['revision']}")
    lines = [f"{text}: {', '.join(answer[key])}" for key, text in _DONE.items() if answer.get(key)]
    typer.echo("\n".join(lines or ["nothing changed"]))
    for sentence in answer.get("notes", ()):
        typer.echo(sentence)
