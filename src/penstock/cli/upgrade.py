"""`penstock upgrade --check`: whether this version reads what a data directory contains."""

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from penstock.access import file as access
from penstock.application import deployments
from penstock.backup.contents import CHECKPOINTS, JOURNAL, checkpoints_in
from penstock.cli.backup import checkpoint_folder
from penstock.cli.connect import JsonOption
from penstock.cli.waiting import waiting
from penstock.client.credentials import OWN_DATA, PORTS_FORMAT, LocalWorker, ports_file
from penstock.coordinator import ledger
from penstock.core.errors import Damaged, PenstockError, RequestError, Unavailable, UnreadableFormat
from penstock.protocol.stored.names import LEDGER
from penstock.spark.run import state_plan
from penstock.spark.run.checkpoints import PLAN
from penstock.store import record
from penstock.store.chapters import chapter_bases, chapter_name, read_chain
from penstock.store.files import Files, RealFiles

_TRIES = 3
"""Attempts to read a journal whose worker removes chapters meanwhile."""


class Outcome(StrEnum):
    """What happens to it if this version runs on the data."""

    READ = "read as it is"
    REPLACED = "replaced"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFormat:
    """What was found in one format."""

    what: str
    where: str
    found: int | None
    """None if that is unknown."""
    reads: int
    """The newest that this version reads."""
    outcome: Outcome
    problem: str = ""
    """Why it is refused."""
    hint: str = ""


def register(app: typer.Typer) -> None:
    app.command("upgrade")(upgrade)


def upgrade(
    check: Annotated[
        bool, typer.Option("--check", help="Report every stored format, and whether this version reads it.")
    ] = False,
    data: Annotated[Path, typer.Option(metavar="DIR", help="The worker's data directory.")] = OWN_DATA,
    checkpoint: Annotated[
        str | None, typer.Option(metavar="DIR", help=f"The folder of the checkpoints (default: DATA/{CHECKPOINTS}).")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check before an upgrade whether this version reads a worker's data, while it runs or while it is stopped.

    Changes nothing. Exits with 1 if something would be refused.
    """
    if not check:
        raise RequestError(
            "this version converts no stored data: it either reads a format or refuses it",
            "Use: penstock upgrade --check",
        )
    if not (data / JOURNAL).is_dir():
        raise RequestError(f"{data} has no journal", "Name a worker's data directory: --data DIR")
    with waiting(f"reading {data} …"):
        found = [*formats_in(data, checkpoint_folder(data, checkpoint))]
    if as_json:
        typer.echo(json.dumps([asdict(one) for one in found]))
    else:
        _print(found)
    if any(one.outcome is Outcome.REFUSED for one in found):
        raise typer.Exit(1)


def formats_in(data: Path, checkpoints: Path) -> Iterator[StoredFormat]:
    """Only what is there. Everything is read as a worker or a driver would read it; nothing is written."""
    files = RealFiles(data / JOURNAL, create=False)
    journal = _read("journal", JOURNAL, record.FORMAT, lambda: _read_journal(files))
    yield journal
    if not journal.problem:
        yield _read("ledger", f"{JOURNAL}, segment {LEDGER}", ledger.FORMAT, lambda: _read_ledger(files))
    if (data / deployments.FILE).exists():
        load = deployments.DeploymentFile(data).load
        yield _read("deployment", deployments.FILE, deployments.FORMAT, load)
    if (data / access.FILE).exists():
        yield _read("access list", access.FILE, access.FORMAT, access.AccessFile(data).grants)
    if ports_file(data).exists():
        yield _ports(data)
    for name in checkpoints_in(checkpoints):
        if (plan := checkpoints / name / PLAN).exists():
            where = str(plan.relative_to(data)) if plan.is_relative_to(data) else str(plan)
            yield _read("state plan", where, state_plan.FORMAT, partial(_read_plan, plan, name))


def _read(what: str, where: str, reads: int, read: Callable[[], object]) -> StoredFormat:
    """`read` returns the version if it accepts several."""
    found: int | None
    try:
        version = read()
    except PenstockError as error:
        found = error.found if isinstance(error, UnreadableFormat) else None
        outcome, problem, hint = Outcome.REFUSED, str(error), error.hint
    else:
        found = version if isinstance(version, int) else reads
        outcome, problem, hint = Outcome.READ, "", ""
    return StoredFormat(what=what, where=where, found=found, reads=reads, outcome=outcome, problem=problem, hint=hint)


def _ports(data: Path) -> StoredFormat:
    """Each start of a worker writes the file, whatever is in it."""
    found = _read("ports", ports_file(data).name, PORTS_FORMAT, lambda: LocalWorker.read(data))
    return replace(found, outcome=Outcome.REPLACED, problem="", hint="") if found.problem else found


def _read_journal(files: Files) -> None:
    """The headers of all chapters. Damage is another matter: penstock segment verify."""
    for base in chapter_bases(files):
        with suppress(FileNotFoundError):  # its worker has removed it
            read_chain(files.open(chapter_name(base)), base)


def _read_ledger(files: Files) -> int:
    """Its version. Raises Damaged, and Unavailable if the journal changes faster than it can be read."""
    for attempt in range(1, _TRIES + 1):
        try:
            return ledger.stored_version(files)
        except UnreadableFormat:
            raise
        except Damaged:
            if attempt == _TRIES:
                raise
        except (FileNotFoundError, LookupError):
            continue
    raise Unavailable("its worker removes files of the journal while they are read", "Try again, or stop the worker.")


def _read_plan(plan: Path, name: str) -> int:
    text = plan.read_text(errors="replace")
    state_plan.Companion.parse(text, name)
    version: int = json.loads(text)["format"]
    return version


def _print(found: list[StoredFormat]) -> None:
    table = Table("format", Column("where", overflow="fold"), "version", "newest it can read", "outcome")
    for one in found:
        version = "unknown" if one.found is None else str(one.found)
        outcome = f"[red]{one.outcome}[/]" if one.outcome is Outcome.REFUSED else one.outcome
        table.add_row(one.what, escape(one.where), version, str(one.reads), outcome)
    console = Console(highlight=False)
    console.print(table)
    for one in found:
        if one.outcome is Outcome.REFUSED:
            console.print(f"{one.problem}. {one.hint}", markup=False, soft_wrap=True)
