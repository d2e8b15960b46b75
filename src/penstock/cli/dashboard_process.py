"""`--dashboard-port` of penstock worker and penstock run: the dashboard in a process beside them."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Annotated

import typer

from penstock.core.plugins import NotInstalled

DashboardPortOption = Annotated[
    int | None,
    typer.Option(
        "--dashboard-port",
        min=0,
        max=65535,
        metavar="PORT",
        help="Also serve the dashboard on this loopback port; 0 picks a free one. Needs the extra dashboard.",
        show_default=False,
    ),
]


def check_installed() -> None:
    """Raises NotInstalled."""
    if find_spec("nicegui") is None:
        raise NotInstalled(
            "the dashboard needs nicegui, which is not installed",
            "Install it: pip install 'penstock-streams[dashboard]'",
        )


@contextmanager
def dashboard_beside(port: int | None, *options: str) -> Iterator[None]:
    """While the body runs, serves the dashboard in a process of its own, so that watching a worker does not slow it
    down. `options`: which worker, that may still have to start, and what else is known. Without a port,
    nothing is served.
    """
    if port is None:
        yield
        return
    check_installed()
    from penstock.cli.embedded_worker import end_with_parent  # here: most workers have no dashboard

    command = [sys.executable, "-m", "penstock", "dashboard", *options, "--port", str(port), "--wait", "--beside"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=end_with_parent) as process:  # noqa: PLW1509
        try:
            yield
        finally:
            process.terminate()
