"""`penstock dead-letters`: events that could not be processed, arrived too late, or are buried by an operator."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Annotated, Any, Literal

import msgspec
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from penstock.cli.connect import DataOption, JsonOption, WorkerOption, YesOption, worker_to_change, worker_to_read
from penstock.cli.embedded_worker import worker_for_change
from penstock.cli.texts import is_plain, printable, shortened, show_time
from penstock.client.coordinator import CoordinatorClient, DeadLetter, DeadLetterPort, PipelineStatus
from penstock.core.counts import show_count
from penstock.core.errors import Forbidden, PipelineError, RequestError
from penstock.core.sizes import show_size
from penstock.protocol.api.dead_letters import BuriedEvent, BuryDone, DeadLetterList, EventPlace, Replayed
from penstock.protocol.stored.names import Form, Source

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

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="A pipeline, or a source.")]

app = typer.Typer(
    help="Inspect and replay events that arrived late or could not be processed; bury single events.",
    no_args_is_help=True,
)


def register(commands: typer.Typer) -> None:
    commands.add_typer(app, name="dead-letters")


@app.command("list")
def list_dead_letters(
    name: NameArgument,
    port: Annotated[
        Port | None, typer.Option("--port", help="Only this port of a pipeline.", show_default=False)
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1000, help="How many to list of each port.")] = 20,
    oldest: Annotated[bool, typer.Option("--oldest", help="List the oldest instead of the newest.")] = False,
    worker: WorkerOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """List dead letters: the position of each, its event, and the reason.

    Those of a pipeline are listed with those of its sources: what could not
    become an event at all.
    """
    with CoordinatorClient(worker_to_read(worker, data), _RETRY_SECONDS) as client:
        pipeline = _pipeline(client, name)
        found, own = DeadLetterList([], []), dict[str, DeadLetterList]()
        if pipeline is None:
            with _or_not_found(name):
                own = {name: client.source_dead_letters(name, limit=limit, oldest=oldest)}
        else:
            found = client.dead_letters(name, port, limit=limit, oldest=oldest)
        for source in _connectors(pipeline) if pipeline is not None and port is None else ():
            with suppress(RequestError):  # it may not exist yet
                own[source] = client.source_dead_letters(source, limit=limit, oldest=oldest)
    if as_json:
        listed = [_as_json(one) for one in found.dead_letters]
        of_sources = [
            _as_json(one) | {"of_source": source} for source, list_ in own.items() for one in list_.dead_letters
        ]
        typer.echo(json.dumps(listed + of_sources))
        return
    console = _console()
    if pipeline is not None:
        console.print(_table(found.dead_letters) if found.dead_letters else f"{escape(name)} has no dead letters")
    for line in map(_waiting, found.ports):
        if line:
            console.print(line)
    for source, list_ in own.items():
        if list_.dead_letters or pipeline is None:
            console.print(_source_table(source, list_.dead_letters))


@contextmanager
def _or_not_found(name: str) -> Iterator[None]:
    try:
        yield
    except Forbidden:
        raise
    except RequestError:
        raise RequestError(f"{name!r} is neither a pipeline nor a source", "List them: penstock status") from None


def _console() -> Console:
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _WIDTH
    return console


def _pipeline(client: CoordinatorClient, name: str) -> PipelineStatus | None:
    return next((one for one in client.pipelines() if one.name == name), None)


def _connectors(pipeline: PipelineStatus) -> list[str]:
    """Its sources that may have dead letters of their own."""
    sources = dict.fromkeys(source for sources in pipeline.inputs.values() for source in sources)
    return [source for source in sources if Source.parse(source).form is Form.CONNECTOR]


def _source_table(source: str, dead_letters: Sequence[DeadLetter]) -> Table | str:
    if not dead_letters:
        return f"source {escape(printable(source))} has no dead letters"
    title = f"source {printable(source)}: never became events"
    table = Table("offset", "stored", "stream", "message", "size", "reason", title=title, title_justify="left")
    for one in dead_letters:
        reason = shortened(printable(one.reason), _REASON_LISTED)
        message = str(one.message_id) if one.message_id else ""
        stored = show_time(one.event_time)
        table.add_row(str(one.at), stored, escape(printable(one.stream)), message, show_size(one.size), escape(reason))
    return table


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
    return f"{port.port}: {show_size(port.waiting)} not replayed yet" if port.waiting else ""


@app.command("show")
def show(
    name: NameArgument,
    offset: Annotated[int, typer.Argument(help="Its offset, as penstock dead-letters list shows it.")],
    port: PortOption = "err",
    worker: WorkerOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one dead letter with its bytes: as text if they are UTF-8, else as a hex dump; base64 in JSON."""
    with CoordinatorClient(worker_to_read(worker, data), _RETRY_SECONDS) as client:
        if _pipeline(client, name) is not None:
            found = client.dead_letter(name, port, offset)
        else:
            found = client.source_dead_letter(name, offset)
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
    at: Annotated[
        list[int] | None,
        typer.Option("--at", metavar="OFFSET", help="Replay only the one at this offset; may be repeated."),
    ] = None,
    input_: Annotated[
        str | None,
        typer.Option("--input", help="The input to replay into, if several read the source.", show_default=False),
    ] = None,
    worker: WorkerOption = None,
    data: DataOption = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Send dead letters through the pipeline again, each once: all, those up to an offset, or single ones.

    Their events go into the next epoch, unchanged except for their
    position. One that fails again, or is late again, becomes a new dead
    letter.
    """
    if at and upto is not None:
        raise RequestError("--at and --upto exclude each other", "Choose single dead letters, or all up to one.")
    with CoordinatorClient(
        worker_to_change(worker, data, yes=yes, retry_seconds=_RETRY_SECONDS), _RETRY_SECONDS
    ) as client:
        found = (
            _replay_chosen(client, pipeline, port, at, input_)
            if at
            else _replay_upto(client, pipeline, port, upto, input_)
        )
    if as_json:
        typer.echo(json.dumps(msgspec.to_builtins(found)))
        return
    dead_letters = show_count(found.count, "dead letter")
    typer.echo(f"replayed {dead_letters} of {pipeline}/{port}: they arrive with its next epoch")
    if found.left_out:
        typer.echo(f"{found.left_out:,} left out: no input of {pipeline} reads their source")


def _replay_upto(client: CoordinatorClient, pipeline: str, port: str, upto: int | None, input_: str | None) -> Replayed:
    (about,) = client.dead_letters(pipeline, port).ports
    end = about.end if upto is None else client.dead_letter(pipeline, port, upto).end
    if end <= max(about.replayed, about.start) or not about.waiting:
        raise _nothing(pipeline, about, upto)
    return client.replay(pipeline, port, about.replayed, end, input=input_)


def _replay_chosen(
    client: CoordinatorClient, pipeline: str, port: str, at: Sequence[int], input_: str | None
) -> Replayed:
    """The worker would take a choice that is replayed already for the same request, sent again."""
    if all(client.dead_letter(pipeline, port, offset).replayed for offset in at):
        which = f"dead letter {at[0]}" if len(at) == 1 else "each of these dead letters"
        hint = f"List them: penstock dead-letters list {pipeline} --port {port}"
        raise PipelineError(f"{which} of {pipeline}/{port} has already been replayed", hint)
    return client.replay_chosen(pipeline, port, at, input=input_)


def _nothing(pipeline: str, port: DeadLetterPort, upto: int | None) -> PipelineError:
    hint = f"List them: penstock dead-letters list {pipeline} --port {port.port}"
    if upto is not None:
        return PipelineError(f"dead letter {upto} of {pipeline}/{port.port} has already been replayed", hint)
    if port.end == port.start:
        return PipelineError(f"{pipeline}/{port.port} has no dead letters", hint)
    return PipelineError(f"all dead letters of {pipeline}/{port.port} have already been replayed", hint)


@app.command("bury")
def bury(
    pipeline: str,
    at: Annotated[
        list[str],
        typer.Option("--at", metavar="SEGMENT@OFFSET", help="Where the event starts; may be repeated."),
    ],
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; it is part of the dead letter.")] = "",
    undo: Annotated[bool, typer.Option("--undo", help="Let the pipeline read the events again.")] = False,
    worker: WorkerOption = None,
    data: DataOption = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Take single events out of a pipeline's input: each leaves through err, once, and no task reads it.

    For events that make their epoch fail: penstock pipeline bisect finds
    them. Possible until the epoch is committed, and so is --undo.
    """
    places = [EventPlace.parse(one) for one in at]
    with (
        worker_for_change(worker, data, yes=yes) as address,
        CoordinatorClient(address, _RETRY_SECONDS) as client,
    ):
        done = client.bury(pipeline, places, reason, undo=undo)
    if as_json:
        typer.echo(json.dumps(msgspec.to_builtins(done)))
    else:
        report_bury(pipeline, len(places), done, undo=undo)


def report_bury(pipeline: str, asked: int, done: BuryDone, *, undo: bool = False) -> None:
    """`asked`: how many events."""
    what = f"{show_count(done.changed, 'event')} of {pipeline}"
    typer.echo(f"{what} will be read again" if undo else f"buried {what}")
    if done.changed < asked:
        typer.echo(f"{asked - done.changed:,} {'were not buried' if undo else 'were buried already'}")
    if done.waits:
        typer.echo(
            f"it takes effect when {pipeline} is restarted: a penstock run that is running does that automatically"
        )


@app.command("buried")
def buried(pipeline: str, worker: WorkerOption = None, data: DataOption = None, as_json: JsonOption = False) -> None:
    """List the events that are taken out of a pipeline's input, until Spark does not read their epochs again."""
    with CoordinatorClient(worker_to_read(worker, data), _RETRY_SECONDS) as client:
        found = client.buried(pipeline)
    if as_json:
        typer.echo(json.dumps(msgspec.to_builtins(found)))
        return
    _console().print(_buried_table(found) if found else f"no event of {escape(pipeline)} is buried")


def _buried_table(found: Sequence[BuriedEvent]) -> Table:
    table = Table("event", "size", "state", "reason")
    for one in found:
        reason = shortened(printable(one.reason), _REASON_LISTED)
        size = show_size(one.end - one.offset)
        table.add_row(escape(printable(str(one.place))), size, _buried_state(one), escape(reason))
    return table


def _buried_state(one: BuriedEvent) -> str:
    if one.is_committed:
        return "is a dead letter"
    if one.is_undone:
        return "undone with the next start"
    return "left out with the next start" if one.waits else "left out of its epoch"
