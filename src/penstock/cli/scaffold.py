"""`penstock init` and `penstock new`: projects to start from."""

import json
import keyword
import re
from collections.abc import Mapping
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from string import Template
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from penstock import __version__
from penstock.cli.connect import JsonOption
from penstock.cli.example_apps import example_app, example_apps
from penstock.connectors.registry import CONNECTORS
from penstock.core.errors import RequestError

APP = """\
# Rooms that are too warm: readings come in over TCP, one JSON document per line; those that are too warm go to files.
# Options of connectors: penstock connectors TYPE. For your editor: penstock schema > penstock.schema.json
# yaml-language-server: $schema=penstock.schema.json

connector:
  - id: readings
    type: tcp-server
    config:
      host: 127.0.0.1
      port: ${PORT:-9000}
    codec: json
    schema: room STRING, celsius DOUBLE
    interceptors:
      in:
        - type: split

  - id: warm
    type: file
    config:
      mode: write
      path: warm
    codec: json

pipeline:
  - id: too-warm
    spark: pipeline.py:too_warm
    trigger: 1s

binding:
  id: house
  links:
    connector/readings/out: pipeline/too-warm/in
    pipeline/too-warm/out: connector/warm/in
"""

PIPELINE = '''\
"""The application's pipelines. `readings` has the columns of its schema, and event_time, stream_id, …"""

from pyspark.sql import DataFrame


LIMIT_CELSIUS = 25


def too_warm(readings: DataFrame) -> DataFrame:
    """Keep warm readings. A line that cannot be decoded is not among them: it leaves through the port err."""
    return readings.where(readings.celsius > LIMIT_CELSIUS).select("room", "celsius")
'''

README = """\
# Rooms that are too warm

    penstock check app.yaml
    penstock run app.yaml

and in another terminal:

    echo '{"room": "attic", "celsius": 31.5}' > /dev/tcp/127.0.0.1/9000    # in bash
    cat warm/part-*

A line that is not a valid reading is kept as a dead letter: `penstock dead-letters list too-warm`.
"""

_FILES = {"app.yaml": APP, "pipeline.py": PIPELINE, "README.md": README}


def init(
    folder: Annotated[Path, typer.Argument(metavar="[DIR]", help="Where it is written.")] = Path(),
    example: Annotated[
        str | None, typer.Option("--example", metavar="NAME", help="Write this example instead.")
    ] = None,
    lists: Annotated[bool, typer.Option("--list", help="List the examples, and write nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --list: print JSON, for programs.")] = False,
) -> None:
    """Write a small application that runs: readings over TCP, a function on Spark, files.

    Nothing that is there already is overwritten.
    """
    if as_json and not lists:
        raise RequestError("--json is for --list", "Leave it out: the names of the written files are printed.")
    if lists:
        _list_examples(as_json=as_json)
    elif example is None:
        _write(folder, _FILES, "app.yaml")
    else:
        _write(folder, example_app(example).texts(), f"{example}.yaml")


def _list_examples(*, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps([{"name": each.name, "about": each.about} for each in example_apps()]))
        return
    table = Table("example", "what it does")
    for each in example_apps():
        table.add_row(each.name, escape(each.about))
    Console(highlight=False).print(table)
    typer.echo("Write one: penstock init --example NAME DIR")


def _write(folder: Path, texts: Mapping[str, str], application: str) -> None:
    there = [name for name in texts if (folder / name).exists()]
    if there:
        raise RequestError(
            f"{folder / there[0]} already exists; nothing was written", "Choose a folder without it: penstock init DIR"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
            typer.echo(f"wrote {folder / name}")
    except OSError as error:
        raise RequestError(
            f"{folder}: {error.strerror}", "Choose a folder that can be written: penstock init DIR"
        ) from None
    typer.echo(f"Next: {f'cd {quote(str(folder))} && ' if folder != Path() else ''}penstock run {application}")


# `penstock new connector`: a connector that works, with its test.

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")

_SKELETON = {
    "connector.py.txt": "$module.py",
    "test_connector.py.txt": "test_$module.py",
    "pyproject.toml.txt": "pyproject.toml",
    "README.md.txt": "README.md",
}
"""Files of the skeleton, and their names in the new project."""

app = typer.Typer(help="Create a project for a connector of your own.", no_args_is_help=True)


def register(commands: typer.Typer) -> None:
    commands.command("init")(init)
    commands.add_typer(app, name="new")


@app.callback()
def _group() -> None:
    """Create a project for a connector of your own."""


@app.command("connector")
def connector(
    name: Annotated[str, typer.Argument(help="The connector type, as in `type: my-queue`.")],
    folder: Annotated[Path | None, typer.Option(help="Where to create it. Default: ./NAME.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Create a working connector with its test and its package.

    One file for the connector, one for its conformance test with a real
    peer, and a pyproject.toml by which Penstock finds it once it is
    installed.
    """
    written = write_connector(name, folder or Path(name))
    if as_json:
        typer.echo(json.dumps({"connector": name, "files": [str(path) for path in written]}))
        return
    for path in written:
        typer.echo(f"  {path}")
    place = written[0].parent
    typer.echo(
        f"Try it: cd {quote(str(place))} && pip install -e '.[dev]' && python -m pytest && penstock connectors {name}"
    )


def write_connector(name: str, folder: Path) -> list[Path]:
    """Returns the new files. Raises RequestError for an invalid name, or a folder that is not empty."""
    words = _names(name)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RequestError(f"{folder} already exists", "Choose another place: --folder DIR")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RequestError(f"{folder}: {error.strerror}", "Choose another place: --folder DIR") from None
    written = []
    for source, target in _SKELETON.items():
        path = folder / Template(target).substitute(words)
        text = files("penstock.cli").joinpath("skeleton", source).read_text(encoding="utf-8")
        path.write_text(Template(text).substitute(words), encoding="utf-8")
        written.append(path)
    return written


def _names(name: str) -> dict[str, str]:
    """The names to fill in, by their placeholders in the skeleton."""
    if not _NAME.fullmatch(name):
        raise RequestError(
            f"{name!r} is not a valid name for a type", "Lower-case words and digits with dashes, like my-queue."
        )
    if name in CONNECTORS.names():
        raise RequestError(f"the connector type {name} already exists", f"See: penstock connectors {name}")
    module = name.replace("-", "_")
    if keyword.iskeyword(module) or find_spec(module) is not None:
        raise RequestError(
            f"{module}.py would hide a module of Python's, or an installed package", f"Use my-{name}, for example."
        )
    words = "".join(word.capitalize() for word in name.split("-"))
    return {"name": name, "module": module, "class_name": words, "version": __version__}
