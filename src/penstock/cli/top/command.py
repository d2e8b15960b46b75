"""The command `penstock top`."""

import sys
from importlib.util import find_spec

import typer

from penstock.cli.connect import DataOption, WorkerOption
from penstock.core.errors import RequestError
from penstock.core.plugins import NotInstalled


def register(commands: typer.Typer) -> None:
    commands.command("top")(top)


def top(worker: WorkerOption = None, data: DataOption = None) -> None:
    """Show a worker live in the terminal: what blocks progress, pipelines, sources, sinks and epochs.

    Arrow keys move, Enter opens the selected line, Esc goes back, ? shows all
    keys, q quits. If no worker is running, it waits for one.
    """
    check_installed()
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise RequestError("penstock top needs a terminal", "For a file or a program: penstock status [--json]")
    from penstock.cli.top.feed import Feed  # here: it takes a while to import
    from penstock.cli.top.screen import TopApp

    app = TopApp(Feed(worker, data))
    app.run()
    if app.return_code:
        raise typer.Exit(app.return_code)


def check_installed() -> None:
    """Raises NotInstalled."""
    if find_spec("textual") is None:
        raise NotInstalled(
            "penstock top needs textual, which is not installed",
            "Install it: pip install 'penstock-streams[top]', or run `penstock status --watch`.",
        )
