"""`penstock segment delete`: remove a segment and all its bytes."""

import typer

from penstock.cli.connect import DataOption, WorkerOption, YesOption, segment_client, worker_to_change


def delete(
    name: str,
    yes: YesOption = False,
    worker: WorkerOption = None,
    data: DataOption = None,
) -> None:
    """Remove a segment and all its bytes."""
    with segment_client(worker_to_change(worker, data, yes=yes)) as client:
        info = client.info(name)
        if not yes:
            typer.confirm(f"Delete {name} and its {info.length - info.start} bytes?", abort=True)
        client.delete(name)
    typer.echo(f"deleted {name}")
