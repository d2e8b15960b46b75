"""`penstock segment seal`: let a segment take no more bytes."""

import typer

from penstock.cli.connect import DEFAULT_WORKER, DataOption, WorkerOption, segment_client


def seal(name: str, worker: WorkerOption = DEFAULT_WORKER, data: DataOption = None) -> None:
    """Let a segment take no more bytes."""
    with segment_client(worker, data) as client:
        client.seal(name)
    typer.echo(f"sealed {name}")
