"""`penstock send`: the lines of a file as a stream, each stored once however often the command is run."""

import json
import math
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from decimal import Decimal, InvalidOperation
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeAlias, cast

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from penstock.cli.connect import (
    DataOption,
    JsonOption,
    WorkerOption,
    YesOption,
    host_of,
    worker_status,
    worker_to_change,
)
from penstock.cli.event_times import parse_event_time
from penstock.cli.worker_access import CookieFileOption, read_cookie
from penstock.client import Message, Source, SourceStream
from penstock.client.coordinator import CoordinatorClient, PipelineStatus
from penstock.client.credentials import tls_context
from penstock.client.source.failures import parse_address, parse_addresses
from penstock.core.errors import LimitExceeded, RequestError, Unavailable
from penstock.protocol.api.status import WorkerStatus
from penstock.protocol.connector import FRAME_SIZE_MAX
from penstock.protocol.connector.frames import EventTimeUnit

# What `penstock send` waits for: pipelines on its source that do not accept events yet, or no longer.

_LOOK_SECONDS = 0.5

_WATCH_SECONDS = 2.0
"""Between two status requests while waiting for acknowledgements."""


def starting_on(status: WorkerStatus, source: str) -> dict[str, str]:
    """By name: the pipelines on a source whose Spark is starting, and the text to print for each."""
    return {
        one.name: f"waiting for {one.name}: Spark is starting{_soon(one.ready_in_seconds)}"
        for one in status.starting
        if source in one.sources
    }


def _soon(seconds: float | None) -> str:
    return "" if seconds is None else f", ready in about {math.ceil(seconds)} s"


def stalled_on(status: WorkerStatus, source: str) -> dict[str, str]:
    """By name: the pipelines on a source that are stopped or blocked, and the text to print for each."""
    return {
        one.name: sentence
        for one in status.pipelines
        if source in {name for sources in one.inputs.values() for name in sources} and (sentence := _stalled(one))
    }


def _stalled(pipeline: PipelineStatus) -> str:
    name, state = pipeline.name, pipeline.state
    if state in ("FAILING", "STOPPED"):
        return f"waiting for {name}: it is {state}; start it with penstock run, or drop it with penstock pipeline drop"
    return f"waiting for {name}, which is {pipeline.blocked}" if pipeline.blocked else ""


def wait_for_start(http: str, source: str, report: Callable[[str], None]) -> None:
    """Wait until no pipeline on the source is starting any more. Lines sent before a pipeline is registered would be
    acknowledged without its result. Returns at once where acknowledgements do not wait for pipelines. Raises
    Unavailable.
    """
    reported: set[str] = set()
    while True:
        status = worker_status(http)
        starting = {} if _acks_at_once(status, source) else starting_on(status, source)
        for name in starting.keys() - reported:
            report(starting[name])
        if not starting:
            _report_unread(status, source, report)
            return
        reported |= starting.keys()
        time.sleep(_LOOK_SECONDS)


def _acks_at_once(status: WorkerStatus, source: str) -> bool:
    return source in status.sources and status.sources[source].ack == "durable"


def _report_unread(status: WorkerStatus, source: str, report: Callable[[str], None]) -> None:
    inputs = [name for one in status.pipelines for sources in one.inputs.values() for name in sources]
    if source not in inputs:
        report(f"no pipeline reads {source}: lines are acknowledged when they are stored")


@contextmanager
def watching(http: str | None, source: str, report: Callable[[str], None]) -> Iterator[None]:
    """Meanwhile, a thread reports what acknowledgements wait for, whenever that changes."""
    over = threading.Event()
    thread = threading.Thread(target=_watch, args=(http, source, report, over), name="what send waits for", daemon=True)
    if http is not None:
        thread.start()
    try:
        yield
    finally:
        over.set()
        if http is not None:
            thread.join()


def _watch(http: str, source: str, report: Callable[[str], None], over: threading.Event) -> None:
    reported: dict[str, str] = {}
    while not over.wait(_WATCH_SECONDS):
        try:
            status = worker_status(http)
        except Unavailable:  # the client itself reports a worker that stays away
            continue
        now = {} if _acks_at_once(status, source) else starting_on(status, source) | stalled_on(status, source)
        for name, sentence in now.items():
            if name not in reported:
                report(sentence)
        reported = now


# The event times of the lines: the time of sending, or a field of each line.

LineTime: TypeAlias = Callable[[bytes, int], int]
"""From a line and its number to its event time, in the source's unit. Raises RequestError that names the line."""

_FIELD = "field="

_UNITS_US = ((10**11, Decimal(1_000_000)), (10**14, Decimal(1000)), (10**17, Decimal(1)))
"""Numbers below the first limit are seconds (up to the year 5138); then ms, µs, and above the last limit ns."""

_TIMES = "A time is ISO 8601, like 2026-01-31T12:00:00Z, or a number since 1970 in s, ms, µs or ns."


_ON_ARRIVAL = 0


def line_times(given: str, unit: EventTimeUnit, *, ingest: bool = False) -> LineTime:
    """`now`, or `field=NAME`. With `ingest` the worker sets the event time of lines without one to their arrival: `now`
    then sends none, since an explicit time would keep windows from closing by the clock. Raises RequestError.
    """
    if given == "now" and ingest:
        return lambda _, __: _ON_ARRIVAL
    if given == "now":
        return lambda _, __: _in_unit(time.time_ns() // 1000, unit)
    if given.startswith(_FIELD) and (name := given.removeprefix(_FIELD)):
        return lambda line, number: _in_unit(_field_us(line, number, name), unit)
    raise RequestError(f"--event-time {given!r} is not valid", "Write now, or field=NAME for a field of JSON lines.")


def _in_unit(us: int, unit: EventTimeUnit) -> int:
    multiplier, divisor = unit.value
    return us * divisor // multiplier


def _field_us(line: bytes, number: int, name: str) -> int:
    try:
        found = json.loads(line)
    except ValueError as error:
        raise _wrong(number, f"is not JSON: {error}", f"--event-time field={name} needs JSON lines.") from None
    if not isinstance(found, dict):
        raise _wrong(number, "is not a JSON object", f"--event-time field={name} needs a JSON object on each line.")
    if name not in found:
        has = f"It has: {', '.join(map(str, found))}." if found else _TIMES
        raise _wrong(number, f"has no field {name!r}", has)
    try:
        return time_us(found[name])
    except RequestError:
        raise _wrong(number, f"has no time in its field {name!r}: {found[name]!r:.100}", _TIMES) from None


def time_us(given: Any) -> int:
    """Microseconds since 1970. Raises RequestError."""
    if isinstance(given, str) and not _is_number(given):
        return parse_event_time(given)
    if isinstance(given, bool) or not isinstance(given, int | float | str):
        raise RequestError(f"{given!r:.100} is not a time")
    if isinstance(given, float) and not math.isfinite(given):
        raise RequestError(f"{given} is not a time")
    number = Decimal(str(given))
    scale = next((scale for limit, scale in _UNITS_US if abs(number) < limit), Decimal("0.001"))
    return math.floor(number * scale)


def _is_number(text: str) -> bool:
    try:
        return Decimal(text).is_finite()
    except InvalidOperation:
        return False


def _wrong(number: int, what: str, hint: str) -> RequestError:
    sent = "nothing was sent" if number == 1 else "the lines before it are sent"
    return RequestError(f"line {number} {what}; {sent}", hint)


_LINE_BYTES_MAX = FRAME_SIZE_MAX - 1024
"""A line is a frame; the rest is for the frame's header."""

_SHOW_LINES = 1000
"""Lines between two updates of the progress bar: an update costs more than a line."""


def register(app: typer.Typer) -> None:
    app.command("send")(send)


def send(
    file: Annotated[
        Path, typer.Argument(exists=True, dir_okay=False, help="The file; each of its lines is a message.")
    ],
    source: Annotated[
        str, typer.Option(help="The source to send as; created at first use unless the worker forbids it.")
    ],
    stream: Annotated[str, typer.Option(help="The stream of that source.")],
    worker: WorkerOption = None,
    data: DataOption = None,
    address: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT,…",
            help="The worker's connector port itself, instead of --worker; several of a cluster are tried in order.",
        ),
    ] = None,
    whole: Annotated[
        bool, typer.Option("--whole", help="The file will not grow: send its last line even without a newline.")
    ] = False,
    event_time: Annotated[
        str,
        typer.Option(
            metavar="now|field=NAME", help="Each line's event time: when it is sent, or a field of it (JSON lines)."
        ),
    ] = "now",
    end: Annotated[
        bool,
        typer.Option(
            "--end", help="Declare the source ended after this file, for good: all its windows close. Implies --whole."
        ),
    ] = False,
    yes: YesOption = False,
    cookie: Annotated[str, typer.Option(envvar="PENSTOCK_COOKIE", help="The worker's cookie, if it has one.")] = "",
    cookie_file: CookieFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send the lines of a file, and wait until they are acknowledged.

    A message's id is its line number, from 1. A second run continues after
    the last line that the worker has stored, also if the file has grown. It
    waits for pipelines on the source that are starting.
    """
    line_times(event_time, EventTimeUnit.MS)  # reports a mistake before any request
    http = worker_to_change(worker, data, yes=yes) if address is None or end else None
    if address is not None and http is not None:
        _check_same_worker(address, http)
    target = address or connector_address(cast("str", http))
    times = line_times(event_time, EventTimeUnit.MS) if http is None else _times(http, source, event_time)
    with _progress() as progress:
        report = partial(progress.console.print, markup=False, highlight=False, soft_wrap=True)
        lines = _Lines(file, times, progress, whole=whole or end)  # lines sent after the end would be late
        lines.check_first()
        if http is not None:
            wait_for_start(http, source, report)
        tls, secret = tls_context(parse_addresses(target)[0].host), read_cookie(cookie, cookie_file)
        sender = Source(target, source=source, program="penstock send", cookie=secret, ssl=tls, on_ack=lines.on_ack)
        lines.stream = sending = sender.stream(stream, lines)
        try:
            with watching(http, source, report):
                sender.run()
        finally:  # after Ctrl-C or an error as well
            progress.stop()
            if as_json:
                typer.echo(json.dumps(_result(sending, lines)))
            else:
                _report(sending, lines)
    if end:
        with CoordinatorClient(cast("str", http)) as client:
            client.end_source(source)
        Console(highlight=False, stderr=as_json).print(f"{source} has ended", markup=False)


def _progress() -> Progress:
    """On a terminal only."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def _times(http: str, source: str, event_time: str) -> LineTime:
    """By the worker's settings for the source's event times."""
    status = worker_status(http)
    settings = status.sources.get(source, status.source_defaults)
    return line_times(event_time, EventTimeUnit[settings.event_time_unit.upper()], ingest=settings.event_time_ingest)


def _check_same_worker(address: str, http: str) -> None:
    """`--end` is final, so it must go to the same worker as the lines. Raises RequestError."""
    port = parse_address(connector_address(http)).port
    if port not in [one.port for one in parse_addresses(address)]:
        raise RequestError(
            f"--address {address} is not the connector port of the worker at {http}",
            "Leave --address out, and name the worker with --worker HOST:PORT or --data DIR.",
        )


def connector_address(http: str) -> str:
    """Where the worker with this HTTP address listens for sources."""
    status = worker_status(http)
    if status.tls and tls_context(host_of(http)) is None:
        raise RequestError("the worker accepts only TLS", "Set PENSTOCK_TLS_CA to its authority's certificate.")
    port = status.ports.get("connector")
    if port is None:
        raise Unavailable(f"the worker at {http} accepts no sources", "Start it with --connector-port.")
    return f"{host_of(http)}:{port}"


class _Lines:
    """The factory: yields the lines after the last stored one. `count` is how many the file has."""

    def __init__(self, path: Path, times: LineTime, progress: Progress, *, whole: bool) -> None:
        self._path = path
        self._times = times
        self._whole = whole
        self.unfinished = False
        self._progress = progress
        self._task = progress.add_task("connecting", total=path.stat().st_size)
        self._size = 0
        self.stream: SourceStream | None = None
        self.count = 0

    def check_first(self) -> None:
        """Raises what sending the first line would raise. If it were found later, an empty stream would stay open and
        block every window over the source.
        """
        with closing(self(None)) as messages:
            next(messages, None)

    def __call__(self, after: int | None) -> Generator[Message, None, None]:
        self._size = self.count = 0
        with self._path.open("rb") as file:
            while line := file.readline(_LINE_BYTES_MAX + 1):
                self.count += 1
                self._size += len(line)
                if len(line) > _LINE_BYTES_MAX:
                    raise LimitExceeded(f"line {self.count} is longer than {_LINE_BYTES_MAX} bytes")
                if not line.endswith(b"\n") and not self._whole:
                    self.count -= 1
                    self.unfinished = True
                    break
                if self.count > (after or 0):
                    yield Message(self.count, payload := line.rstrip(b"\r\n"), self._times(payload, self.count))
                if self.count % _SHOW_LINES == 0:
                    self._show()
        self._show()

    def on_ack(self, _: str, __: int) -> None:
        self._show()

    def _show(self) -> None:
        if self.stream is not None:
            text = f"{self.stream.sent:,} sent, acknowledged up to line {self.stream.acknowledged or 0:,}"
            self._progress.update(self._task, completed=self._size, description=text)


def _result(stream: SourceStream, lines: _Lines) -> dict[str, object]:
    """For programs."""
    return {
        "stream": stream.name,
        "sent": stream.sent,
        "stored_before": stream.first_stored or 0,
        "acknowledged": stream.acknowledged or 0,
        "complete": stream.is_done and not lines.unfinished,
    }


def _report(stream: SourceStream, lines: _Lines) -> None:
    there = stream.first_stored or 0
    console = Console(highlight=False)
    console.print(
        f"{stream.name}: {stream.sent:,} {'line' if stream.sent == 1 else 'lines'} sent, {there:,} stored before, "
        f"acknowledged up to line {stream.acknowledged or 0:,}",
        soft_wrap=True,
    )
    if stream.is_done and lines.count < there:
        console.print(f"the file has only {lines.count:,} lines: is it the same file?", style="yellow", soft_wrap=True)
    if lines.unfinished:
        console.print("the last line has no newline yet: not sent (--whole sends it)", style="yellow", soft_wrap=True)
