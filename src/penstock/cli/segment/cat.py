"""`penstock segment cat`: print a segment's events."""

import sys
from typing import Annotated

import typer

from penstock.cli.connect import DEFAULT_WORKER, DataOption, WorkerOption, segment_client
from penstock.core.errors import RequestError

_READ_BYTES = 1 << 20


def cat(
    name: str,
    offset: Annotated[int | None, typer.Option(min=0, help="Where to begin (default: at the segment's start).")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more, until Ctrl-C.")] = False,
    raw: Annotated[bool, typer.Option("--raw", help="The bytes as they are stored, headers and all.")] = False,
    worker: WorkerOption = DEFAULT_WORKER,
    data: DataOption = None,
) -> None:
    """Print a segment's events, one a line."""
    out = sys.stdout.buffer
    with segment_client(worker, data) as client:
        info = client.info(name)
        start = info.start if offset is None else offset
        if start > info.length:
            raise RequestError(f"segment {name!r} ends at {info.length}, before {start}", "Begin at a lower offset.")
        if raw:
            while True:
                result = client.read(name, start, _READ_BYTES, wait=follow)
                out.write(result.data)
                out.flush()
                start += len(result.data)
                if result.end_of_segment or (result.at_tail and not follow):
                    return
        for event in client.events(name, start, follow=follow):
            out.write(event.data)
            out.write(b"\n")
            if follow:
                out.flush()
