"""`penstock pipeline bisect`: finds the events for which a pipeline's function fails, and offers to bury them."""

import base64
import json
import math
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from penstock.cli.connect import DataOption, JsonOption, WorkerOption
from penstock.cli.dead_letters import report_bury, shown
from penstock.cli.embedded_worker import worker_for_change
from penstock.cli.run_setup import (
    ConfOption,
    MasterOption,
    conf_of,
    end_by_sigterm,
    let_workers_import_from,
    print_line,
)
from penstock.cli.texts import printable, shortened, show_time
from penstock.client.coordinator import CoordinatorClient
from penstock.client.coordinator.client import ApplicationClient
from penstock.client.credentials import OWN_DATA
from penstock.core.counts import show_count
from penstock.core.errors import PipelineError, RequestError
from penstock.core.logs import set_up_logging
from penstock.core.sizes import show_size
from penstock.protocol.api.dead_letters import BuryDone, EventPlace
from penstock.protocol.api.pipelines import Range
from penstock.spark.pipelines import Pipeline
from penstock.spark.run.bisection import Failing, Try, failing
from penstock.spark.run.failures import Failure, load_pipelines, ranges_text
from penstock.spark.run.java import check_installed, use_java
from penstock.spark.run.session import LOCAL, check_master, is_cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.spark.run.trial import EpochEvents

_RETRY_SECONDS = 3.0
"""How long to wait for a worker that is about to start: a person is waiting."""

_FOUND_MAX = 10
"""Each event takes about log2(n) trials. Where many more fail, it is the function that has to be changed."""

_VALUE_SHOWN = 200
"""Characters of an event's value."""

_REASON_CHARACTERS_MAX = 400
"""Of an error, as the reason of a dead letter: the worker accepts 500."""

_EXTRA_TRIALS = 3
"""In a search for one event: those of the whole epoch, of the event alone, and of all others."""

_INTERRUPTED = 130

_END_SECONDS = 2.0
"""Between the end of a connection to the JVM and the end of its process."""


def bisect(
    name: Annotated[str, typer.Argument(help="The pipeline whose epoch fails.")],
    file: Annotated[
        Path | None,
        typer.Argument(
            help="The file of penstock run; not needed for a pipeline of the application that is deployed.",
            show_default=False,
        ),
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, max=1000, help="Stop after this many events.")
    ] = _FOUND_MAX,
    bury: Annotated[bool, typer.Option("--bury", help="Bury the events that are found, without asking.")] = False,
    worker: WorkerOption = None,
    data: DataOption = None,
    master: MasterOption = LOCAL,
    conf: ConfOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find the events that make an epoch fail, by running the pipeline's function on halves of it.

    The pipeline's checkpoint, its output and the worker's ledger are not
    touched. Offers to bury the events, so that the pipeline continues without
    them.
    """
    _check_local(master)
    set_up_logging()
    check_installed()
    use_java()
    signal.signal(signal.SIGTERM, end_by_sigterm)
    with worker_for_change(worker, data, yes=False) as address, CoordinatorClient(address, _RETRY_SECONDS) as client:
        events = _events(client, address, name)
        pipeline = _pipeline(name, file, address)
        typer.echo(f"epoch {events.epoch.epoch} of {name} has {show_count(len(events), 'event')}", err=as_json)
        log = tempfile.gettempdir() if worker is not None else str(data or OWN_DATA)
        with _spark(name, master, conf_of(conf or []), Path(log)) as session:
            found, is_over = _search(session, pipeline, address, events, limit)
        singles = _described(address, [one for one in found if one.is_single], events)
        together = [one for one in found if not one.is_single]
        if as_json:
            typer.echo(json.dumps([one.as_json() for one in singles] + [_run_as_json(one, events) for one in together]))
        else:
            _print(singles, together, events)
            _conclude(name, len(found), len(events), limit, is_over=is_over)
        if is_over:
            raise typer.Exit(_INTERRUPTED)
        _offer(client, name, singles, bury=bury, ask=not as_json)


def _check_local(master: str) -> None:
    """On a cluster, a lost executor, or one without access to the worker, would look like an event that fails. A
    trial's checkpoint is in a temporary folder of this machine, too.
    """
    check_master(master)
    if is_cluster(master):
        raise RequestError(
            f"bisect runs the pipeline's function on this machine, and {master} is a Spark cluster",
            "Leave --master out, or write local[N].",
        )


# What is searched.


def _events(client: CoordinatorClient, address: str, name: str) -> "EpochEvents":
    """Raises PipelineError if no epoch is planned that is not committed, or if it has no events."""
    from penstock.spark.run.trial import EpochEvents  # here: other commands need no Spark

    epoch = client.batch(name)
    if epoch.is_committed:
        raise PipelineError(
            f"{name} has no epoch that is planned and not committed: its last one is {epoch.epoch}",
            "Start it first: an epoch that fails stays planned.",
        )
    buried = (one for one in client.buried(name) if not (one.is_committed or one.is_undone))
    left_out = [Range(one.segment, one.offset, one.end) for one in buried]
    events = EpochEvents.read(address, epoch, left_out)
    if not len(events):
        raise PipelineError(
            f"epoch {epoch.epoch} of {name} reads no events: {ranges_text(epoch)}",
            "What fails is in its state, such as windows that the watermark closes.",
        )
    return events


def _pipeline(name: str, file: Path | None, address: str) -> Pipeline:
    """From the file, or from the application that is deployed. Raises RequestError."""
    if file is not None and file.suffix.lower() == ".py":
        return _of_file(name, file)
    from penstock.application.config.loading import load
    from penstock.application.config.types import KnownTypes
    from penstock.application.driver import carry_by_value
    from penstock.application.functions import pipeline_of

    if file is None:
        with ApplicationClient(address, _RETRY_SECONDS) as client:
            deployment = client.application().deployment
    else:
        deployment = load(file, KnownTypes(), os.environ, leaves_unset=True).deployment
    if name not in deployment.pipelines:
        where = "the application that is deployed" if file is None else str(file)
        hint = f"Name its file: penstock pipeline bisect {name} FILE" if file is None else ""
        raise RequestError(f"{where} has no pipeline {name!r}", hint)
    folder = Path(deployment.pipelines[name].spark.rpartition(":")[0]).parent
    let_workers_import_from([folder, *([] if file is None else [file.absolute().parent])])
    pipeline = pipeline_of(deployment, name)
    carry_by_value(pipeline)
    return pipeline


def _of_file(name: str, file: Path) -> Pipeline:
    from penstock.spark.run.runner import carry_by_value

    found = {one.name: one for one in load_pipelines(file)}
    if name not in found:
        raise RequestError(f"pipeline {name!r} not found in {file}", f"It has: {', '.join(found)}.")
    let_workers_import_from([file.absolute().parent])
    carry_by_value([found[name]])
    return found[name]


# The search.


@contextmanager
def _spark(name: str, master: str, conf: dict[str, str], folder: Path) -> Iterator["SparkSession"]:
    from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]

    from penstock.spark.run.driver import spark_driver

    log = folder / "spark-bisect.log"
    print_line(f"starting Spark, log in {log} …")
    with spark_driver(f"penstock: bisect {name}", master, conf, log) as driver:
        try:
            yield driver.session
        except (Py4JError, ConnectionError) as error:
            if isinstance(error, Py4JJavaError):
                raise
            how = driver.ended(_END_SECONDS) or "no longer answers"
            raise RequestError(f"Spark's JVM {how}", f"See {log}. More memory: --conf spark.driver.memory=4g") from None


def _search(
    session: "SparkSession", pipeline: Pipeline, address: str, events: "EpochEvents", limit: int
) -> tuple[list[Failing[Failure]], bool]:
    """What fails, and whether the search was interrupted."""
    from penstock.spark.run.trial import Trials

    found: list[Failing[Failure]] = []
    try:
        with _interrupts() as check, _Screen(len(events), check) as screen:
            trials = Trials(session, pipeline, address, events, check)
            for one in islice(failing(len(events), screen.watched(trials.fails)), limit):
                found.append(one)
                screen.found(events.place(one.start), one)
    except KeyboardInterrupt:
        return found, True
    return found, False


@contextmanager
def _interrupts() -> Iterator[Callable[[], None]]:
    """What is returned raises KeyboardInterrupt after a Ctrl-C. A second one does not wait for that. PySpark's handler
    calls the JVM instead, from wherever this process is at that moment.
    """
    caught: list[int] = []

    def on_signal(number: int, _: object) -> None:
        if caught:
            raise KeyboardInterrupt
        caught.append(number)

    def check() -> None:
        if caught:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, on_signal)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, before)


class _Screen:
    """What is tried: on a terminal a bar, elsewhere a line for each trial. All of it goes to stderr."""

    def __init__(self, count: int, check: Callable[[], None]) -> None:
        """`check` is called after each trial."""
        self._check = check
        self._console = Console(stderr=True, highlight=False)
        self._trials = 0
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=self._console, transient=True)
        self._expected = math.ceil(math.log2(max(2, count))) + _EXTRA_TRIALS
        """Trials for the next event."""
        self._task = self._progress.add_task("", total=self._expected)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._console.is_terminal:
            self._progress.stop()

    def watched(self, attempt: Try[Failure]) -> Try[Failure]:
        def tried(start: int, end: int, but: Sequence[int]) -> Failure | None:
            self._trials += 1
            count = end - start - sum(start <= one < end for one in but)
            what = f"trial {self._trials}: {show_count(count, 'event')}"
            self._progress.update(self._task, description=what)
            failure = attempt(start, end, but)
            self._check()
            self._progress.advance(self._task)
            if not self._console.is_terminal:
                print_line(f"{what}: {'passed' if failure is None else 'failed'}")
            return failure

        return tried

    def found(self, place: EventPlace, one: Failing[Failure]) -> None:
        what = (
            f"found {printable(str(place))}"
            if one.is_single
            else f"found {show_count(one.end - one.start, 'event')} together"
        )
        self._console.print(what, markup=False, soft_wrap=True)
        self._progress.update(self._task, total=self._trials + self._expected)


# What was found.


@dataclass(frozen=True, slots=True)
class _Described:
    """An event that fails alone."""

    place: EventPlace
    source: str
    stream: str
    stream_id: int
    message_id: int
    event_time: int | None
    value: bytes
    failure: Failure

    def lines(self) -> Iterator[str]:
        yield printable(str(self.place))
        time = show_time(self.event_time) or "no event time"
        stream = f"{self.stream or '-'} ({self.stream_id})"
        yield f"  {printable(self.source)}, stream {printable(stream)}, message {self.message_id}, {time}"
        value = shortened(printable(" ".join(shown(self.value[: 4 * _VALUE_SHOWN]))), _VALUE_SHOWN)
        yield f"  {show_size(len(self.value))}: {value}"
        yield from _indented(self.failure.text)

    def as_json(self) -> dict[str, Any]:
        return {
            "segment": self.place.segment,
            "offset": self.place.offset,
            "source": self.source,
            "stream": self.stream,
            "stream_id": self.stream_id,
            "message_id": self.message_id,
            "event_time": self.event_time,
            "value": base64.b64encode(self.value).decode(),
            "error": self.failure.text,
        }


def _described(address: str, found: Sequence[Failing[Failure]], events: "EpochEvents") -> list[_Described]:
    if not found:
        return []
    import pyarrow as pa

    from penstock.spark.python_worker import link
    from penstock.spark.source.originals import originals

    places = [events.place(one.start) for one in found]
    table = pa.table(
        {"segment": [one.segment for one in places], "offset": pa.array([one.offset for one in places], pa.int64())}
    )
    rows = originals(address, lambda there: link(there, None, None, None), table)
    rows = rows.set_column(rows.schema.get_field_index("event_time"), "event_time", rows["event_time"].cast(pa.int64()))
    return [
        _Described(
            place,
            row["source"] or "",
            row["stream"] or "",
            row["stream_id"] or 0,
            row["message_id"] or 0,
            row["event_time"],
            row["value"],
            one.how,
        )
        for place, row, one in zip(places, rows.to_pylist(), found, strict=True)
    ]


def _run_as_json(one: Failing[Failure], events: "EpochEvents") -> dict[str, Any]:
    first, last = events.place(one.start), events.place(one.end - 1)
    return {"first": str(first), "last": str(last), "events": one.end - one.start, "error": one.how.text}


def _print(singles: Sequence[_Described], together: Sequence[Failing[Failure]], events: "EpochEvents") -> None:
    for single in singles:
        typer.echo("\n".join(["", *single.lines()]))
    for one in together:
        first, last = events.place(one.start), events.place(one.end - 1)
        typer.echo(printable(f"\n{first} to {last}").lstrip("\\n"))
        typer.echo(f"  {show_count(one.end - one.start, 'event')}: none of them fails alone, but together they do")
        typer.echo("\n".join(_indented(one.how.text)))


def _indented(text: str) -> Iterator[str]:
    return (f"  {printable(line)}" for line in text.splitlines())


def _conclude(name: str, found: int, count: int, limit: int, *, is_over: bool) -> None:
    typer.echo("")
    if is_over:
        typer.echo("interrupted: other events may fail, too")
    elif found == limit:
        typer.echo(f"stopped after {show_count(found, 'event')} (--limit): others may fail, too")
    elif found:
        typer.echo(f"all other events pass ({count - found:,})")
    else:
        typer.echo(
            "the epoch passes on its own: what fails depends on the pipeline's state, on the time, or on something "
            f"outside of it. See: penstock status; the log of penstock run of {name}"
        )


def _offer(client: CoordinatorClient, name: str, found: Sequence[_Described], *, bury: bool, ask: bool) -> None:
    """A question on a terminal; elsewhere, the command."""
    if not found:
        return
    places = [one.place for one in found]
    if bury or (ask and sys.stdin.isatty() and typer.confirm(f"Bury {show_count(len(found), 'event')} of {name}?")):
        reasons = [shortened(printable(one.failure.summary), _REASON_CHARACTERS_MAX) for one in found]
        done = [client.bury(name, [place], reason) for place, reason in zip(places, reasons, strict=True)]
        report_bury(name, len(places), BuryDone(sum(one.changed for one in done), any(one.waits for one in done)))
    elif ask:
        at = " ".join(f"--at {place}" for place in places)
        typer.echo(f"To bury: penstock dead-letters bury {name} {printable(at)}")
