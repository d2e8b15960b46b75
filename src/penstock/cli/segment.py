"""`penstock segment`: inspect and change segments."""

import json
import os
import sys
import uuid
from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, BinaryIO
from urllib.parse import urlencode

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.table import Table

from penstock.cli.connect import (
    DataOption,
    JsonOption,
    WorkerOption,
    YesOption,
    get_json,
    report,
    segment_client,
    worker_status,
    worker_to_change,
    worker_to_read,
)
from penstock.cli.texts import parse_size
from penstock.client.credentials import TLS_VARIABLES
from penstock.client.segments import SegmentClient
from penstock.client.segments.failures import SegmentInfo
from penstock.core.errors import NoSuchSegment, RequestError
from penstock.core.sizes import show_size
from penstock.core.types import NO_EPOCH
from penstock.protocol.api.status import WorkerStatus
from penstock.protocol.stored import Kind, StoredEvent, kind_of, parse_event
from penstock.store.files import RealFiles
from penstock.store.verify import VerifyReport
from penstock.store.verify import verify as verify_files

# `penstock segment append`: append lines to a segment, as events.

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
            help="A name for this writer. Run again with the same name and lines, it continues where it stopped."
        ),
    ] = None,
    create: Annotated[bool, typer.Option(help="Create the segment if it does not exist.")] = False,
    worker: WorkerOption = None,
    data: DataOption = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
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
    if as_json:
        typer.echo(json.dumps({"segment": name, "appended": count, "stored_before": stored}))
        return
    skipped = f", {stored} stored before" if stored else ""
    typer.echo(f"appended {count} events to {name}{skipped}")


def _lines() -> Iterator[bytes]:
    """Lines without their ends; one that is too long for an event is an error, not two events."""
    while line := sys.stdin.buffer.readline(_LINE_BYTES_MAX + 1):
        if len(line) > _LINE_BYTES_MAX:
            raise typer.BadParameter(f"a line is longer than {_LINE_BYTES_MAX} bytes")
        yield line.rstrip(b"\r\n")


# `penstock segment create`: create a segment.


def create(
    name: str,
    quota: Annotated[
        int | None,
        typer.Option(parser=parse_size, metavar="SIZE", help="Bytes it may hold before appends are refused."),
    ] = None,
    worker: WorkerOption = None,
    data: DataOption = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Create a segment."""
    with segment_client(worker_to_change(worker, data, yes=yes)) as client:
        client.create(name, quota_bytes=quota)
    report(f"created {name}", as_json=as_json, segment=name, created=True)


# `penstock segment delete`: remove a segment and all its bytes.


def delete(
    name: str,
    yes: YesOption = False,
    worker: WorkerOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove a segment and all its bytes."""
    with segment_client(worker_to_change(worker, data, yes=yes)) as client:
        info = client.info(name)
        if not yes:
            typer.confirm(f"Delete {name} and its {info.length - info.start} bytes?", abort=True, err=as_json)
        client.delete(name)
    report(f"deleted {name}", as_json=as_json, segment=name, deleted=True)


# `penstock segment list`: list segments.


def list_segments(
    prefix: str = typer.Argument("", help="Only names with this prefix."),
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
        after = page["after"]


# Why a pipeline's output does not exist yet, or is still empty.

_PREFIX = "pipeline/"


def missing(segment: str, status: WorkerStatus) -> NoSuchSegment:
    """Why there is no such segment, as far as a worker's /status shows."""
    pipeline, port = _parsed(segment)
    if not pipeline:
        return NoSuchSegment(f"segment {segment!r} not found")
    known = {one.name: one for one in status.pipelines}
    starting = [one.name for one in status.starting]
    if pipeline not in known and pipeline not in starting:
        names = ", ".join(known) or "none"
        return NoSuchSegment(f"segment {segment!r} not found: no pipeline {pipeline!r} is known", f"Known: {names}.")
    outputs = known[pipeline].outputs if pipeline in known else None
    if outputs and port not in outputs:
        hint = f"It has: {', '.join(outputs)}."
        return NoSuchSegment(f"segment {segment!r} not found: {pipeline} has no port {port!r}", hint)
    state = known[pipeline].state if pipeline in known else "STARTING"
    return NoSuchSegment(
        f"{segment} does not exist yet: {pipeline} is {state}, and has committed no epoch", _next(state)
    )


def _next(state: str) -> str:
    """What makes it appear."""
    match state:
        case "STARTING":
            return "penstock run reports when the pipeline is ready; the first epoch creates its output."
        case "RUNNING":
            return "The first epoch creates it: send the pipeline an event."
        case _:
            return "Start the pipeline: penstock run"


def emptiness(segment: str, status: WorkerStatus) -> str:
    """Why an existing output is empty; "" if that is not known."""
    pipeline, _ = _parsed(segment)
    for one in status.pipelines:
        if one.name == pipeline and one.merged == NO_EPOCH:
            return f"{segment} is empty: {pipeline} is {one.state}, and has committed no epoch yet"
    return ""


def _parsed(segment: str) -> tuple[str, str]:
    """Pipeline and port; both empty for segments that are not outputs."""
    name, _, port = segment.removeprefix(_PREFIX).partition("/") if segment.startswith(_PREFIX) else ("", "", "")
    return (name, port) if port else ("", "")


# `penstock segment cat`: print a segment's events.

_READ_BYTES = 1 << 20


def cat(
    name: str,
    offset: Annotated[int | None, typer.Option(min=0, help="Where to start (default: at the segment's start).")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more, until Ctrl-C.")] = False,
    raw: Annotated[bool, typer.Option("--raw", help="Raw bytes as they are stored, including headers.")] = False,
    full: Annotated[
        bool, typer.Option("--full", help="For sources and outputs: JSON with stream, id, time, key.")
    ] = False,
    worker: WorkerOption = None,
    data: DataOption = None,
) -> None:
    """Print a segment's events, one per line; for sources and outputs of pipelines, their values."""
    out = sys.stdout.buffer
    address = worker_to_read(worker, data)
    with segment_client(address) as client:
        info = _info(client, name, address)
        if info.length == 0 and not follow and (why := emptiness(name, worker_status(address))):
            typer.echo(why, err=True)
        start = info.start if offset is None else offset
        if start > info.length:
            raise RequestError(f"segment {name!r} ends at {info.length}, before {start}", "Use a lower offset.")
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
    """Raises NoSuchSegment; for an output that does not exist yet, with the reason."""
    try:
        return client.info(name)
    except NoSuchSegment:
        raise missing(name, worker_status(address)) from None


def _is_stored(name: str) -> bool:
    try:
        return kind_of(name).kind is Kind.STORED
    except RequestError:  # the worker's own
        return False


def _as_json(event: StoredEvent) -> bytes:
    """Bytes that are not valid text are shown as well as possible."""
    fields: dict[str, object] = {"stream_id": event.stream_id, "message_id": event.event_id}
    fields |= {"event_time": event.event_time, "key": event.key.decode(errors="replace"), **event.metadata}
    fields["value"] = event.payload.decode(errors="replace")
    return json.dumps(fields, ensure_ascii=False, default=repr).encode()


def _print_bytes(client: SegmentClient, name: str, start: int, follow: bool, out: BinaryIO) -> None:
    while True:
        result = client.read(name, start, _READ_BYTES, wait=follow)
        out.write(result.data)
        out.flush()
        start += len(result.data)
        if result.end_of_segment or (result.at_tail and not follow):
            return


# `penstock segment info`: show one segment.


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
        raise missing(name, worker_status(address))
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
    """Our own attributes contain names in their 16 bytes, others are numbers."""
    text = bytes.fromhex(key).rstrip(b"\0")
    return text.decode() if text.isascii() and text.decode().isprintable() else key


# `penstock segment seal`: stop accepting appends.


def seal(
    name: str,
    worker: WorkerOption = None,
    data: DataOption = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Seal a segment: it accepts no more appends."""
    with segment_client(worker_to_change(worker, data, yes=yes)) as client:
        client.seal(name)
    report(f"sealed {name}", as_json=as_json, segment=name, sealed=True)


# `penstock segment truncate`: delete a segment's oldest bytes.


def truncate(
    name: str,
    offset: Annotated[int, typer.Argument(min=0, help="The first byte to keep.")],
    worker: WorkerOption = None,
    data: DataOption = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Delete a segment's bytes below an offset, and free their disk space."""
    with segment_client(worker_to_change(worker, data, yes=yes)) as client:
        client.truncate(name, offset)
        start = client.info(name).start
    report(f"{name} now starts at {start}", as_json=as_json, segment=name, start=start)


# `penstock segment verify`: read every checksum on the disk.


def verify(
    data: Annotated[Path, typer.Option(metavar="DIR", help="The worker's data directory.")] = Path("penstock-data"),
    as_json: JsonOption = False,
) -> None:
    """Verify every checksum, also while a worker runs; exit with 1 if one is wrong."""
    journal = data / "journal"
    if not journal.is_dir():
        raise RequestError(f"{data} has no journal", "Name the worker's data directory: --data DIR")
    report = _with_progress(RealFiles(journal, create=False))
    if as_json:
        typer.echo(json.dumps(asdict(report)))
    else:
        print_report(report)
    if not report.is_sound:
        raise typer.Exit(1)


def _with_progress(files: RealFiles) -> VerifyReport:
    columns = (TextColumn("verifying"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=None)
        return verify_files(files, lambda done, total: progress.update(task, completed=done, total=total))


def print_report(report: VerifyReport, *, is_sound: bool | None = None) -> None:
    """`is_sound`: together with what else was verified."""
    console = Console(highlight=False)
    console.print(f"{report.chapters} files, {report.records} records, {show_size(report.bytes_read)} read")
    if report.torn:
        console.print(f"the tail is torn, or being written: {report.torn}; nothing acknowledged is in it")
    for problem in report.problems:
        console.print(f"[bold red]damaged:[/] {escape(str(problem))}", soft_wrap=True)
    if report.is_sound if is_sound is None else is_sound:
        console.print("[green]every checksum matches[/]")


app = typer.Typer(help="Inspect and change segments.", no_args_is_help=True)


def register(commands: typer.Typer) -> None:
    commands.add_typer(app, name="segment")


app.command("list")(list_segments)


@app.callback()
def segment(
    tls_ca: Path | None = typer.Option(None, envvar="PENSTOCK_TLS_CA", help="The worker's certificate authority."),
    tls_cert: Path | None = typer.Option(
        None, envvar="PENSTOCK_TLS_CERT", help="The client's certificate, for mutual TLS."
    ),
    tls_key: Path | None = typer.Option(None, envvar="PENSTOCK_TLS_KEY", help="Its private key."),
) -> None:
    for variable, file in zip(TLS_VARIABLES, (tls_ca, tls_cert, tls_key), strict=True):
        if file is not None:
            os.environ[variable] = str(file)


for _verb in (info, create, append, cat, seal, truncate, delete, verify):
    app.command(_verb.__name__)(_verb)
