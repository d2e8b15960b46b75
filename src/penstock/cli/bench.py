"""`penstock bench`: measure, beside others, in one run.

The benchmarks are imported by the commands that run them: no other command waits for their kernels.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias, TypeVar

import typer
from rich.console import Console

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.bench.report import Report

R = TypeVar("R")

Quick: TypeAlias = Annotated[bool, typer.Option("--quick", help="Fewer rounds; ends within a minute.")]
QuickOfMany: TypeAlias = Annotated[bool, typer.Option("--quick", help="Fewer rounds and events; a few minutes.")]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print one JSON object, for programs.")]
Directory: TypeAlias = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Where to write; its disk is what is measured.")
]
BytewaxPython: TypeAlias = Annotated[
    Path | None,
    typer.Option(metavar="PATH", help="A Python that has Bytewax; else this one, or that of .bench/bytewax."),
]
FlinkPython: TypeAlias = Annotated[
    Path | None,
    typer.Option(metavar="PATH", help="A Python that has PyFlink; else this one, or that of .bench/flink."),
]

_WIDTH = 140
"""Of a table that goes to a file or a pipe: no column is cut short."""

app = typer.Typer(help="Benchmarks: ratios inside one run.", no_args_is_help=True)


@app.callback()
def bench() -> None:
    """Benchmarks: ratios inside one run."""


@app.command()
def append(quick: Quick = False, as_json: AsJson = False, directory: Directory = None) -> None:
    """How fast events become durable: ours beside the bare loop, Redis Streams and NATS JetStream."""
    from penstock.bench import append as append_bench

    options = append_bench.Options(quick=quick, directory=directory)
    _show(append_bench.run(options, Console(stderr=True)), as_json)


@app.command()
def ingest(quick: Quick = False, as_json: AsJson = False, directory: Directory = None) -> None:
    """How fast sources' messages become durable: 10 streams and 100,000, beside appends, Redis and NATS."""
    from penstock.bench import ingest as ingest_bench

    options = ingest_bench.Options(quick=quick, directory=directory)
    _show(ingest_bench.run(options, Console(stderr=True)), as_json)


@app.command()
def spark(quick: Quick = False, as_json: AsJson = False, directory: Directory = None) -> None:
    """Our source and sink on Spark, beside its Parquet files and the smallest Python source and sink there are."""
    from penstock.bench import spark as spark_bench
    from penstock.bench import spark_report

    options = spark_bench.Options(quick=quick, directory=directory)
    report = spark_bench.run(options, Console(stderr=True))
    _tell(report, spark_report.to_json if as_json else None, spark_report.print_tables)


@app.command()
def pipeline(
    quick: QuickOfMany = False,
    as_json: AsJson = False,
    directory: Directory = None,
    bytewax_python: BytewaxPython = None,
    flink_python: FlinkPython = None,
) -> None:
    """From a program to results committed at a sink: count per key and minute, beside Bytewax and PyFlink."""
    from penstock.bench import pipeline as pipeline_bench
    from penstock.bench import pipeline_report

    options = pipeline_bench.Options(
        quick=quick, directory=directory, bytewax_python=bytewax_python, flink_python=flink_python
    )
    report = pipeline_bench.run(options, Console(stderr=True))
    _tell(report, pipeline_report.to_json if as_json else None, pipeline_report.print_tables)


@app.command()
def windows(quick: QuickOfMany = False, as_json: AsJson = False, directory: Directory = None) -> None:
    """Counts per key and window, 10,000 keys and 1,000,000, beside Spark's own windowed count."""
    from penstock.bench import windows as windows_bench
    from penstock.bench import windows_report

    options = windows_bench.Options(quick=quick, directory=directory)
    report = windows_bench.run(options, Console(stderr=True))
    _tell(report, windows_report.to_json if as_json else None, windows_report.print_tables)


@app.command()
def latency(quick: Quick = False, as_json: AsJson = False, directory: Directory = None) -> None:
    """From a message sent to its commit at a sink, at two rates, beside the smallest batch and its fsyncs."""
    from penstock.bench import latency as latency_bench
    from penstock.bench import latency_report

    options = latency_bench.Options(quick=quick, directory=directory)
    report = latency_bench.run(options, Console(stderr=True))
    _tell(report, latency_report.to_json if as_json else None, latency_report.print_tables)


def _show(report: Report, as_json: bool) -> None:
    from penstock.bench.report import print_table, to_json

    _tell(report, to_json if as_json else None, print_table)


def _tell(report: R, to_json: Callable[[R], str] | None, print_tables: Callable[[R, Console], None]) -> None:
    """As JSON if that is wanted, as tables otherwise."""
    if to_json is not None:
        typer.echo(to_json(report))
    else:
        print_tables(report, _console())


def _console() -> Console:
    console = Console()
    if not console.is_terminal:
        console.width = _WIDTH
    return console
