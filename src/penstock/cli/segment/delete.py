"""`penstock segment delete`: remove a segment and all its bytes."""

from typing import Annotated

import typer

from penstock.cli.connect import DEFAULT_WORKER, DataOption, WorkerOption, segment_client


def delete(
    name: str,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    worker: WorkerOption = DEFAULT_WORKER,
    data: DataOption = None,
) -> None:
    """Remove a segment and all its bytes."""
    with segment_client(worker, data) as client:
        info = client.info(name)
        if not yes:
            typer.confirm(f"Delete {name} and its {info.length - info.start} bytes?", abort=True)
        client.delete(name)
    typer.echo(f"deleted {name}")
