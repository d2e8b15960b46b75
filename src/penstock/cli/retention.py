"""Retention on the command line: complete, keep, 7d, 10GiB."""

import re

import typer

from penstock.cli.sizes import parse_size
from penstock.coordinator.machine.retention import Retention

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def parse_retention(text: str | Retention) -> Retention:
    """For a typer option."""
    if isinstance(text, Retention):
        return text
    match text.strip().lower():
        case "complete":
            return Retention("complete")
        case "keep":
            return Retention("keep")
        case duration if found := re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhd])", duration):
            return Retention("time", int(float(found[1]) * _SECONDS[found[2]] * 1_000_000))
        case size:
            return Retention("size", _size(text, size))


def _size(text: str, size: str) -> int:
    try:
        return parse_size(size)
    except typer.BadParameter:
        raise typer.BadParameter(f"{text!r}: write complete, keep, a time like 7d, or a size like 10GiB") from None
