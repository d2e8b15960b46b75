"""`penstock init`: a small application that runs."""

from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from penstock.core.errors import RequestError

APP = """\
# Rooms that are too warm: readings come in over TCP, one JSON document per line; what is too warm goes to files.
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
"""What the application computes. `readings` has the columns of its schema, and event_time, stream_id, …"""

from pyspark.sql import DataFrame

from penstock import dead_letters

LIMIT_CELSIUS = 25


def too_warm(readings: DataFrame) -> DataFrame:
    """Keep warm readings. Lines that could not be decoded pass through, and leave by the port err."""
    warm = dead_letters.where(readings, readings.celsius > LIMIT_CELSIUS)
    return warm.select("room", "celsius", "letter")
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


def register(app: typer.Typer) -> None:
    app.command("init")(init)


def init(folder: Annotated[Path, typer.Argument(metavar="[DIR]", help="Where it is written.")] = Path()) -> None:
    """Write a small application that runs: readings over TCP, a function on Spark, files.

    Nothing that is there already is overwritten.
    """
    there = [name for name in _FILES if (folder / name).exists()]
    if there:
        raise RequestError(f"{folder / there[0]} is there already", "Give a folder that has none: penstock init DIR")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in _FILES.items():
            (folder / name).write_text(text, encoding="utf-8")
            typer.echo(f"wrote {folder / name}")
    except OSError as error:
        raise RequestError(
            f"{folder}: {error.strerror}", "Give a folder that can be written: penstock init DIR"
        ) from None
    typer.echo(f"Next: {f'cd {quote(str(folder))} && ' if folder != Path() else ''}penstock run app.yaml")
