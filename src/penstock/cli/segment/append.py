"""`penstock segment append`: put lines into a segment, as events."""

import sys
import uuid
from collections.abc import Iterator
from itertools import islice
from typing import Annotated

import typer

from penstock.cli.connect import DataOption, WorkerOption, YesOption, segment_client, worker_to_change

_LINE_BYTES_MAX = 1 << 20
_WRITERS = uuid.UUID("7d0b0b0c-51a4-4f5e-9a29-8d3b1c1a6d11")


def append(
    name: str,
    events: Annotated[
        list[str] | None, typer.Argument(help="The events; without any, lines from standard input.")
    ] = None,
    writer: Annotated[
        str | None,
        typer.Option(
            help="A name for this writer. Run again with the same name and the same lines, it goes on where it was."
        ),
    ] = None,
    create: Annotated[bool, typer.Option(help="Make the segment if it is not there.")] = False,
    worker: WorkerOption = None,
    data: DataOption = None,
    yes: YesOption = False,
) -> None:
    """Append events, and wait until they are durable."""
    lines = iter([e.encode() for e in events]) if events else _lines()
    writer_id = uuid.uuid5(_WRITERS, writer).bytes if writer else uuid.uuid4().bytes
    with segment_client(worker_to_change(worker, data, yes=yes)) as client:
        if create:
            client.create(name, exist_ok=True)
        with client.appender(name, writer_id=writer_id) as appender:
            stored = max(appender.last_number or 0, 0)
            count = 0
            for line in islice(lines, stored, None):
                appender.append(line)
                count += 1
    skipped = f", {stored} stored before" if stored else ""
    typer.echo(f"appended {count} events to {name}{skipped}")


def _lines() -> Iterator[bytes]:
    """Lines without their ends; one that is too long for an event is an error, not two events."""
    while line := sys.stdin.buffer.readline(_LINE_BYTES_MAX + 1):
        if len(line) > _LINE_BYTES_MAX:
            raise typer.BadParameter(f"a line is longer than {_LINE_BYTES_MAX} bytes")
        yield line.rstrip(b"\r\n")
