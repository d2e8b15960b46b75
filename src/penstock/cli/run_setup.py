"""What `penstock run` sets up for whatever it runs: a place for its data, a worker, Spark's settings, Ctrl-C."""

import logging
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from rich.console import Console

from penstock.cli.connect import worker_status, worker_to_change
from penstock.cli.dashboard_process import dashboard_beside
from penstock.cli.embedded_worker import FoundWorker, embedded_worker
from penstock.client.credentials import OWN_DATA, parse_worker
from penstock.core.durations import parse_duration_ms
from penstock.core.errors import RequestError
from penstock.core.logs import log_line
from penstock.core.platforms import limitations
from penstock.spark.carried import advertised_address
from penstock.spark.run.checkpoints import DEFAULT_FOLDER, local_path
from penstock.spark.run.session import check_master, cores_of, is_cluster, sets_partitions

if TYPE_CHECKING:
    from penstock.spark.run.attempt import RunSettings
    from penstock.spark.run.driver import SparkDriver
    from penstock.spark.run.generation import ExecutorAccess
    from penstock.spark.run.runner import RunningPipeline

_SPARK = "Spark"

MasterOption = Annotated[str, typer.Option("--master", metavar="URL", help="Where Spark runs.", rich_help_panel=_SPARK)]
ConfOption = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="KEY=VALUE", help="A Spark setting; may be repeated.", rich_help_panel=_SPARK),
]

AdvertisedOption = Annotated[
    str | None,
    typer.Option(
        "--advertised-worker",
        metavar="HOST:PORT",
        help="On a Spark cluster: the worker's HTTP address as executors reach it. Default: as it is reached here.",
        rich_help_panel=_SPARK,
    ),
]
SharedCheckpointOption = Annotated[
    bool,
    typer.Option(
        "--shared-checkpoint",
        help="On a Spark cluster: the directory of the checkpoints is mounted at the same path on all its machines.",
        rich_help_panel=_SPARK,
    ),
]

_WORKER_SECONDS_MAX = 10.0
"""Enough for a worker that is restarting, or starting together with us; a wrong address is still reported soon."""


@dataclass(frozen=True, slots=True)
class Place:
    """`data` is None if the worker was started by someone else. `folder` is where we write logs."""

    data: Path | None
    folder: Path
    checkpoints: str

    @classmethod
    def of(cls, data: Path | None, worker: str | None, checkpoint: str | None) -> "Place":
        if worker is not None:
            if data is not None:
                raise RequestError("--data and --worker cannot be used together", "Use only one of them.")
            checkpoints = checkpoint or DEFAULT_FOLDER
            return cls(None, local_path(checkpoints) or Path(DEFAULT_FOLDER), checkpoints)
        data = data or OWN_DATA
        return cls(data, data, checkpoint or str(data / "checkpoints"))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The command-line options of a run, for both kinds of files."""

    place: Place
    worker: str | None
    store: str | None = None
    """The object store of the worker to start; it is in `worker_options`, too."""
    worker_options: Sequence[str]
    """Options of the worker to start."""
    trigger_ms: int | None
    available_now: bool
    seconds_max: float | None
    master: str
    conf: dict[str, str]
    prune: bool = False
    """Drop pipelines that are no longer in the application."""
    dashboard_port: int | None = None
    """Where to serve the dashboard; None: nowhere."""
    folder: Path | None = None
    """Of the application's file."""
    advertised: str | None = None
    """The worker's address as the executors of a cluster reach it; None: as it is reached here."""

    @property
    def for_dashboard(self) -> list[str]:
        return [] if self.folder is None else ["--folder", str(self.folder)]

    @property
    def spark_log(self) -> Path:
        return self.place.folder / "spark.log"

    def executors(self, worker: str, driver: "SparkDriver") -> "ExecutorAccess | None":
        """None if tasks run here."""
        return executor_access(self.master, self.advertised or worker, driver)

    def settings(self, worker: str, driver: "SparkDriver") -> "RunSettings":
        from penstock.spark.run.attempt import RunSettings

        return RunSettings(
            worker=worker,
            checkpoints=self.place.checkpoints,
            cores=cores_of(self.master) or driver.session.sparkContext.defaultParallelism,
            executors=self.executors(worker, driver),
            follows_buckets=not sets_partitions(driver.session),
            trigger_ms=self.trigger_ms,
            available_now=self.available_now,
            gateway=driver.gateway,
        )


def executor_access(master: str, advertised: str, driver: "SparkDriver") -> "ExecutorAccess | None":
    """How the executors of a cluster reach the worker. None with a local master: there are none."""
    from penstock.spark.run.executors import has_token_file
    from penstock.spark.run.generation import ExecutorAccess

    if not is_cluster(master):
        return None
    conf = dict(driver.session.sparkContext.getConf().getAll())
    return ExecutorAccess(advertised_address(advertised), carries_token=not has_token_file(conf))


def check_cluster_options(master: str, checkpoints: str, *, advertised: str | None, is_shared: bool) -> None:
    """Raises RequestError for a master that Spark does not know, a checkpoint that executors cannot write to, and
    options that a local master cannot use.
    """
    check_master(master)
    if not is_cluster(master):
        for name, value in (("--advertised-worker", advertised), ("--shared-checkpoint", is_shared)):
            if value:
                raise RequestError(f"{name} is for a Spark cluster, and {master} is this machine", "Leave it out.")
        return
    if advertised is not None:
        parse_worker(advertised)
    if local_path(checkpoints) is not None and not is_shared:
        raise RequestError(
            f"the checkpoints in {checkpoints} are on this machine, and executors of {master} keep the state of "
            "pipelines there",
            "Use a file system that all machines share: --checkpoint s3a://… or hdfs://…, or a directory that is "
            "mounted at the same path everywhere, such as NFS, with --shared-checkpoint.",
        )


def milliseconds(text: str | None) -> int | None:
    return None if text is None else parse_duration_ms(text)


def conf_of(settings: Sequence[str]) -> dict[str, str]:
    for setting in settings:
        if "=" not in setting:
            raise RequestError(f"--conf {setting!r} has no value", "Write --conf spark.executor.memory=4g")
    return dict(setting.split("=", 1) for setting in settings)


def let_workers_import_from(folders: Iterable[Path]) -> None:
    """Python workers on this machine can then import the modules next to the file, as the driver does."""
    before = os.environ.get("PYTHONPATH")
    named = dict.fromkeys(str(folder.absolute()) for folder in folders)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (*named, before)))


@contextmanager
def worker_of(options: RunOptions, *, stdio: bool = False) -> Iterator[FoundWorker]:
    """The worker that was named, or one on the data directory. `stdio`: a worker started here gets our input and
    output.
    """
    if options.place.data is None:
        assert options.worker is not None
        if options.worker_options:
            raise RequestError(
                f"{options.worker_options[0]} only applies to a worker that this command starts",
                "Pass it to penstock worker instead.",
            )
        address = worker_to_change(options.worker, None, yes=True, retry_seconds=_WORKER_SECONDS_MAX)
        with dashboard_beside(options.dashboard_port, "--worker", address, *options.for_dashboard):
            yield FoundWorker(address, worker_status(address).ports)
        return
    with embedded_worker(options.place.data, options.worker_options, stdio=stdio, report=print_line) as found:
        if found.process is None and options.store is not None:
            _check_store(found, options.place.data, options.store)
        for text in limitations() if found.process is not None else ():
            print_line(f"on this platform: {text}")
        how = "runs already" if found.process is None else "is started"
        ports = f"sources on port {found.ports['connector']}, http on {found.http}"
        print_line(f"the worker on {options.place.data} {how}: {ports}")
        if found.process is None and options.worker_options:
            print_line(f"it keeps the settings it was started with: {' '.join(options.worker_options)} is ignored")
        with dashboard_beside(options.dashboard_port, "--data", str(options.place.data), *options.for_dashboard):
            yield found


def _check_store(found: FoundWorker, data: Path, store: str) -> None:
    """Raises RequestError if the worker has its journal elsewhere."""
    bucket = worker_status(found.http).store.bucket
    if bucket is None or bucket.url != store.rstrip("/"):
        place = "on its disk" if bucket is None else f"in {bucket.url}"
        raise RequestError(
            f"the worker on {data} runs already, and its journal is {place}, not in {store}",
            "Stop that worker first, or choose another --data directory.",
        )


def end_by_sigterm(*_: object) -> NoReturn:
    """The handler during startup: exits, so that everything already started is stopped in order."""
    raise SystemExit(0)


@contextmanager
def stopped_by_signals(stop: Callable[[], None]) -> Iterator[list[int]]:
    """The first Ctrl-C or SIGTERM shuts down in order, by `stop`; a second Ctrl-C does not wait for that."""
    caught: list[int] = []

    def on_signal(number: int, _: FrameType | None) -> None:
        if caught and number == signal.SIGINT:
            raise KeyboardInterrupt
        caught.append(number)
        stop()

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def print_line(text: str) -> None:
    report(Console(stderr=True, highlight=False), text)


def report(console: Console, text: str, level: int = logging.INFO) -> None:
    """Print plain text on a terminal, a log line elsewhere."""
    line = text if console.is_terminal else log_line(text, "penstock.run", level)
    console.print(line, markup=False, soft_wrap=True)


def report_drained(pipelines: "Sequence[RunningPipeline]") -> None:
    """After `penstock stop`."""
    passed = ", ".join(f"{running.pipeline.name} {running.rows:,} events" for running in pipelines)
    print_line(f"the application is stopped: all events were delivered ({passed or 'no pipeline ran'})")
