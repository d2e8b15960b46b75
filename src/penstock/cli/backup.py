"""`penstock backup` and `penstock restore`."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.table import Column, Table

from penstock.backup.archive import Archive, OnBytes, check_empty
from penstock.backup.archive import restore as restore_files
from penstock.backup.backup import BackupOptions, Taken, back_up, present_bytes
from penstock.backup.contents import CHECKPOINTS
from penstock.backup.manifest import Manifest
from penstock.cli.connect import JsonOption, local_worker
from penstock.client.credentials import OWN_DATA, ports_file
from penstock.core.errors import Damaged, RequestError, Unavailable
from penstock.core.sizes import show_size
from penstock.spark.run.checkpoints import local_path

DirectoryArgument = Annotated[Path, typer.Argument(metavar="DIR", help="The directory with the backups.")]


def register(app: typer.Typer) -> None:
    app.command("backup")(backup)
    app.command("restore")(restore)


def backup(
    directory: DirectoryArgument,
    data: Annotated[Path, typer.Option(metavar="DIR", help="The worker's data directory.")] = OWN_DATA,
    checkpoint: Annotated[
        str | None, typer.Option(metavar="DIR", help="The folder of the checkpoints (default: DATA/checkpoints).")
    ] = None,
    checkpoints: Annotated[bool, typer.Option(help="Include checkpoints in the backup.")] = True,
    secrets: Annotated[bool, typer.Option(help="Include the owner's token and the access list in the backup.")] = True,
    before: Annotated[
        str | None,
        typer.Option(
            metavar="COMMAND",
            help="A shell command that copies the sinks. Output delivered after it starts is retained, so that "
            "penstock sink rewind can deliver again what the copies lack.",
        ),
    ] = None,
    keep: Annotated[int | None, typer.Option(min=1, help="Delete all but the newest N backups.")] = None,
    list_only: Annotated[bool, typer.Option("--list", help="List the backups, and take none.")] = False,
    verify: Annotated[bool, typer.Option("--verify", help="Check every byte of the backups, and take none.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Back up a worker's data, while it runs or while it is stopped.

    Backups in one directory share what they have in common: each copies
    only what is new. An interrupted backup leaves the earlier ones as they
    were.
    """
    if list_only or verify:
        _show(Archive.to_read(directory), verifies=verify, as_json=as_json)
        return
    _check_outside(directory, data)
    options = BackupOptions(
        data=data,
        worker=_worker_on(data),
        checkpoints=checkpoint_folder(data, checkpoint) if checkpoints else None,
        has_secrets=secrets,
        before=lambda: _run(before),
        keep=keep,
    )
    with _progress("backing up", sum(present_bytes(options))) as on_bytes:
        taken = back_up(Archive(directory), options, on_bytes)
    _report(taken, as_json=as_json)


def _worker_on(data: Path) -> str | None:
    """None if no worker runs there. One that runs but does not answer still holds the directory's lock."""
    if not ports_file(data).exists():
        return None
    try:
        return local_worker(data).http
    except Unavailable:
        return None


def checkpoint_folder(data: Path, checkpoint: str | None) -> Path:
    """Raises RequestError for one that is not on this machine."""
    folder = data / CHECKPOINTS if checkpoint is None else local_path(checkpoint)
    if folder is None:
        raise RequestError(f"{checkpoint} is not on this machine", "Copy it yourself, and use --no-checkpoints.")
    return folder


def _check_outside(directory: Path, data: Path) -> None:
    if directory.absolute().resolve().is_relative_to(data.absolute().resolve()):
        raise RequestError(f"{directory} is inside {data}", "Store backups elsewhere, best on another disk.")


def _run(command: str | None) -> None:
    if command is not None and (code := subprocess.run(command, shell=True, check=False).returncode):  # noqa: S602
        raise RequestError(f"the --before command failed with exit code {code}", "No backup was taken.")


@contextmanager
def _progress(what: str, total: int) -> Iterator[OnBytes]:
    columns = (TextColumn(what), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=total)
        yield lambda count: progress.advance(task, count)


def _report(taken: Taken, *, as_json: bool) -> None:
    manifest = taken.manifest
    if as_json:
        summary = {"name": taken.name, "copied_bytes": taken.copied_bytes, "deleted": taken.deleted}
        typer.echo(json.dumps(_summary(manifest) | summary))
        return
    new = f"{show_size(taken.copied_bytes)} of {show_size(manifest.size)} copied, the rest was already there"
    typer.echo(f"{taken.name}: {new}")
    for name, epoch in manifest.pipelines.items():
        typer.echo(f"pipeline {name}: up to epoch {epoch}" if epoch >= 0 else f"pipeline {name}: no epoch yet")
    if taken.deleted:
        typer.echo(f"deleted: {', '.join(taken.deleted)}")


def _summary(manifest: Manifest) -> dict[str, object]:
    return {
        "taken_at": manifest.taken_at,
        "position": manifest.position,
        "bytes": manifest.size,
        "files": len(manifest.files),
        "pipelines": manifest.pipelines,
        "secrets": manifest.has_secrets,
        "version": manifest.version,
    }


def _show(archive: Archive, *, verifies: bool, as_json: bool) -> None:
    found = {name: archive.manifest(name) for name in archive.names()}
    if verifies:
        _verify(archive, found)
    if as_json:
        typer.echo(json.dumps([{"name": name, **_summary(one)} for name, one in found.items()]))
        return
    names = Column("backup", no_wrap=True, min_width=max(map(len, found)))  # whole: --at takes them
    table = Table(names, "size", "files", "position", "pipelines")
    for name, one in found.items():
        pipelines = ", ".join(f"{pipeline} {epoch}" for pipeline, epoch in one.pipelines.items())
        table.add_row(name, show_size(one.size), str(len(one.files)), str(one.position), pipelines)
    Console().print(table)
    if verifies:
        typer.echo("every checksum matches")


def _verify(archive: Archive, found: dict[str, Manifest]) -> None:
    """Raises Damaged, with all damaged files and the backups that have them."""
    files = {one.sha256: one for manifest in found.values() for one in manifest.files}
    damage: dict[str, Damaged] = {}
    with _progress("verifying", sum(one.size for one in files.values())) as on_bytes:
        for one in files.values():
            try:
                archive.copy(one, None, on_bytes)
            except Damaged as error:
                damage[one.sha256] = error
    if damage:
        affected = [name for name, manifest in found.items() if any(one.sha256 in damage for one in manifest.files)]
        texts = [*map(str, damage.values()), f"this affects {', '.join(affected)}"]
        raise Damaged("\n".join(texts), next(iter(damage.values())).hint)


def restore(
    directory: DirectoryArgument,
    data: Annotated[Path, typer.Option(metavar="DIR", help="The new data directory.")] = OWN_DATA,
    at: Annotated[
        str | None, typer.Option(metavar="NAME", help="Which backup (penstock backup DIR --list). Default: the newest.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Restore a backup into a new data directory. Every checksum is verified first.

    Shut the original worker down permanently before you start the restored one:
    both would deliver to the same sinks.
    """
    archive = Archive.to_read(directory)
    name = at or archive.names()[-1]
    manifest = archive.manifest(name)
    check_empty(data)
    with _progress("restoring", manifest.size) as on_bytes:
        restore_files(archive, manifest, data, on_bytes)
    if as_json:
        typer.echo(json.dumps({"name": name, "data": str(data), **_summary(manifest)}))
        return
    typer.echo(f"{name} is restored to {data}: {show_size(manifest.size)}, taken at {manifest.taken_at}")
    if not manifest.has_secrets:
        typer.echo("it has no token and no access list: the worker generates a new token when it starts")
    typer.echo(f"start it with: penstock worker --data {data}")
