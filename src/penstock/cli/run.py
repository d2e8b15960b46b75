"""`penstock run`: the pipelines of a file, with all they need."""

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from rich.console import Console

from penstock.cli.connect import get_json
from penstock.cli.embedded_worker import FoundWorker, embedded_worker
from penstock.cli.event_times import IdleTimeoutOption, MaxDisorderOption, with_event_times
from penstock.cli.pipeline_sinks import SinkOption, bound_to, check_sinks, wait_for_delivery
from penstock.client.segments.retrying import retrying
from penstock.core.errors import RequestError, Unavailable
from penstock.gateway.settings import ConnectorSettings
from penstock.spark.checkpoints import DEFAULT_FOLDER, local_path
from penstock.spark.durations import parse_duration_ms
from penstock.spark.java import use_java
from penstock.spark.pipelines import Pipeline
from penstock.spark.requirements import check_installed
from penstock.spark.session import LOCAL, cores_of
from penstock.spark.user_code import load_pipelines

if TYPE_CHECKING:
    from penstock.spark.attempt import RunSettings
    from penstock.spark.runner import Runner

_DEFAULT_DATA = Path("penstock-data")
_SPARK = "Spark"

_WORKER_SECONDS_MAX = 10.0
"""For a worker that is being started again, or together with us; a wrong address is still told soon."""


def register(app: typer.Typer) -> None:
    app.command("run")(run)


def run(
    file: Annotated[Path, typer.Argument(help="A Python file with functions that are a @pipeline.")],
    pipeline: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Only this one; may be repeated.")] = None,
    data: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The worker's data; it is started unless it runs. [penstock-data]"),
    ] = None,
    worker: Annotated[
        str | None,
        typer.Option(envvar="PENSTOCK_WORKER", metavar="HOST:PORT", help="A running worker instead: its HTTP address."),
    ] = None,
    sink: SinkOption = None,
    retention: Annotated[str | None, typer.Option(help="Of the worker that is started: see penstock worker.")] = None,
    max_disorder: MaxDisorderOption = None,
    idle_timeout: IdleTimeoutOption = None,
    checkpoint: Annotated[
        str | None, typer.Option(metavar="DIR", help="Where each pipeline has its checkpoint. [DATA/checkpoints]")
    ] = None,
    trigger: Annotated[
        str | None, typer.Option(metavar="TIME", help="Between the starts of two epochs, like 1s. [no pause]")
    ] = None,
    available_now: Annotated[bool, typer.Option("--available-now", help="Process what is there, then end.")] = False,
    for_time: Annotated[
        str | None, typer.Option("--for", metavar="TIME", help="End after this time, like 30s.")
    ] = None,
    master: Annotated[str, typer.Option(metavar="URL", help="Where Spark runs.", rich_help_panel=_SPARK)] = LOCAL,
    conf: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="A setting of Spark's; may be repeated.", rich_help_panel=_SPARK),
    ] = None,
) -> None:
    """Run the pipelines of a file on Spark, until Ctrl-C.

    Everything is started that is not there: a worker on DATA, and Spark.
    An epoch's effect is there once, however often it is stopped or killed.
    """
    check_installed()
    use_java()
    seconds_max = None if for_time is None else parse_duration_ms(for_time) / 1000
    trigger_ms = None if trigger is None else parse_duration_ms(trigger)
    place = _place(data, worker, checkpoint)
    spark = _SparkSettings(master, _parsed(conf or []), place.folder / "spark.log")
    pipelines = bound_to(_chosen(load_pipelines(file), pipeline or []), sink or [])
    check_sinks(pipelines, worker_is_here=worker is None)
    _let_workers_import_from(file)
    signal.signal(signal.SIGTERM, _end_by_sigterm)
    options = _worker_options(retention, max_disorder or [], idle_timeout or [])
    with _worker(place, worker, options) as found:
        settings = _run_settings(found.http, place, master, trigger_ms, available_now=available_now)
        number = _run(found, pipelines, settings, spark, seconds_max)
        if available_now and number is None:
            wait_for_delivery(found.http, [pipeline.name for pipeline in pipelines if pipeline.sinks], _say)
    if number == signal.SIGINT:
        raise typer.Exit(130)


@dataclass(frozen=True, slots=True)
class _Place:
    """`data` is None when the worker is somebody else's. `folder` is ours to write logs to."""

    data: Path | None
    folder: Path
    checkpoints: str


@dataclass(frozen=True, slots=True)
class _SparkSettings:
    master: str
    conf: dict[str, str]
    log: Path


def _place(data: Path | None, worker: str | None, checkpoint: str | None) -> _Place:
    if worker is not None:
        if data is not None:
            raise RequestError("--data and --worker exclude each other", "Give the one that says where the worker is.")
        checkpoints = checkpoint or DEFAULT_FOLDER
        return _Place(None, local_path(checkpoints) or Path(DEFAULT_FOLDER), checkpoints)
    data = data or _DEFAULT_DATA
    return _Place(data, data, checkpoint or str(data / "checkpoints"))


def _parsed(settings: Sequence[str]) -> dict[str, str]:
    for setting in settings:
        if "=" not in setting:
            raise RequestError(f"--conf {setting!r} has no value", "Write --conf spark.executor.memory=4g")
    return dict(setting.split("=", 1) for setting in settings)


def _chosen(pipelines: list[Pipeline], names: Sequence[str]) -> list[Pipeline]:
    known = [pipeline.name for pipeline in pipelines]
    for name in names:
        if name not in known:
            raise RequestError(f"there is no pipeline {name!r} in the file", f"It has: {', '.join(known)}.")
    return [pipeline for pipeline in pipelines if not names or pipeline.name in names]


def _let_workers_import_from(file: Path) -> None:
    """Python workers on this machine find the modules beside the file, as the driver does."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(file.absolute().parent), before)))


def _ports(worker: str) -> dict[str, int]:
    """Of a worker that runs. One that is just being started again is waited for; Unavailable if none comes."""
    for attempt in retrying(_WORKER_SECONDS_MAX, Unavailable):
        with attempt:
            ports: dict[str, int] = get_json(worker, "/status")["ports"]
            return ports
    raise AssertionError("tenacity returns or raises")


def _worker_options(retention: str | None, max_disorder: list[str], idle_timeout: list[str]) -> list[str]:
    """Of the worker that is started. Raises RequestError."""
    with_event_times(ConnectorSettings(), max_disorder, idle_timeout)
    options = [] if retention is None else [f"--retention={retention}"]
    options += [f"--max-disorder={given}" for given in max_disorder]
    return options + [f"--idle-timeout={given}" for given in idle_timeout]


@contextmanager
def _worker(place: _Place, worker: str | None, options: list[str]) -> Iterator[FoundWorker]:
    if place.data is None:
        assert worker is not None
        if options:
            raise RequestError(f"{options[0]} is for a worker that is started", "Give it to penstock worker itself.")
        yield FoundWorker(worker, _ports(worker))
        return
    with embedded_worker(place.data, options) as found:
        how = "runs already" if found.process is None else "is started"
        _say(f"the worker on {place.data} {how}: sources on port {found.ports['connector']}, http on {found.http}")
        if found.process is None and options:
            _say(f"it keeps the settings it was started with: {' '.join(options)} is not for it")
        yield found


def _run_settings(
    worker: str, place: _Place, master: str, trigger_ms: int | None, *, available_now: bool
) -> "RunSettings":
    from penstock.spark.attempt import RunSettings

    return RunSettings(
        worker=worker,
        checkpoints=place.checkpoints,
        cores=cores_of(master) or 1,
        trigger_ms=trigger_ms,
        available_now=available_now,
    )


def _run(
    worker: FoundWorker,
    pipelines: Sequence[Pipeline],
    settings: "RunSettings",
    spark: _SparkSettings,
    seconds_max: float | None,
) -> int | None:
    """The number of the signal that ended it, if one did."""
    from penstock.cli.run_view import RunView
    from penstock.spark.driver import spark_driver
    from penstock.spark.runner import Runner, RunningPipeline, carry_by_value

    carry_by_value(pipelines)
    _say(f"Spark starts, its log is {spark.log} …")
    names = ", ".join(pipeline.name for pipeline in pipelines)
    with (
        RunView(settings.worker, Console(highlight=False)) as view,
        spark_driver(f"penstock: {names}", spark.master, spark.conf, spark.log) as session,
    ):

        def show(running: Sequence[RunningPipeline]) -> None:
            worker.check()
            view.show(running)

        runner = Runner(session, pipelines, settings, show)
        with _signals(runner) as caught:
            runner.run(seconds_max)
        return caught[0] if caught else None


def _end_by_sigterm(*_: object) -> NoReturn:
    """While things are being started: what was started is ended, in order."""
    raise SystemExit(0)


@contextmanager
def _signals(runner: "Runner") -> Iterator[list[int]]:
    """The first Ctrl-C or SIGTERM stops in order; a second Ctrl-C does not wait for that."""
    caught: list[int] = []

    def on_signal(number: int, _: FrameType | None) -> None:
        if caught and number == signal.SIGINT:
            raise KeyboardInterrupt
        caught.append(number)
        runner.stop()

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _say(text: str) -> None:
    Console(stderr=True, highlight=False).print(text, markup=False, soft_wrap=True)
