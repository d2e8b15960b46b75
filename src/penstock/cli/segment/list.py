"""`penstock segment list`: which segments there are."""

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from penstock.cli.connect import DataOption, JsonOption, WorkerOption, get_json, worker_to_read
from penstock.cli.sizes import show_size


def list_segments(
    prefix: str = typer.Argument("", help="Only names that begin like this."),
    worker: WorkerOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """List segments, by name."""
    found = list(segments_of(worker_to_read(worker, data), prefix))
    if as_json:
        typer.echo(json.dumps(found))
        return
    table = Table("segment", "start", "end", "size", "writers", "state")
    for segment in found:
        size = show_size(segment["length"] - segment["start"])
        row = (segment["start"], segment["length"], size, segment["writers"], state_of(segment))
        table.add_row(escape(segment["name"]), *map(str, row))
    Console().print(table if found else "no segments")


def state_of(segment: dict[str, Any]) -> str:
    if segment["damage"]:
        return "[red]damaged[/]"
    return "sealed" if segment["sealed"] else "open"


def segments_of(address: str, prefix: str = "") -> Iterator[dict[str, Any]]:
    """All of them, a page at a time."""
    after, more = "", True
    while more:
        page = get_json(address, "/segments?" + urlencode({"prefix": prefix, "after": after}))
        yield from page["segments"]
        more = page["more"]
        after = page["segments"][-1]["name"] if more else ""
