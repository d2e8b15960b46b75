"""Combines the commands, and turns errors into one sentence and a hint."""

import importlib
import sys
from typing import Any

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperGroup
from typer.main import get_group

from penstock import __version__
from penstock.cli.examples import add_examples
from penstock.core.errors import PenstockError

_MODULES = {
    "worker": "worker",
    "send": "send",
    "run": "run",
    "check": "check",
    "explain": "explain",
    "infer": "infer",
    "connectors": "connectors",
    "schema": "connectors",
    "init": "scaffold",
    "doctor": "doctor",
    "status": "status",
    "top": "top.command",
    "dashboard": "dashboard",
    "tail": "tail",
    "apply": "application",
    "stop": "application",
    "pause": "application",
    "resume": "application",
    "log-level": "application",
    "new": "scaffold",
    "conformance": "conformance",
    "segment": "segment",
    "source": "source",
    "pipeline": "pipeline",
    "sink": "sink",
    "epoch": "epoch",
    "dead-letters": "dead_letters",
    "access": "access",
    "backup": "backup",
    "restore": "backup",
    "store": "store",
    "cluster": "cluster",
    "upgrade": "upgrade",
}
"""The module of `penstock.cli` that registers each command, in the order of `penstock --help`."""


class _Commands(TyperGroup):
    """Imports a command's module when the command is called: importing all of them takes most of a second."""

    def list_commands(self, ctx: Any) -> list[str]:
        for name in _MODULES:
            self.get_command(ctx, name)
        return list(_MODULES)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in _MODULES:
            self.list_commands(ctx)  # the closest name is looked up among them
        elif cmd_name not in self.commands:
            commands = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode="rich")
            importlib.import_module(f"penstock.cli.{_MODULES[cmd_name]}").register(commands)
            for name, command in get_group(commands).commands.items():
                add_examples(command, name)
                self.commands[name] = command
        return self.commands.get(cmd_name)


app = typer.Typer(
    name="penstock",
    help="Durable event streams into and out of Spark, exactly once.",
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


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
