"""`penstock segment verify`: read every checksum on the disk."""

from pathlib import Path
from typing import Annotated

import typer


def verify(
    data: Annotated[Path, typer.Option(metavar="DIR", help="The worker's data directory.")] = Path("penstock-data"),
) -> None:
    """Read every checksum; exit with 1 if one does not hold."""
    from penstock.store.verify import verify as run

    typer.echo(run)
