"""`penstock segment create`: make a segment."""

from typing import Annotated

import typer

from penstock.cli.connect import DataOption, WorkerOption, YesOption, segment_client, worker_to_change
from penstock.cli.sizes import parse_size


def create(
    name: str,
    quota: Annotated[
        int | None,
        typer.Option(parser=parse_size, metavar="SIZE", help="Bytes it may hold before appends are refused."),
    ] = None,
    worker: WorkerOption = None,
    data: DataOption = None,
    yes: YesOption = False,
) -> None:
    """Make a segment."""
    with segment_client(worker_to_change(worker, data, yes=yes)) as client:
        client.create(name, quota_bytes=quota)
    typer.echo(f"created {name}")
