"""`penstock segment info`: one segment, whole."""

import json
from urllib.parse import urlencode

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from penstock.cli.connect import DataOption, JsonOption, WorkerOption, get_json, worker_to_read
from penstock.cli.segment.list import state_of
from penstock.cli.segment.outputs import missing
from penstock.cli.sizes import show_size


def info(
    name: str,
    worker: WorkerOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one segment: where it begins and ends, its state and attributes."""
    address = worker_to_read(worker, data)
    found = get_json(address, "/segments?" + urlencode({"prefix": name}))["segments"]
    segment = next((s for s in found if s["name"] == name), None)
    if segment is None:
        raise missing(name, get_json(address, "/status"))
    if as_json:
        typer.echo(json.dumps(segment))
        return
    table = Table(show_header=False)
    table.add_row("segment", escape(segment["name"]))
    table.add_row("state", state_of(segment))
    if segment["damage"]:
        table.add_row("damage", escape(segment["damage"]))
    table.add_row("start", str(segment["start"]))
    table.add_row("end", str(segment["length"]))
    table.add_row("size", show_size(segment["length"] - segment["start"]))
    table.add_row("writers", str(segment["writers"]))
    for key, value in segment["attributes"].items():
        table.add_row(f"attribute {_key(key)}", str(value))
    Console().print(table)


def _key(key: str) -> str:
    """Our own attributes have names in their 16 bytes, others are numbers."""
    text = bytes.fromhex(key).rstrip(b"\0")
    return text.decode() if text.isascii() and text.decode().isprintable() else key
