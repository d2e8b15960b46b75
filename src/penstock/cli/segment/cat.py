"""`penstock segment cat`: print a segment's events."""

import json
import sys
from typing import Annotated, BinaryIO

import typer

from penstock.cli.connect import DataOption, WorkerOption, get_json, segment_client, worker_to_read
from penstock.cli.segment.outputs import emptiness, missing
from penstock.client.segments import SegmentClient
from penstock.client.segments.results import SegmentInfo
from penstock.core.errors import NoSuchSegment, RequestError
from penstock.protocol.stored import Kind, StoredEvent, kind_of, parse_event

_READ_BYTES = 1 << 20


def cat(
    name: str,
    offset: Annotated[int | None, typer.Option(min=0, help="Where to begin (default: at the segment's start).")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more, until Ctrl-C.")] = False,
    raw: Annotated[bool, typer.Option("--raw", help="The bytes as they are stored, headers and all.")] = False,
    full: Annotated[
        bool, typer.Option("--full", help="Of sources and outputs: JSON with stream, id, time, key.")
    ] = False,
    worker: WorkerOption = None,
    data: DataOption = None,
) -> None:
    """Print a segment's events, one a line; of sources and outputs of pipelines, their values."""
    out = sys.stdout.buffer
    address = worker_to_read(worker, data)
    with segment_client(address) as client:
        info = _info(client, name, address)
        if info.length == 0 and not follow and (why := emptiness(name, get_json(address, "/status"))):
            typer.echo(why, err=True)
        start = info.start if offset is None else offset
        if start > info.length:
            raise RequestError(f"segment {name!r} ends at {info.length}, before {start}", "Begin at a lower offset.")
        if raw:
            _print_bytes(client, name, start, follow, out)
            return
        is_stored = _is_stored(name)
        for event in client.events(name, start, follow=follow):
            stored = parse_event(event.data) if is_stored else None
            if is_stored and stored is None:
                continue  # it only carries marks of streams
            line = event.data if stored is None else _as_json(stored) if full else stored.payload
            out.write(line + b"\n")
            if follow:
                out.flush()


def _info(client: SegmentClient, name: str, address: str) -> SegmentInfo:
    """Raises NoSuchSegment; of an output that is not there yet, with the reason."""
    try:
        return client.info(name)
    except NoSuchSegment:
        raise missing(name, get_json(address, "/status")) from None


def _is_stored(name: str) -> bool:
    try:
        return kind_of(name).kind is Kind.STORED
    except RequestError:  # the worker's own
        return False


def _as_json(event: StoredEvent) -> bytes:
    """Bytes that are no text are shown as well as it goes."""
    told: dict[str, object] = {"stream_id": event.stream_id, "message_id": event.event_id}
    told |= {"event_time": event.event_time, "key": event.key.decode(errors="replace"), **event.metadata}
    told["value"] = event.payload.decode(errors="replace")
    return json.dumps(told, ensure_ascii=False, default=repr).encode()


def _print_bytes(client: SegmentClient, name: str, start: int, follow: bool, out: BinaryIO) -> None:
    while True:
        result = client.read(name, start, _READ_BYTES, wait=follow)
        out.write(result.data)
        out.flush()
        start += len(result.data)
        if result.end_of_segment or (result.at_tail and not follow):
            return
