"""`penstock dashboard`: serves pages that show a worker in a browser."""

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from penstock.cli.connect import DataOption, WorkerOption, member_to_read
from penstock.core.address import is_loopback
from penstock.core.errors import RequestError
from penstock.core.plugins import NotInstalled

if TYPE_CHECKING:
    from penstock.dashboard.server import DashboardSettings

PORT = 7180

_EXAMPLES = """
[bold]Examples[/]

penstock dashboard

penstock dashboard --worker https://worker.example.com:7102 --port 8000
"""


def register(commands: typer.Typer) -> None:
    commands.command("dashboard", epilog=_EXAMPLES)(dashboard)


def dashboard(
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Where it listens; 0 picks a free one.")] = PORT,
    host: Annotated[str, typer.Option("--host", help="The address it listens on.")] = "127.0.0.1",
    allow_host: Annotated[
        list[str] | None,
        typer.Option("--allow-host", metavar="NAME", help="A name under which browsers reach it; may be repeated."),
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="A certificate for HTTPS, in PEM.", metavar="FILE")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its key.", metavar="FILE")] = None,
    worker: WorkerOption = None,
    data: DataOption = None,
) -> None:
    """Show a worker or a cluster in a browser, until Ctrl-C.

    It prints a link that logs its first user in as the owner of the worker.
    Others log in with their own tokens, and see and do what those allow.
    """
    if not is_loopback(host) and tls_cert is None:
        raise RequestError(
            f"the dashboard would send tokens to {host} without TLS",
            "Use --tls-cert and --tls-key, or a loopback host.",
        )
    settings = _settings(member_to_read(worker, data), host, port, allow_host or [], tls_cert, tls_key)
    from penstock.dashboard.server import serve  # here: it takes a second to import

    serve(settings, _print)


def _settings(
    worker: str, host: str, port: int, allow_hosts: list[str], cert: Path | None, key: Path | None
) -> "DashboardSettings":
    try:
        from penstock.dashboard.server import DashboardSettings
    except ImportError as error:
        raise NotInstalled(
            f"the dashboard needs {error.name}, which is not installed",
            "Install it: pip install 'penstock-streams[dashboard]'",
        ) from None
    names = tuple(allow_hosts)
    return DashboardSettings(worker, host, port, names, cert and str(cert), key and str(key))  # type: ignore[arg-type]


def _print(url: str) -> None:
    console = Console(stderr=True, highlight=False)
    console.print(f"dashboard: {url}", soft_wrap=True)
    console.print("The link works once. Ctrl-C ends the dashboard; the worker goes on.")


def start_dashboard(worker: str, port: int) -> "subprocess.Popen[bytes]":
    """In a process of its own, so that nobody who looks at a worker slows it down."""
    command = [sys.executable, "-m", "penstock", "dashboard", "--worker", worker, "--port", str(port)]
    return subprocess.Popen(command)
