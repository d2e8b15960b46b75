"""`penstock bench`: measure, beside others, in one run."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from penstock.bench import append as append_bench

app = typer.Typer(help="Benchmarks: ratios inside one run.", no_args_is_help=True)


@app.callback()
def bench() -> None:
    """Benchmarks: ratios inside one run."""


@app.command()
def append(
    quick: Annotated[bool, typer.Option("--quick", help="Fewer rounds; ends within a minute.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, for programs.")] = False,
    directory: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where to write; its disk is what is measured.")
    ] = None,
) -> None:
    """How fast events become durable: ours beside the bare loop, Redis Streams and NATS JetStream."""
    options = append_bench.Options(quick=quick, directory=directory)
    report = append_bench.run(options, Console(stderr=True))
    if as_json:
        typer.echo(append_bench.to_json(report))
    else:
        append_bench.print_table(report, Console())
