"""`penstock segment verify`: read every checksum on the disk."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from penstock.cli.connect import JsonOption
from penstock.cli.sizes import show_size
from penstock.core.errors import RequestError
from penstock.store.real_files import RealFiles
from penstock.store.verify import VerifyReport
from penstock.store.verify import verify as verify_files


def verify(
    data: Annotated[Path, typer.Option(metavar="DIR", help="The worker's data directory.")] = Path("penstock-data"),
    as_json: JsonOption = False,
) -> None:
    """Read every checksum, also beside a running worker; exit with 1 if one does not hold."""
    journal = data / "journal"
    if not journal.is_dir():
        raise RequestError(f"there is no journal in {data}", "Give the worker's data directory: --data DIR")
    report = _with_progress(RealFiles(journal, create=False))
    if as_json:
        typer.echo(json.dumps(asdict(report)))
    else:
        _print(report)
    if not report.is_sound:
        raise typer.Exit(1)


def _with_progress(files: RealFiles) -> VerifyReport:
    columns = (TextColumn("verifying"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=None)
        return verify_files(files, lambda done, total: progress.update(task, completed=done, total=total))


def _print(report: VerifyReport) -> None:
    console = Console(highlight=False)
    console.print(f"{report.chapters} files, {report.records} records, {show_size(report.bytes_read)} read")
    if report.torn:
        console.print(f"the tail is torn, or being written: {report.torn}; nothing acknowledged is in it")
    for problem in report.problems:
        console.print(f"[bold red]damaged:[/] {escape(str(problem))}", soft_wrap=True)
    if report.is_sound:
        console.print("[green]every checksum holds[/]")
