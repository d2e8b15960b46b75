"""Runs pipelines on Spark for `penstock run` until they end or are stopped, and shows them: a live table on a terminal,
otherwise a line every few seconds.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from penstock.cli.class_archive import BackgroundCreation
from penstock.cli.embedded_worker import FoundWorker
from penstock.cli.open_windows import report_staying_open
from penstock.cli.run_setup import RunOptions, print_line, report, report_drained, stopped_by_signals
from penstock.cli.texts import printable, show_time
from penstock.cli.waiting import waiting
from penstock.client.coordinator import CoordinatorClient, PipelineStatus, SinkStatus
from penstock.core.counts import show_count
from penstock.core.errors import PenstockError
from penstock.dashboard.catch_up import lag_text
from penstock.protocol.api.status import Blockage, ConnectorStatus, RatesStatus
from penstock.spark import codecs
from penstock.spark.run.driver import SparkDriver, spark_driver
from penstock.spark.run.executors import carrying_warning, check_executors
from penstock.spark.run.failures import Failure
from penstock.spark.run.progress import Progress
from penstock.spark.run.runner import Runner, RunningPipeline, Standing

if TYPE_CHECKING:
    from penstock.application.driver import Follower
    from penstock.protocol.api.deployment import Deployed
    from penstock.spark.pipelines import Pipeline

# What `penstock run` reports when pipelines accept events: what to do next, for each source.

_REQUESTS = "http-server"
_PROGRAMS = "connector-protocol"
_ELSEWHERE = ("pipeline:", "segment:", "pravega:")
"""Prefixes of sources that no program sends to directly."""


Generations = dict[str, int]
"""Of pipelines, by name."""


def ready_lines(
    names: Collection[str], known: Iterable[PipelineStatus], connectors: Iterable[ConnectorStatus]
) -> dict[str, Generations]:
    """For these pipelines: each line, and which generations of which pipelines are ready. A request is answered once
    every pipeline that reads it has it, so all of them must run.
    """
    connector_of = {one.name: one for one in connectors}
    reads = {one.name: _sources(one) for one in known}
    running = {one.name: one.generation for one in known if one.state == "RUNNING"}
    lines: dict[str, Generations] = {}
    for name in sorted(running.keys() & {*names}):
        requests = [
            source for source in reads[name] if source in connector_of and connector_of[source].type == _REQUESTS
        ]
        for source in requests:
            readers = [reader for reader, sources in reads.items() if source in sources]
            if all(reader in running for reader in readers):
                lines[f"ready: {connector_of[source].reached_at}"] = {one: running[one] for one in readers}
        others = [f"{source}{_how(source, connector_of)}" for source in reads[name] if source not in requests]
        if others:
            lines[f"ready: {name} reads {', '.join(others)}"] = {name: running[name]}
    return lines


def _sources(pipeline: PipelineStatus) -> list[str]:
    return list(dict.fromkeys(source for sources in pipeline.inputs.values() for source in sources))


def _how(source: str, connector_of: Mapping[str, ConnectorStatus]) -> str:
    """In parentheses: how events reach the source."""
    if source.startswith(_ELSEWHERE):
        return ""
    connector = connector_of.get(source)
    if connector is None or connector.type == _PROGRAMS:
        return f" (penstock send --source {source})"
    return f" ({connector.reached_at or connector.type})"


_LINE_SECONDS = 5.0
_ASK_SECONDS = 1.0
_ANSWER_SECONDS_MAX = 2.0
"""How long the view waits for the worker's status."""

_OFTEN = 2
"""The number of consecutive failures is shown from this one on."""

_IN_TROUBLE = ("REFUSED", "WAITING", "DIVERGED")

_UNREPORTED = ("spark", "output", "sink")
"""Kinds of blockages that nothing else here reports, except for sinks in trouble."""

_STAYS = (
    "{} stays stopped until it is changed (penstock apply) or reset (penstock pipeline reset), or events of it are "
    "buried (penstock dead-letters bury); the others continue"
)
_RETURNED = "the changed {0} failed before its first epoch: the previous {0} runs again"


class RunView:
    """Shows pipelines with the worker's status of them."""

    def __init__(self, worker: str, console: Console, reported: Mapping[str, str] | None = None) -> None:
        """`reported`: by the view of the process before."""
        self._console = console
        self._coordinator = CoordinatorClient(worker, 0, timeout_seconds=_ANSWER_SECONDS_MAX)
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        self._known: Mapping[str, PipelineStatus] = {}
        self._sinks: Sequence[SinkStatus] = ()
        self._blockages: Sequence[Blockage] = ()
        self._connectors: Sequence[ConnectorStatus] = ()
        self._rates = RatesStatus(seconds=0.0, sources={}, pipelines={}, sinks={})
        self._ready: dict[str, Generations] = {}
        self._is_stopping = False
        self._asked = self._printed = 0.0
        self.reported: dict[str, str] = {**(reported or {})}
        """Subject → the last line about it."""
        self._blocked: dict[str, Collection[str]] = {}
        """What each pipeline was last reported to be blocked by."""
        self._restarts: dict[str, float | None] = {}
        """For which restart of each pipeline the failure was reported."""

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
        self._coordinator.close()

    def show(self, pipelines: Sequence[RunningPipeline]) -> None:
        self._ask()
        for pipeline in pipelines:
            self._report_start(pipeline)
            self._report_failure(pipeline)
            self._report_sinks(pipeline.pipeline.name)
            self._report_blockages(pipeline.pipeline.name)
        self._report_ready([pipeline.pipeline.name for pipeline in pipelines if pipeline.is_running])
        if self._live is not None:
            self._live.update(self._table(pipelines), refresh=True)
        elif time.monotonic() - self._printed >= _LINE_SECONDS or not any(p.is_running for p in pipelines):
            self._printed = time.monotonic()
            for pipeline in pipelines:
                self._report(pipeline.pipeline.name, self._line(pipeline))

    def _ask(self) -> None:
        if time.monotonic() - self._asked >= _ASK_SECONDS:
            with suppress(PenstockError):
                status = self._coordinator.status()
                self._known = {one.name: one for one in status.pipelines}
                self._sinks, self._connectors = status.sinks, status.connectors
                self._blockages, self._rates = status.blockages, status.rates
                self._is_stopping = status.application is not None and status.application.state != "running"
            self._asked = time.monotonic()

    def _report(self, about: str, line: str, level: int = logging.INFO) -> None:
        """Print a line, unless the last one about the same subject was identical."""
        if line and self.reported.get(about) != line:
            self.reported[about] = line
            report(self._console, line, level)

    def _report_start(self, running: RunningPipeline) -> None:
        if running.moved_aside is not None:
            text = f"{running.pipeline.name} was reset: its old checkpoint is now {running.moved_aside}"
            self._report(f"reset of {running.pipeline.name}", text)
        if running.ports is not None:
            name, inputs = running.pipeline.name, running.pipeline.inputs.values()
            reads = ", ".join(dict.fromkeys(source for sources in inputs for source in sources))
            puts = ", ".join(f"pipeline:{name}/{port}" for port in _shown(running)) or "a sink of Spark's"
            self._report(f"start of {name}", f"{name}: {reads} → {puts}")

    def _report_failure(self, running: RunningPipeline) -> None:
        if (error := running.given_up) is not None:
            name = running.pipeline.name
            self._report(f"end of {name}", f"{error}\n{error.hint}\n{_STAYS.format(name)}", logging.ERROR)
            return
        name, failure = running.pipeline.name, running.last_failure
        if (error := running.replaced) is not None:
            self._report(f"return of {name}", f"{error}\n{error.hint}\n{_RETURNED.format(name)}", logging.ERROR)
        # An error in the user's code is reported when it fails again.
        if failure is not None and failure.cause is None and running.restart_at is not None:
            self._report_restart(running, failure)

    def _report_restart(self, running: RunningPipeline, failure: Failure) -> None:
        """Once for each failure."""
        name, times = running.pipeline.name, running.restarts.in_a_row
        if self._restarts.get(name) != running.restart_at:
            self._restarts[name] = running.restart_at
            report(self._console, restart_text(name, failure, times, running.restart_at), logging.WARNING)

    def _report_sinks(self, name: str) -> None:
        """Where the output goes, once; and why a sink does not accept it, until it does."""
        for sink in self._sinks:
            if sink.pipeline == name:
                what, trouble = f"{name}/{sink.port} → {sink.sink}", f"trouble of {sink.sink} of {name}"
                where = (
                    "" if sink.url == sink.sink else f": {sink.url}"
                )  # the URL of an application's connector is its name
                self._report(f"sink {sink.sink} of {name}", f"{what}{where} ({sink.guarantee})")
                if sink.state in _IN_TROUBLE:
                    self._report(trouble, f"{what} {sink.state}: {sink.reason}", logging.WARNING)
                elif sink.state == "READY" and trouble in self.reported:
                    self._report(trouble, f"{what} READY again")
                    del self.reported[trouble]

    def _report_blockages(self, name: str) -> None:
        """Which link blocks the pipeline, once; and that nothing does any more. Failures, and sinks that have reported
        a reason, have lines of their own.
        """
        known = {f"sink {one.sink}" for one in self._sinks if one.pipeline == name and one.state in _IN_TROUBLE}
        blocking = [one for one in self._blockages if one.pipeline == name and one.kind in _UNREPORTED]
        found = {one.link: one for one in blocking if one.link not in known}
        before = self._blocked.get(name, ())
        for link, one in found.items():
            if link not in before:
                report(self._console, printable(str(one)), logging.WARNING)
        if before and not found:
            report(self._console, f"{name} is no longer blocked")
        self._blocked[name] = tuple(found)

    def _report_ready(self, names: Collection[str]) -> None:
        """Repeated after a restart, since the pipeline was not ready in between, even if no status has shown that.
        Never after `penstock stop`.
        """
        lines = {} if self._is_stopping else ready_lines(names, self._known.values(), self._connectors)
        for line, generations in lines.items():
            if self._ready.get(line) != generations:
                report(self._console, line)
        self._ready |= lines

    def _line(self, running: RunningPipeline) -> str:
        if running.progress is None or running.restart_at is not None:
            return ""
        return ", ".join(f"{name} {text}" for name, text in self._cells(running).items() if text)

    def _table(self, pipelines: Sequence[RunningPipeline]) -> Table:
        rows = [self._cells(running) for running in pipelines]
        table = Table(*(rows[0] if rows else ("no pipeline runs",)))
        for row in rows:
            table.add_row(*(escape(text) for text in row.values()))
        return table

    def _cells(self, running: RunningPipeline) -> dict[str, str]:
        progress, known = running.progress, self._known.get(running.pipeline.name)
        cells = {"pipeline": running.pipeline.name}
        if progress is None:
            empty = dict.fromkeys(("rows", "rows/s", "lag", "watermark", "state", "open windows"), "")
            return cells | {"epoch": _standing(running)} | empty
        return cells | {
            "epoch": ", ".join(filter(None, (str(progress.epoch), _standing(running)))),
            "rows": f"{running.rows:,}",
            "rows/s": f"{self._rows_per_second(progress, known):,.0f}",
            "lag": "" if known is None else lag_text(known, self._rates),
            "watermark": show_time(progress.watermark_us),
            "state": f"{progress.state_rows:,} rows" if progress.state_rows else "",
            "open windows": "" if known is None else _open_windows(known),
        }

    def _rows_per_second(self, progress: Progress, known: PipelineStatus | None) -> float:
        """What `penstock status` shows. Spark's own rate, that of the last epoch while it ran, for what the worker does
        not see.
        """
        rates = None if known is None or not known.inputs else self._rates.pipelines.get(known.name)
        return progress.rows_per_second if rates is None else rates.rows_in_per_second


def restart_text(name: str, failure: Failure, times: int, restart_at: float | None) -> str:
    often = "" if times < _OFTEN else f" {times} times in a row"
    text = f"{name} failed{often}, and is restarted in {_seconds_until(restart_at)} s: {failure.message}"
    return f"{text}\n{failure.hint}" if failure.hint else text


def _standing(running: RunningPipeline) -> str:
    """Empty for one that makes progress."""
    if running.given_up is not None:
        return "failed"
    if running.restart_at is not None:
        return f"restarts in {seconds} s" if (seconds := _seconds_until(running.restart_at)) else "restarts …"
    return "starts …" if running.is_running and running.progress is None else ""


def _seconds_until(monotonic: float | None) -> int:
    return 0 if monotonic is None else max(0, round(monotonic - time.monotonic()))


def _open_windows(known: PipelineStatus) -> str:
    """How many windows are open, and events buffered, and what they wait for."""
    contents = [f"{known.open_windows:,}"] if known.open_windows else []
    contents += [show_count(known.buffered_events, "event")] if known.buffered_events else []
    return printable(f"{' and '.join(contents)}, {known.open_windows_wait}") if contents else ""


def _shown(running: RunningPipeline) -> list[str]:
    """Its ports, except those in other codecs without a bound sink."""
    ports, bound = running.ports or (), {sink.port for sink in running.pipeline.sinks.values()}
    return [port for port in ports if port in bound or port.rpartition(".")[2] not in codecs.names() or "." not in port]


# While `penstock run` starts Spark, it announces its pipelines to the worker, which can then inform their senders.

_REPEAT_SECONDS = 3.0
"""Short enough that a few may be lost before the worker considers the start abandoned."""

_ANNOUNCEMENT_SECONDS_MAX = 5.0


class Announcement:
    """Announces to the worker, repeatedly until `stop`, that Spark is being started for these pipelines."""

    def __init__(self, worker: str, pipelines: Mapping[str, Sequence[str]]) -> None:
        self._worker = worker
        self._pipelines = pipelines
        self._over = threading.Event()
        self._announce()  # now: a program that is started right after us must find the announcement
        self._thread = threading.Thread(target=self._repeat, name="announcement of pipelines", daemon=True)
        self._thread.start()

    def look(self, pipelines: Sequence[RunningPipeline]) -> None:
        """Stop when all of them have been started."""
        if all(one.is_running or one.is_done for one in pipelines):
            self.stop()

    def stop(self) -> None:
        """To be called once the pipelines run and report themselves, or never will. Idempotent."""
        self._over.set()

    def _repeat(self) -> None:
        while not self._over.wait(_REPEAT_SECONDS):
            self._announce()

    def _announce(self) -> None:
        """A worker that is unavailable receives the next one."""
        with (
            suppress(PenstockError),
            CoordinatorClient(self._worker, 0, timeout_seconds=_ANNOUNCEMENT_SECONDS_MAX) as coordinator,
        ):
            coordinator.announce(self._pipelines)


@contextmanager
def announced(worker: str, pipelines: "Sequence[Pipeline]") -> Iterator[Announcement]:
    announcement = Announcement(worker, {one.name: _announced_sources(one) for one in pipelines})
    try:
        yield announcement
    finally:
        announcement.stop()


def _announced_sources(pipeline: "Pipeline") -> list[str]:
    return list(dict.fromkeys(source for sources in pipeline.inputs.values() for source in sources))


# The run itself.


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkRun:
    """What runs, in a form that another process can take over."""

    worker: str
    """Its HTTP address."""
    load: "Callable[[Deployed], Sequence[Pipeline]]"
    """Loads the pipelines, from the user's files, or as they are deployed."""
    follow: "Callable[[str, Deployed, Callable[[str], None]], Follower]"
    options: RunOptions
    is_application: bool = False

    def within(self, seconds_max: float | None) -> "SparkRun":
        return replace(self, options=replace(self.options, seconds_max=seconds_max))

    @property
    def until_stopped(self) -> bool:
        return self.is_application and not self.options.available_now

    def console(self) -> Console:
        """An application may write to stdout itself."""
        return Console(stderr=self.is_application, highlight=False)


@dataclass(frozen=True, slots=True)
class Start:
    """What a run starts with. `standings` and what was `reported`: of the process that has lost its JVM."""

    pipelines: "Sequence[Pipeline]"
    deployed: "Deployed"
    standings: Mapping[str, Standing] | None = None
    reported: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ended:
    """Normally, or by a signal."""

    signal: int | None = None


@dataclass(frozen=True, slots=True)
class Lost:
    """Spark's JVM has ended, and a pipeline is due again."""

    deployed: "Deployed"
    standings: Mapping[str, Standing]
    reported: Mapping[str, str]


def _check_executors(worker: str, options: RunOptions, spark: SparkDriver) -> None:
    """On a cluster. Raises SparkNotStarted if an executor cannot run tasks, or if there is none."""
    access = options.executors(worker, spark)
    if access is None:
        return
    checked = check_executors(spark, worker, access)
    checked.require()
    hosts = ", ".join(sorted({one.host for one in checked.reports}))
    count = len(checked.reports)
    print_line(f"{count} {'executor' if count == 1 else 'executors'} on {hosts}: same versions, reach {checked.worker}")
    if (warning := carrying_warning(spark.session, worker, access)) is not None:
        print_line(warning)


@contextmanager
def _started(name: str, worker: str, options: RunOptions) -> Iterator[SparkDriver]:
    """Start Spark, which takes seconds: on a terminal, a line shows what it waits for. Raises SparkNotStarted."""
    with ExitStack() as stack:
        with waiting("starting Spark …") as waits_for:
            driver = spark_driver(
                name,
                options.master,
                options.conf,
                options.spark_log,
                report=lambda what: waits_for(f"starting Spark: waiting for {what}"),
            )
            spark = stack.enter_context(driver)
            waits_for("Spark has started: trying its executors")
            _check_executors(worker, options, spark)
        yield spark


def run_here(
    worker: FoundWorker, run: SparkRun, start: Start, creation: BackgroundCreation | None = None
) -> Ended | Lost:
    """Start Spark and run the pipelines in this process, which has not used Spark before. The follower is made once
    Spark has started, and closed before Spark ends. Raises SparkNotStarted, RequestError when a pipeline has failed for
    good, and Unavailable when the worker has ended.
    """
    options, pipelines = run.options, start.pipelines
    print_line(f"starting Spark, log in {options.spark_log} …")
    name = f"penstock: {', '.join(pipeline.name for pipeline in pipelines)}"
    with (
        announced(worker.http, pipelines) as announcement,
        _started(name, worker.http, options) as spark,
        RunView(worker.http, run.console(), start.reported) as view,
    ):

        def show(running: Sequence[RunningPipeline]) -> None:
            worker.check()
            announcement.look(running)
            if creation is not None:
                creation.look(running, time.monotonic())
            view.show(running)

        with closing(run.follow(worker.http, start.deployed, print_line)) as follower:
            runner = follower.runner = Runner(
                spark.session,
                pipelines,
                options.settings(worker.http, spark),
                show,
                change=follower.follow,
                driver=spark,
                until_stopped=run.until_stopped,
                standings=start.standings,
            )
            with stopped_by_signals(runner.stop) as caught:
                runner.run(options.seconds_max)
            if runner.standings is not None and not caught:
                return Lost(follower.deployed, runner.standings, view.reported)
            if follower.is_drained:
                report_drained(runner.pipelines)
                report_staying_open(worker.http, [running.pipeline.name for running in runner.pipelines], print_line)
        return Ended(caught[0] if caught else None)
