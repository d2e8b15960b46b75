"""`penstock run app.yaml`: a whole application, its connectors in a worker and its pipelines on Spark."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.application.config.loading import load
from penstock.application.config.types import KnownTypes
from penstock.application.driver import Driver, carry_by_value
from penstock.application.functions import pipelines_of
from penstock.cli.embedded_worker import FoundWorker
from penstock.cli.former_pipelines import settle_former
from penstock.cli.open_windows import report_staying_open
from penstock.cli.pipeline_sinks import wait_for_delivery
from penstock.cli.run_setup import (
    RunOptions,
    let_workers_import_from,
    print_line,
    worker_of,
)
from penstock.cli.run_summary import summarized
from penstock.client.coordinator.client import ApplicationClient
from penstock.protocol.api.deployment import PASSTHROUGH, Deployed, Deployment
from penstock.protocol.api.status import ApplicationStatus

if TYPE_CHECKING:
    from penstock.spark.pipelines import Pipeline


def run_application(file: Path, options: RunOptions) -> int | None:
    """Check the file, deploy it in the worker, run its pipelines, and follow changes that are applied, until it is
    stopped. Returns the number of the signal that ended it, if any.
    """
    loaded = load(file, KnownTypes(), os.environ, leaves_unset=options.worker is not None)
    for note in loaded.notes:
        print_line(f"note: {note}")
    deployment = loaded.deployment
    pipelines = _pipelines(deployment)
    let_workers_import_from([file.absolute().parent, *_folders(deployment)])
    stdio = any(spec.type == "stdio" for spec in deployment.connectors.values())
    with worker_of(options, stdio=stdio) as worker:
        if stdio and worker.process is None:
            print_line("stdio is the terminal of the worker, which was already running, not of this command")
        with ApplicationClient(worker.http) as client:
            _report_replaced(client.status().application, file.name)
            before = client.application().deployment.pipelines
            client.apply(deployment, file.name)
            settle_former(worker.http, before, prune=options.prune, ask=True, report=print_line)
            first = client.application()
        names = [pipeline.name for pipeline in pipelines]
        with summarized(worker.http, names, print_line):
            number = _run(worker, pipelines, first, options)
            if options.available_now and number is None:
                wait_for_delivery(worker.http, [pipeline.name for pipeline in pipelines if pipeline.sinks], print_line)
                report_staying_open(worker.http, names, print_line)
    return number


def _report_replaced(running: ApplicationStatus | None, name: str) -> None:
    """A worker that is already running may run another application."""
    if running is not None and running.revision and running.name not in ("", name):
        print_line(f"{name} replaces {running.name} (revision {running.revision}), which is deployed there")


def _folders(deployment: Deployment) -> list[Path]:
    files = (spec.spark.rpartition(":")[0] for spec in deployment.pipelines.values() if spec.spark != PASSTHROUGH)
    return [Path(file).parent for file in files]


def _run(worker: FoundWorker, pipelines: "Sequence[Pipeline]", first: Deployed, options: RunOptions) -> int | None:
    from penstock.cli.spark_run import SparkRun, Start
    from penstock.cli.spark_successor import run_on_spark

    run = SparkRun(worker=worker.http, load=_deployed, follow=Driver, options=options, is_application=True)
    return run_on_spark(worker, run, Start(pipelines, first))


def _deployed(deployed: Deployed) -> "list[Pipeline]":
    return _pipelines(deployed.deployment)


def _pipelines(deployment: Deployment) -> "list[Pipeline]":
    pipelines = pipelines_of(deployment)
    for pipeline in pipelines:
        carry_by_value(pipeline)
    return pipelines
