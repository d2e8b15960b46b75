"""`penstock store`: copy and verify a worker's data, in a directory or in a bucket."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from penstock.backup.contents import CHECKPOINTS
from penstock.backup.mirrored_checkpoints import manifests_in, verify_checkpoints
from penstock.backup.places import BucketPlace, Directory, Place, new_cache, place
from penstock.backup.store_copy import Copied, Stage, copy_store, only_shard
from penstock.cli.connect import JsonOption
from penstock.cli.segment import print_report
from penstock.core.sizes import show_size
from penstock.store.bucket_log import reading_threads
from penstock.store.bucket_verify import BucketReport, verify_bucket
from penstock.store.verify import VerifyReport
from penstock.store.verify import verify as verify_files

_ORPHANS_SHOWN = 20

StoreArgument = Annotated[
    str, typer.Argument(metavar="STORE", help="A worker's data directory, or a bucket: s3://bucket/prefix.")
]

app = typer.Typer(help="Copy and verify a worker's data, in a directory or in a bucket.", no_args_is_help=True)


def register(commands: typer.Typer) -> None:
    commands.add_typer(app, name="store")


# `penstock store copy`: move a journal between disk and bucket.


@app.command()
def copy(
    source: Annotated[str, typer.Argument(metavar="FROM", help="A data directory, or a bucket: s3://bucket/prefix.")],
    target: Annotated[str, typer.Argument(metavar="TO", help="The same. It must be empty.")],
    secrets: Annotated[bool, typer.Option(help="Copy the owner's token and the access list, too.")] = True,
    as_json: JsonOption = False,
) -> None:
    """Copy a worker's data to an empty directory or bucket, and check the copy.

    The worker must be stopped. If the command is interrupted, run it again:
    it continues. No worker starts on a copy that is incomplete.
    """
    old, new = place(source), place(target)
    if isinstance(old, BucketPlace):
        old = only_shard(old)
    try:
        with _progress() as stage:
            copied = copy_store(old, new, secrets=secrets, stage=stage)
    except KeyboardInterrupt:
        typer.echo("interrupted: the same command continues the copy", err=True)
        raise
    if as_json:
        typer.echo(json.dumps({"from": old.name, "to": new.name, **asdict(copied)}))
    else:
        _print_copied(old, new, copied)


def _print_copied(source: Place, new: Place, copied: Copied) -> None:
    old = source.name
    kept = f", {show_size(copied.kept_bytes)} of it by an earlier try" if copied.kept_bytes else ""
    typer.echo(f"{old} is copied to {new.name}: {copied.chapters} chapters, {show_size(copied.bytes)}{kept}")
    if copied.plain_files:
        typer.echo(f"with {', '.join(copied.plain_files)}")
    if copied.checkpoints:
        typer.echo(f"with the checkpoints of {', '.join(copied.checkpoints)}")
    if copied.without_checkpoint:
        typer.echo(_advice(source, copied.without_checkpoint))
    option = "--data" if isinstance(new, Directory) else "--store"
    typer.echo(f"start it with: penstock worker {option} {new.name}")
    typer.echo("Do not start a worker on the original again: both would deliver to the same sinks.")


def _advice(source: Place, pipelines: list[str]) -> str:
    """Pipelines that cannot continue with what the target has."""
    folder = f"{source.data / CHECKPOINTS}" if isinstance(source, Directory) else "DIR"
    return (
        f"without the checkpoints of {', '.join(pipelines)}: for the first start, name their folder with "
        f"penstock run --checkpoint {folder}; from then on, the bucket has them"
    )


@contextmanager
def _progress() -> Iterator[Stage]:
    """One bar for each stage."""
    columns = (TextColumn("{task.description:10}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        tasks = {}

        def show(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = progress.add_task(what)
            progress.update(tasks[what], completed=done, total=total)

        yield show


# `penstock store verify`: read every checksum.


@app.command()
def verify(store: StoreArgument, as_json: JsonOption = False) -> None:
    """Verify every checksum, also while a worker runs; exit with 1 if something is damaged or missing."""
    found = place(store)
    shards = [0] if isinstance(found, Directory) else found.shards() or [0]
    is_sound = True
    for shard in shards:
        is_sound = _verify_shard(found, shard, as_json=as_json, is_only=len(shards) == 1) and is_sound
    if not is_sound:
        raise typer.Exit(1)


def _verify_shard(found: Place, shard: int, *, as_json: bool, is_only: bool) -> bool:
    """Prints what it finds; with several shards, a line of JSON for each."""
    report = _verify_directory(found) if isinstance(found, Directory) else _verify_bucket(found.of_shard(shard))
    name = found.name if is_only else f"{found.name}, shard {shard}"
    if as_json:
        which = {} if is_only else {"shard": shard}
        typer.echo(json.dumps({"store": found.name, **which, "is_sound": report.is_sound, **asdict(report)}))
    elif isinstance(report, VerifyReport):
        print_report(report)
    else:
        _print_bucket(name, report)
    return report.is_sound


def _verify_directory(found: Directory) -> VerifyReport:
    found.check_journal()
    with found.comparing() as opened, _bar() as show:
        return verify_files(opened.journal, show)


def _verify_bucket(found: BucketPlace) -> BucketReport:
    with reading_threads() as threads, new_cache() as cache, _bar() as show:
        report = verify_bucket(found.bucket, cache, threads, show, found.shard)
        if report.is_sound and report.journal is not None:
            if not report.journal.chapters:
                raise found.no_journal()
            _verify_checkpoints(found, report, show)
        return report


def _verify_checkpoints(found: BucketPlace, report: BucketReport, show: Callable[[int, int], None]) -> None:
    """Only a sound journal shows which ones are needed."""

    def count(read: int) -> None:
        report.bytes_read += read
        show(report.bytes_read, report.bytes_read)

    with found.comparing() as opened:
        manifests = manifests_in(opened)
        problems, orphans = verify_checkpoints(found.bucket, manifests, count, found.shard)
    report.problems += problems
    report.orphans += orphans


@contextmanager
def _bar() -> Iterator[Callable[[int, int], None]]:
    with _progress() as stage:
        yield lambda done, total: stage("verifying", done, total)


def _print_bucket(name: str, report: BucketReport) -> None:
    console = Console(highlight=False)
    read = show_size(report.bytes_read)
    console.print(f"{escape(name)}: {report.log_objects} objects of the log, {report.parts} parts, {read} read")
    if report.orphans:
        console.print(
            f"{len(report.orphans)} objects that nothing refers to: a crash left them, or they are being written."
        )
        console.print("The next worker that starts deletes those that a crash left:")
        for key in report.orphans[:_ORPHANS_SHOWN]:
            console.print(f"  {escape(key)}", soft_wrap=True)
        if len(report.orphans) > _ORPHANS_SHOWN:
            console.print(f"  … and {len(report.orphans) - _ORPHANS_SHOWN} more: see --json")
    for problem in report.problems:
        console.print(f"[bold red]damaged:[/] {escape(str(problem))}", soft_wrap=True)
    if report.journal is None:
        console.print("the files cannot be read without these objects: restore them from a copy of the bucket")
        return
    print_report(report.journal, is_sound=report.is_sound)
