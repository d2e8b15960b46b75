"""`penstock dead-letters`: events that could not be processed, or arrived too late."""

import json
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

import msgspec
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from penstock.cli.connect import DataOption, JsonOption, WorkerOption, YesOption, worker_to_change, worker_to_read
from penstock.cli.texts import is_plain, printable, shortened, show_time
from penstock.client.coordinator import CoordinatorClient, DeadLetter, DeadLetterPort
from penstock.core.errors import PipelineError
from penstock.core.sizes import show_size

_WIDTH = 160
"""For output to a file or a pipe, so that no column is cut short."""

_RETRY_SECONDS = 30.0
"""How long to wait for a worker that is about to start: an interrupted replay can then report how it ended."""

_DUMP_BYTES = 16
"""Bytes per line of a hex dump."""

_REASON_LISTED = 200
"""Characters of a reason in a list; `show` prints all of it."""

Port = Literal["err", "late"]
PortOption = Annotated[Port, typer.Option("--port", help="err: could not be processed; late: arrived too late.")]

app = typer.Typer(help="Inspect and replay events that arrived late or could not be processed.", no_args_is_help=True)


def register(commands: typer.Typer) -> None:
    commands.add_typer(app, name="dead-letters")


@app.command("list")
def list_dead_letters(
    pipeline: str,
    port: Annotated[Port | None, typer.Option("--port", help="Only this port.", show_default=False)] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1000, help="How many to list of each port.")] = 20,
    oldest: Annotated[bool, typer.Option("--oldest", help="List the oldest instead of the newest.")] = False,
    worker: WorkerOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """List dead letters: the position of each, its event, and the reason."""
    with CoordinatorClient(worker_to_read(worker, data), _RETRY_SECONDS) as client:
        found = client.dead_letters(pipeline, port, limit=limit, oldest=oldest)
    if as_json:
        typer.echo(json.dumps([_as_json(one) for one in found.dead_letters]))
        return
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _WIDTH
    console.print(_table(found.dead_letters) if found.dead_letters else f"{escape(pipeline)} has no dead letters")
    for line in map(_waiting, found.ports):
        if line:
            console.print(line)


def _as_json(dead_letter: DeadLetter) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(dead_letter)
    del found["value"]
    return found


def _table(dead_letters: Sequence[DeadLetter]) -> Table:
    table = Table("port", "offset", "event time", "event", "size", "replayed", "reason")
    for one in dead_letters:
        event = f"{one.segment}@{one.offset}" if one.segment is not None else one.source
        replayed = "yes" if one.replayed else ""
        reason = shortened(printable(_reason(one)), _REASON_LISTED)
        columns = (show_time(one.event_time), escape(printable(event)), show_size(one.size), replayed, escape(reason))
        table.add_row(one.port, str(one.at), *columns)
    return table


def _reason(dead_letter: DeadLetter) -> str:
    if dead_letter.behind_us is None:
        return dead_letter.reason
    return f"{dead_letter.reason} (by {dead_letter.behind_us / 1e6:,.3f} s)".lstrip()


def _waiting(port: DeadLetterPort) -> str:
    size = port.end - max(port.replayed, port.start)
    return f"{port.port}: {show_size(size)} not replayed yet" if size > 0 else ""


@app.command("show")
def show(
    pipeline: str,
    offset: Annotated[int, typer.Argument(help="Its offset, as penstock dead-letters list shows it.")],
    port: PortOption = "err",
    worker: WorkerOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one dead letter with its bytes: as text if they are UTF-8, else as a hex dump; base64 in JSON."""
    with CoordinatorClient(worker_to_read(worker, data), _RETRY_SECONDS) as client:
        found = client.dead_letter(pipeline, port, offset)
    if as_json:
        typer.echo(json.dumps(msgspec.to_builtins(found)))
        return
    for name, text in _lines(found):
        typer.echo(f"{name + ':':<13}{text}")
    typer.echo("")
    typer.echo("\n".join(shown(found.value or b"")))


def _lines(dead_letter: DeadLetter) -> Iterator[tuple[str, str]]:
    yield "dead letter", f"{dead_letter.port} {dead_letter.at}{' (replayed)' if dead_letter.replayed else ''}"
    yield "reason", printable(_reason(dead_letter))
    if dead_letter.segment is not None:
        yield "event", printable(f"{dead_letter.segment} at {dead_letter.offset}")
    source = f"{dead_letter.source} {dead_letter.stream} ({dead_letter.stream_id}), message {dead_letter.message_id}"
    yield "source", printable(source)
    yield "event time", show_time(dead_letter.event_time) or "none"
    if dead_letter.watermark is not None:
        yield "watermark", show_time(dead_letter.watermark)
    if dead_letter.key:
        yield "key", " ".join(shown(dead_letter.key))
    yield "value", show_size(dead_letter.size)


def shown(data: bytes) -> list[str]:
    """The lines of the text if it is UTF-8 that a terminal can show, else of a hex dump."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return _dump(data)
    return [text] if is_plain(text) else _dump(data)


def _dump(data: bytes) -> list[str]:
    lines = []
    for start in range(0, len(data), _DUMP_BYTES):
        part = data[start : start + _DUMP_BYTES]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{start:08x}  {part.hex(' '):<{3 * _DUMP_BYTES}} {text}")
    return lines


@app.command("replay")
def replay(
    pipeline: str,
    port: PortOption = "err",
    upto: Annotated[
        int | None,
        typer.Option("--upto", help="Replay up to and including this offset. Default: all.", show_default=False),
    ] = None,
    input_: Annotated[
        str | None,
        typer.Option("--input", help="The input to replay into, if several read the source.", show_default=False),
    ] = None,
    worker: WorkerOption = None,
    data: DataOption = None,
    yes: YesOption = False,
) -> None:
    """Send dead letters through the pipeline again, each once.

    Their events go into the next epoch, unchanged except for their
    position. One that fails again, or is late again, becomes a new dead
    letter.
    """
    with CoordinatorClient(
        worker_to_change(worker, data, yes=yes, retry_seconds=_RETRY_SECONDS), _RETRY_SECONDS
    ) as client:
        (about,) = client.dead_letters(pipeline, port).ports
        end = about.end if upto is None else client.dead_letter(pipeline, port, upto).end
        if end <= max(about.replayed, about.start):
            raise _nothing(pipeline, about, upto)
        found = client.replay(pipeline, port, about.replayed, end, input=input_)
    dead_letters = "1 dead letter" if found.count == 1 else f"{found.count:,} dead letters"
    typer.echo(f"replayed {dead_letters} of {pipeline}/{port}: they arrive with its next epoch")
    if found.left_out:
        typer.echo(f"{found.left_out:,} left out: no input of {pipeline} reads their source")


def _nothing(pipeline: str, port: DeadLetterPort, upto: int | None) -> PipelineError:
    hint = f"List them: penstock dead-letters list {pipeline} --port {port.port}"
    if upto is not None:
        return PipelineError(f"dead letter {upto} of {pipeline}/{port.port} has already been replayed", hint)
    if port.end == port.start:
        return PipelineError(f"{pipeline}/{port.port} has no dead letters", hint)
    return PipelineError(f"all dead letters of {pipeline}/{port.port} have already been replayed", hint)
