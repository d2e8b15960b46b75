"""`penstock dashboard`: serves pages that show a worker in a browser."""

import sys
import time
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.control import Control
from rich.segment import ControlType

from penstock.cli.connect import DataOption, WorkerOption, member_address, report_note
from penstock.cli.dashboard_process import check_installed
from penstock.client.credentials import OWN_DATA
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
    folder: Annotated[
        Path | None,
        typer.Option(
            "--folder",
            metavar="DIR",
            help="Where the files of functions are that a changed application names. "
            "Default: where those of the deployed one are, or above.",
            show_default=False,
        ),
    ] = None,
    beside: Annotated[bool, typer.Option("--beside", hidden=True)] = False,
) -> None:
    """Show a worker or a cluster in a browser, until Ctrl-C.

    On a terminal it prints a link that works once, and logs you in as the owner
    of the worker. Others log in with their own tokens, and see and do what those
    allow. Elsewhere, as in a log, it prints the address alone.
    """
    if not is_loopback(host) and tls_cert is None:
        raise RequestError(
            f"browsers would send tokens to {host} without TLS",
            "Use --tls-cert and --tls-key, or a loopback host.",
        )
    check_installed()
    from penstock.dashboard.server import DashboardSettings, serve  # here: it takes a second to import

    address, place = _found(worker, data, _START_SECONDS_MAX if wait else 0.0)
    settings = DashboardSettings(
        address,
        host,
        port,
        tuple(allow_host or ()),
        None if tls_cert is None else str(tls_cert),
        None if tls_key is None else str(tls_key),
        has_key=sys.stderr.isatty(),  # logs are read by others
        find=None if place is None else lambda: member_address(None, place)[0],
        folder=None if folder is None else folder.absolute(),
    )
    serve(settings, partial(_print, has_key=settings.has_key, is_beside=beside))


def _found(worker: str | None, data: Path | None, seconds: float) -> tuple[str, Path | None]:
    """The worker's HTTP address, and the directory that has it after a restart, too; None if another one was named."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            address, note = member_address(worker, data)
        except Unavailable:
            if time.monotonic() >= deadline:
                raise
            time.sleep(_LOOK_SECONDS)
            continue
        if note:
            report_note(note)
        is_own = worker is None and not note
        return address, data or (OWN_DATA if is_own else None)


def _print(url: str, *, has_key: bool, is_beside: bool) -> None:
    """Beside penstock run, which may be showing a progress line: this takes its place, and it is drawn again below."""
    console = Console(stderr=True, highlight=False)
    if not has_key:
        owner = 'the owner has it in the file "token" in the worker\'s data directory'
        console.print(f"dashboard: {url} (log in with a token: {owner})", markup=False, soft_wrap=True)
        return
    if not is_beside:
        console.print(f"dashboard: {url}", soft_wrap=True)
        console.print("The link works once. Ctrl-C ends the dashboard; the worker keeps running.")
        return
    console.control(Control((ControlType.CARRIAGE_RETURN,), (ControlType.ERASE_IN_LINE, 2)))
    console.print(f"dashboard: {url} (this link works once)", soft_wrap=True)
