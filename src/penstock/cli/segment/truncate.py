"""`penstock segment truncate`: give up a segment's oldest bytes."""

from typing import Annotated

import typer

from penstock.cli.connect import DEFAULT_WORKER, DataOption, WorkerOption, segment_client


def truncate(
    name: str,
    offset: Annotated[int, typer.Argument(min=0, help="The first byte to keep.")],
    worker: WorkerOption = DEFAULT_WORKER,
    data: DataOption = None,
) -> None:
    """Give up a segment's bytes below an offset; their disk space comes back."""
    with segment_client(worker, data) as client:
        client.truncate(name, offset)
        start = client.info(name).start
    typer.echo(f"{name} now begins at {start}")
