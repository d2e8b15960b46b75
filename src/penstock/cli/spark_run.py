"""Runs pipelines on Spark for `penstock run`, shown on the terminal, until they end or are stopped."""

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from rich.console import Console

from penstock.cli.class_archive import BackgroundCreation
from penstock.cli.embedded_worker import FoundWorker
from penstock.cli.open_windows import report_staying_open
from penstock.cli.run_setup import RunOptions, print_line, report_drained, stopped_by_signals

if TYPE_CHECKING:
    from penstock.application.driver import Follower
    from penstock.spark.pipelines import Pipeline
    from penstock.spark.run.runner import RunningPipeline


def run_on_spark(
    worker: FoundWorker,
    pipelines: "Sequence[Pipeline]",
    make_follower: "Callable[[], Follower]",
    options: RunOptions,
    console: Console,
    *,
    until_stopped: bool = False,
) -> int | None:
    """Start Spark and run the pipelines. The follower is made once Spark has started, and closed before Spark ends.
    Returns the number of the signal that ended the run, if any.
    """
    from penstock.cli.run_view import RunView, announced
    from penstock.spark.run.driver import spark_driver
    from penstock.spark.run.runner import Runner

    print_line(f"starting Spark, log in {options.spark_log} …")
    name = f"penstock: {', '.join(pipeline.name for pipeline in pipelines)}"
    with (
        announced(worker.http, pipelines) as announcement,
        BackgroundCreation() as creation,
        RunView(worker.http, console) as view,
        spark_driver(name, options.master, options.conf, options.spark_log) as spark,
    ):

        def show(running: "Sequence[RunningPipeline]") -> None:
            worker.check()
            announcement.look(running)
            creation.look(running, time.monotonic())
            view.show(running)

        with closing(make_follower()) as follower:
            runner = follower.runner = Runner(
                spark.session,
                pipelines,
                options.settings(worker.http, spark.session),
                show,
                change=follower.follow,
                driver=spark,
                until_stopped=until_stopped,
            )
            with stopped_by_signals(runner) as caught:
                runner.run(options.seconds_max)
            if follower.is_drained:
                report_drained(runner.pipelines)
                report_staying_open(worker.http, [running.pipeline.name for running in runner.pipelines], print_line)
        return caught[0] if caught else None
