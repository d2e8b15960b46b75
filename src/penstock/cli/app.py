"""Combines the commands, and turns errors into one sentence and a hint."""

import sys

import typer
from rich.console import Console
from rich.text import Text

from penstock import __version__
from penstock.cli import (
    access,
    application,
    check,
    connectors,
    dead_letters,
    epoch,
    pipeline,
    run,
    scaffold,
    segment,
    send,
    sink,
    source,
    status,
    worker,
)
from penstock.core.errors import PenstockError

app = typer.Typer(
    name="penstock",
    help="Durable event streams into and out of Spark, exactly once.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
worker.register(app)
send.register(app)
run.register(app)
check.register(app)
connectors.register(app)
scaffold.register(app)
status.register(app)
application.register(app)
app.add_typer(scaffold.app, name="new")
app.add_typer(segment.app, name="segment")
app.add_typer(source.app, name="source")
app.add_typer(pipeline.app, name="pipeline")
app.add_typer(sink.app, name="sink")
app.add_typer(epoch.app, name="epoch")
app.add_typer(dead_letters.app, name="dead-letters")
app.add_typer(access.app, name="access")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"penstock {__version__}")
        raise typer.Exit


@app.callback()
def options(
    _version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    pass


def main() -> None:
    try:
        app()
    except PenstockError as error:
        _complain(str(error), error.hint)
        sys.exit(1)
    except OSError as error:
        _complain(str(error), "")
        sys.exit(1)


def _complain(message: str, hint: str) -> None:
    console = Console(stderr=True)
    console.print(Text.assemble(("error: ", "bold red"), message), soft_wrap=True)
    if hint:
        console.print(Text.assemble(("hint: ", "bold"), hint), soft_wrap=True)
