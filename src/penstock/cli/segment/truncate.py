"""`penstock segment truncate`: give up a segment's oldest bytes."""

from typing import Annotated

import typer

from penstock.cli.connect import DataOption, WorkerOption, YesOption, segment_client, worker_to_change


def truncate(
    name: str,
    offset: Annotated[int, typer.Argument(min=0, help="The first byte to keep.")],
    worker: WorkerOption = None,
    data: DataOption = None,
    yes: YesOption = False,
) -> None:
    """Give up a segment's bytes below an offset; their disk space comes back."""
    with segment_client(worker_to_change(worker, data, yes=yes)) as client:
        client.truncate(name, offset)
        start = client.info(name).start
    typer.echo(f"{name} now begins at {start}")
