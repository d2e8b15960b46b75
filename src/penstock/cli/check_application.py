"""`penstock check app.yaml`: what would be deployed, or all that is wrong with the file."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from penstock.cli.check_windows import windows_over_connectors
from penstock.cli.texts import printable

if TYPE_CHECKING:
    from penstock.config import Loaded
    from penstock.config.deployment import Deployment, End

_WIDTH = 140
"""Of what goes to a file or a pipe: no column is cut short."""
SUFFIXES = (".yaml", ".yml")
"""Of files that hold an application."""


def check_application(file: Path) -> None:
    """Raises ConfigErrors. Nothing of what stands in a `config` is printed: it may be secret."""
    from penstock.application.known_types import KnownTypes
    from penstock.config import load

    loaded = load(file, KnownTypes(), os.environ)
    console = Console(highlight=False)
    console = console if console.is_terminal else Console(width=_WIDTH, highlight=False)
    for table in _tables(loaded):
        console.print(table)
    for sentence in windows_over_connectors(loaded):
        console.print(escape(printable(sentence)), soft_wrap=True)
    for note in loaded.notes:
        console.print(f"[yellow]note:[/] {escape(printable(note))}", soft_wrap=True)
    console.print(f"[green]{escape(printable(str(file)))} is valid[/]", soft_wrap=True)


def _tables(loaded: "Loaded") -> Iterator[Table]:
    deployment = loaded.deployment
    if deployment.connectors:
        yield _connectors(loaded)
    if deployment.pipelines:
        yield _pipelines(loaded)
    if deployment.links:
        yield _links(deployment)


def _connectors(loaded: "Loaded") -> Table:
    table = Table("connector", "type", "as a source", "as a sink", "codec", "interceptors")
    for name, spec in loaded.deployment.connectors.items():
        can = loaded.capabilities[name]
        linked = {end.port for end in _ends(loaded.deployment) if (end.kind, end.name) == ("connector", name)}
        source = can.source.value if can.source is not None and linked & {"out", "err"} else ""
        sink = can.sink.value if can.sink is not None and "in" in linked else ""
        others = ", ".join(dict.fromkeys(spec.codec_map.values()))
        codecs = [loaded.shown("connector", name, "codec", spec.codec or "")]
        codecs.append(loaded.shown("connector", name, "codec_map", others))
        chain = [f"in: {one.type}" for one in spec.interceptors_in] + [
            f"out: {one.type}" for one in spec.interceptors_out
        ]
        kind = loaded.shown("connector", name, "type", spec.type)
        table.add_row(name, escape(kind), source, sink, escape(", ".join(filter(None, codecs))), ", ".join(chain))
    return table


def _pipelines(loaded: "Loaded") -> Table:
    table = Table("pipeline", "function", "settings")
    for name, spec in loaded.deployment.pipelines.items():
        shown = {key: loaded.shown("pipeline", name, key, _plain(value)) for key, value in spec.settings.items()}
        settings = ", ".join(f"{key}: {value}" for key, value in shown.items())
        table.add_row(name, escape(loaded.shown("pipeline", name, "spark", spec.spark)), escape(settings))
    return table


def _plain(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _links(deployment: "Deployment") -> Table:
    table = Table("from", "to")
    for link in deployment.links:
        table.add_row(_shown(link.source), _shown(link.target))
    return table


def _shown(end: "End") -> str:
    return f"{end.kind}/{end.name}/{end.port}"


def _ends(deployment: "Deployment") -> "Iterator[End]":
    for link in deployment.links:
        yield link.source
        yield link.target
