"""`penstock segment create`: make a segment."""

from typing import Annotated

import typer

from penstock.cli.connect import DEFAULT_WORKER, DataOption, WorkerOption, segment_client
from penstock.cli.sizes import parse_size


def create(
    name: str,
    quota: Annotated[
        int | None,
        typer.Option(parser=parse_size, metavar="SIZE", help="Bytes it may hold before appends are refused."),
    ] = None,
    worker: WorkerOption = DEFAULT_WORKER,
    data: DataOption = None,
) -> None:
    """Make a segment."""
    with segment_client(worker, data) as client:
        client.create(name, quota_bytes=quota)
    typer.echo(f"created {name}")
