"""`penstock dashboard`: serves pages that show a worker in a browser."""

import time
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.control import Control
from rich.segment import ControlType

from penstock.cli.connect import DataOption, WorkerOption, member_to_read
from penstock.cli.dashboard_process import check_installed
from penstock.core.address import is_loopback
from penstock.core.errors import RequestError, Unavailable

PORT = 7180

_START_SECONDS_MAX = 600.0
"""A worker may have to read a large journal first."""
_LOOK_SECONDS = 0.3


def register(commands: typer.Typer) -> None:
    commands.command("dashboard")(dashboard)


def dashboard(
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="The port to listen on; 0 picks a free one.")
    ] = PORT,
    host: Annotated[str, typer.Option("--host", help="The address to listen on.")] = "127.0.0.1",
    allow_host: Annotated[
        list[str] | None,
        typer.Option("--allow-host", metavar="NAME", help="A name under which browsers reach it; may be repeated."),
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="A certificate for HTTPS, in PEM.", metavar="FILE")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its key.", metavar="FILE")] = None,
    worker: WorkerOption = None,
    data: DataOption = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for a worker that is about to start.")] = False,
    beside: Annotated[bool, typer.Option("--beside", hidden=True)] = False,
) -> None:
    """Show a worker or a cluster in a browser, until Ctrl-C.

    It prints a link that works once, and logs you in as the owner of the worker.
    Others log in with their own tokens, and see and do what those allow.
    """
    if not is_loopback(host) and tls_cert is None:
        raise RequestError(
            f"browsers would send tokens to {host} without TLS",
            "Use --tls-cert and --tls-key, or a loopback host.",
        )
    check_installed()
    from penstock.dashboard.server import DashboardSettings, serve  # here: it takes a second to import

    address = _found(worker, data, _START_SECONDS_MAX if wait else 0.0)
    files = (None if one is None else str(one) for one in (tls_cert, tls_key))
    settings = DashboardSettings(address, host, port, tuple(allow_host or ()), *files)
    serve(settings, partial(_print, is_beside=beside))


def _found(worker: str | None, data: Path | None, seconds: float) -> str:
    """The worker's HTTP address."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return member_to_read(worker, data)
        except Unavailable:
            if time.monotonic() >= deadline:
                raise
            time.sleep(_LOOK_SECONDS)


def _print(url: str, *, is_beside: bool) -> None:
    """Beside penstock run, which may be showing a progress line: this takes its place, and it is drawn again below."""
    console = Console(stderr=True, highlight=False)
    if not is_beside:
        console.print(f"dashboard: {url}", soft_wrap=True)
        console.print("The link works once. Ctrl-C ends the dashboard; the worker keeps running.")
        return
    if console.is_terminal:
        console.control(Control((ControlType.CARRIAGE_RETURN,), (ControlType.ERASE_IN_LINE, 2)))
    console.print(f"dashboard: {url} (this link works once)", soft_wrap=True)
