"""`penstock run`: the pipelines of a Python file, or the application in a YAML file, with all they need."""

import signal
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.dashboard_process import DashboardPortOption
from penstock.cli.embedded_worker import FoundWorker
from penstock.cli.event_times import (
    EventTimeOption,
    IdleTimeoutOption,
    MaxDisorderOption,
    WhenAllIdleOption,
    with_event_times,
)
from penstock.cli.former_pipelines import PruneOption
from penstock.cli.open_windows import report_staying_open
from penstock.cli.pipeline_sinks import SinkOption, bound_to, check_sinks, wait_for_delivery
from penstock.cli.run_setup import (
    AdvertisedOption,
    ConfOption,
    MasterOption,
    Place,
    RunOptions,
    SharedCheckpointOption,
    check_cluster_options,
    conf_of,
    end_by_sigterm,
    let_workers_import_from,
    milliseconds,
    print_line,
    worker_of,
)
from penstock.cli.run_summary import summarized
from penstock.cli.worker_options import StoreOption, TakeOverOption
from penstock.client.coordinator.client import ApplicationClient
from penstock.core.errors import RequestError
from penstock.core.logs import set_up_logging
from penstock.ingest.settings import SourceSettings
from penstock.protocol.api.deployment import Deployed, Deployment
from penstock.spark.pipelines import Pipeline
from penstock.spark.run.failures import load_pipelines
from penstock.spark.run.java import check_installed, use_java
from penstock.spark.run.session import LOCAL

_NOT_FOR_APPLICATIONS = {
    "--pipeline": "An application runs all its pipelines: remove a link, or change the instances of the binding.",
    "--sink": "Name a connector in the file, and link the pipeline to it.",
    "--event-time": "Set it at the connector in the file: event_time: {field: ts}",
    "--max-disorder": "Set it at the connector in the file: watermark: {max_disorder: 10s}",
    "--idle-timeout": "Set it at the connector in the file: watermark: {idle_timeout: 10s}",
    "--when-all-idle": "Set it at the connector in the file: watermark: {when_all_idle: clock}",
}


def register(app: typer.Typer) -> None:
    app.command("run")(run)


def run(
    file: Annotated[Path, typer.Argument(help="An application (YAML), or a Python file with @pipeline functions.")],
    pipeline: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Only this one; may be repeated.")] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="The worker's data; a worker is started unless one runs there. Default: penstock-data."
        ),
    ] = None,
    worker: Annotated[
        str | None,
        typer.Option(envvar="PENSTOCK_WORKER", metavar="HOST:PORT", help="A running worker instead: its HTTP address."),
    ] = None,
    store: StoreOption = None,
    take_over: TakeOverOption = False,
    sink: SinkOption = None,
    retention: Annotated[
        str | None, typer.Option(help="Retention of the worker that is started: complete, keep, a time or a size.")
    ] = None,
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure",
            help="For the worker that is started: let servers of the application listen beyond loopback without TLS or "
            "auth.",
        ),
    ] = False,
    event_time: EventTimeOption = None,
    max_disorder: MaxDisorderOption = None,
    idle_timeout: IdleTimeoutOption = None,
    when_all_idle: WhenAllIdleOption = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Directory of the checkpoints. Default: DATA/checkpoints."),
    ] = None,
    trigger: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Interval between the starts of two epochs, like 1s. Default: no pause."),
    ] = None,
    available_now: Annotated[
        bool, typer.Option("--available-now", help="Process what is stored now, then stop.")
    ] = False,
    for_time: Annotated[
        str | None, typer.Option("--for", metavar="TIME", help="Stop after this time, like 30s.")
    ] = None,
    prune: PruneOption = False,
    master: MasterOption = LOCAL,
    conf: ConfOption = None,
    advertised_worker: AdvertisedOption = None,
    shared_checkpoint: SharedCheckpointOption = False,
    dashboard_port: DashboardPortOption = None,
) -> None:
    """Run an application, or the pipelines of a Python file, on Spark, until Ctrl-C.

    Starts what is not running: a worker on DATA, and Spark. Each epoch takes
    effect exactly once, however often the run is stopped or killed.
    """
    times = {
        "--event-time": event_time,
        "--max-disorder": max_disorder,
        "--idle-timeout": idle_timeout,
        "--when-all-idle": when_all_idle,
    }
    run_it = _runner_of(file, {"--pipeline": pipeline, "--sink": sink, **times})
    set_up_logging()
    check_installed()
    use_java()
    seconds = milliseconds(for_time)
    place = Place.of(data, worker, checkpoint)
    check_cluster_options(master, place.checkpoints, advertised=advertised_worker, is_shared=shared_checkpoint)
    options = RunOptions(
        place=place,
        worker=worker,
        store=store,
        worker_options=[
            *_bucket_options(store, worker, take_over=take_over),
            *(["--insecure"] if insecure else []),
            *_worker_options(retention, times),
        ],
        trigger_ms=milliseconds(trigger),
        available_now=available_now,
        seconds_max=None if seconds is None else seconds / 1000,
        master=master,
        conf=conf_of(conf or []),
        prune=prune,
        advertised=advertised_worker,
        dashboard_port=dashboard_port,
        folder=file.absolute().parent,
    )
    signal.signal(signal.SIGTERM, end_by_sigterm)
    if run_it(file, pipeline or [], sink or [], options) == signal.SIGINT:
        raise typer.Exit(130)


Run = Callable[[Path, Sequence[str], Sequence[str], RunOptions], int | None]
"""Runs pipelines and sinks of a file, by name. Returns the number of the signal that ended it, if any."""


def _runner_of(file: Path, given: Mapping[str, object]) -> Run:
    """Raises RequestError for a file that cannot be run, and for an option that makes no sense for an application."""
    match file.suffix.lower():
        case ".py":
            return _run_file
        case ".yaml" | ".yml":
            for name, value in given.items():
                if value:
                    raise RequestError(f"{name} cannot be used with an application", _NOT_FOR_APPLICATIONS[name])
            return _run_application
    raise RequestError(
        f"penstock run takes a .py or a .yaml file, not {file}",
        "Name a Python file with @pipeline functions, or an application in YAML.",
    )


def _run_application(file: Path, _: Sequence[str], __: Sequence[str], options: RunOptions) -> int | None:

    from penstock.cli.run_application import run_application  # here: other commands need no Spark

    return run_application(file, options)


def _run_file(file: Path, names: Sequence[str], sinks: Sequence[str], options: RunOptions) -> int | None:
    """Returns the number of the signal that ended it, if any."""
    load = partial(_load, file, tuple(names), tuple(sinks))
    pipelines = load()
    check_sinks(pipelines, worker_is_here=options.worker is None)
    let_workers_import_from([file.absolute().parent])
    names = [pipeline.name for pipeline in pipelines]
    with worker_of(options) as found, summarized(found.http, names, print_line):
        number = _run(found, pipelines, load, options)
        if options.available_now and number is None:
            wait_for_delivery(found.http, [pipeline.name for pipeline in pipelines if pipeline.sinks], print_line)
            report_staying_open(found.http, names, print_line)
    return number


def _open_for_programs(worker: FoundWorker) -> Deployed:
    """What is deployed. After `penstock stop`, sources may not send until something runs again, which it does now."""
    with ApplicationClient(worker.http) as client:
        found = client.application()
        if found.state != "drained":
            return found
        if found.deployment != Deployment():
            named = f"{found.name}, which is deployed here," if found.name else "the application deployed here"
            print_line(f"{named} stays stopped; run its file again to start it")
        client.apply(Deployment())
        return client.application()


def _chosen(pipelines: list[Pipeline], names: Sequence[str]) -> list[Pipeline]:
    known = [pipeline.name for pipeline in pipelines]
    for name in names:
        if name not in known:
            raise RequestError(f"pipeline {name!r} not found in the file", f"It has: {', '.join(known)}.")
    return [pipeline for pipeline in pipelines if not names or pipeline.name in names]


def _bucket_options(store: str | None, worker: str | None, *, take_over: bool) -> list[str]:
    """For the worker to start. Raises RequestError."""
    if store is not None and worker is not None:
        raise RequestError(
            "--store and --worker cannot be used together: a running worker has its journal where it was started with",
            "Use only one of them (PENSTOCK_STORE and PENSTOCK_WORKER count, too).",
        )
    if store is None and take_over:
        raise RequestError("--take-over is for a journal in a bucket", "Add --store URL.")
    return [] if store is None else [f"--store={store}", "--shard=0", *(["--take-over"] if take_over else [])]


def _worker_options(retention: str | None, times: Mapping[str, list[str] | None]) -> list[str]:
    """Options of the worker to start. Raises RequestError."""
    given = {option: values or [] for option, values in times.items()}
    checked = ("--max-disorder", "--idle-timeout", "--when-all-idle", "--event-time")
    with_event_times(SourceSettings(), *(given[option] for option in checked))
    options = [] if retention is None else [f"--retention={retention}"]
    return options + [f"{option}={value}" for option, values in given.items() for value in values]


def _load(file: Path, names: Sequence[str], sinks: Sequence[str], _: Deployed | None = None) -> list[Pipeline]:
    """The pipelines of a file, whatever is deployed."""
    from penstock.spark.run.runner import carry_by_value  # here: other commands need no Spark

    pipelines = bound_to(_chosen(load_pipelines(file), names), sinks)
    carry_by_value(pipelines)
    return pipelines


def _run(
    worker: FoundWorker,
    pipelines: Sequence[Pipeline],
    load: Callable[[Deployed], list[Pipeline]],
    options: RunOptions,
) -> int | None:
    """Returns the number of the signal that ended it, if any."""
    from penstock.application.driver import Follower
    from penstock.cli.spark_run import SparkRun, Start
    from penstock.cli.spark_successor import run_on_spark

    run = SparkRun(worker=worker.http, load=load, follow=Follower, options=options)
    return run_on_spark(worker, run, Start(pipelines, _open_for_programs(worker)))
