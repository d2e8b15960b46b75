"""`penstock segment seal`: let a segment take no more bytes."""

import typer

from penstock.cli.connect import DataOption, WorkerOption, YesOption, segment_client, worker_to_change


def seal(name: str, worker: WorkerOption = None, data: DataOption = None, yes: YesOption = False) -> None:
    """Let a segment take no more bytes."""
    with segment_client(worker_to_change(worker, data, yes=yes)) as client:
        client.seal(name)
    typer.echo(f"sealed {name}")
