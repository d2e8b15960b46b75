"""`penstock check --master URL`: what the executors of a Spark cluster have, and whether they reach the worker."""

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from penstock.cli.connect import worker_to_read
from penstock.cli.run_setup import executor_access
from penstock.cli.texts import printable
from penstock.cli.waiting import waiting
from penstock.core.errors import Unavailable
from penstock.spark.run.session import check_master

if TYPE_CHECKING:
    from penstock.spark.run.executors import Checked, ExecutorReport

_NO_WORKER = "No worker was found: whether executors reach it was not checked. Name it with --worker or --data."

_WIDTH = 140
"""For output to a file or a pipe, so that no column is cut short."""


def check_cluster(
    master: str,
    conf: Mapping[str, str],
    worker: str | None,
    data: Path | None,
    advertised: str | None,
    *,
    as_json: bool,
) -> None:
    """Exits with 1 if an executor cannot run tasks. Raises SparkNotStarted, RequestError."""
    check_master(master)
    from penstock.spark.run.driver import spark_driver  # here: other commands need no Spark
    from penstock.spark.run.executors import check_executors
    from penstock.spark.run.java import check_installed, use_java

    check_installed()
    use_java()
    address = _worker(worker, data)
    with (
        _log_file() as log,
        waiting("starting Spark …") as waits_for,
        spark_driver("penstock check", master, conf, log) as spark,
    ):
        waits_for("waiting for the executors …")
        access = None if address is None else executor_access(master, advertised or address, spark)
        checked = check_executors(spark, address, access)
    show = _print_json if as_json else _print
    show(checked)
    if checked.differences():
        raise typer.Exit(1)


@contextmanager
def _log_file() -> Iterator[Path]:
    """Of Spark. Deleted at the end, unless Spark could not be used: then the error names it."""
    from penstock.spark.run.driver import SparkNotStarted

    folder = Path(mkdtemp(prefix="penstock-check-"))
    is_kept = False
    try:
        yield folder / "spark.log"
    except SparkNotStarted:
        is_kept = True
        raise
    finally:
        if not is_kept:
            shutil.rmtree(folder, ignore_errors=True)


def _worker(worker: str | None, data: Path | None) -> str | None:
    """None if the user has named none, and none is found."""
    try:
        return worker_to_read(worker, data)
    except Unavailable:
        if worker is not None or data is not None:
            raise
        return None


def _print_json(checked: "Checked") -> None:
    found = {
        "python": checked.python,
        "worker": checked.worker or None,
        "driver": checked.ours,
        "executors": [one.as_json(checked.ours, checked.python) for one in checked.reports],
    }
    typer.echo(json.dumps(found, indent=2))


def _print(checked: "Checked") -> None:
    console = Console(highlight=False)
    console = console if console.is_terminal else Console(width=_WIDTH, highlight=False)
    table = Table("executor", "host", *checked.ours, "worker", "clock")
    table.add_row("driver", "", *checked.ours.values(), checked.worker or "not checked", "")
    for one in checked.reports:
        table.add_row(*(escape(printable(cell)) for cell in _cells(one, checked)))
    console.print(table)
    if not checked.worker:
        console.print(_NO_WORKER)
    for difference in checked.differences():
        console.print(f"[bold red]error:[/] {escape(printable(difference))}", soft_wrap=True)
    if checked.differences():
        console.print(checked.hint(), markup=False, soft_wrap=True)


def _cells(one: "ExecutorReport", checked: "Checked") -> list[str]:
    versions = [one.versions.get(name) or "missing" for name in checked.ours]
    reached = "not checked" if one.http is None else "not reached" if one.http or one.segment else "reached"
    return [one.executor, one.host, *versions, reached, f"{one.clock_seconds:+.0f} s" if one.clock_seconds else "ok"]
