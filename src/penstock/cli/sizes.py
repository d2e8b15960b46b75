"""Sizes on the command line."""

import typer

from penstock.core import sizes
from penstock.core.errors import RequestError


def parse_size(text: str | int) -> int:
    """Bytes, for a typer option."""
    if isinstance(text, int):
        return text
    try:
        return sizes.parse_size(text)
    except RequestError as error:
        raise typer.BadParameter(f"{error}: {error.hint[0].lower()}{error.hint[1:].rstrip('.')}") from None


def show_size(count: int) -> str:
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
