"""`script/test --campaign operate [--part PART] [--cell CELL]`: parts of a system that were restored from copies of
different times, a full disk at each operation of the journal, a real full disk at each step (as root), and a read that
fails on each path. The exit status is 1 if a cell is wrong; the command that runs it again is printed.
"""

import argparse
import logging
import re
import tempfile
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count, groupby, takewhile
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tests.operate import disk, reads, restores, small_disks
from tests.operate.life import STEPS

ABOUT = "restores in all combinations, a full disk at each step, a failed read on each path"

RunFault = Callable[[Path, str, int], tuple[str, str] | None]

_COLUMNS = (TextColumn("{task.description:40}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())


@dataclass(frozen=True, slots=True)
class Row:
    """A cell of a part: its name for `--cell`, what the table shows, and what is wrong with it, if anything."""

    cell: str
    columns: tuple[str, ...]
    wrong: str = ""


@dataclass(frozen=True, slots=True)
class Part:
    titles: tuple[str, ...]
    run: Callable[[Path, list[str]], Iterator[Row]]
    """With the cells that were chosen; without any: all."""
    size: int | None
    """How many cells there are; None: that shows in the end."""


def _restores(folder: Path, cells: list[str]) -> Iterator[Row]:
    chosen = [restores.Cell.parse(one) for one in cells] or restores.cells()
    for removed in (False, True):
        concerned = [one for one in chosen if one.removed is removed]
        if concerned:
            with restores.made_history(folder, removed=removed) as history:
                for cell in concerned:
                    yield _restore(history, cell)


def _restore(history: restores.History, cell: restores.Cell) -> Row:
    wanted = restores.expected(cell, history.first_stored[cell.worker])
    wrong = ""
    try:
        found = restores.run_cell(history, cell)
    except Exception:
        wrong = traceback.format_exc()
    else:
        for kind, outcome in found.items():
            if outcome != wanted:
                wrong += f"{kind}: {outcome!r}, not {wanted!r}\n"
    times = [_shown(one) for one in (cell.worker, cell.sink, cell.checkpoint)]
    stored = "removed" if cell.removed else "stored"
    return Row(str(cell), (*times, stored, str(wanted), restores.summary(wanted)), wrong)


def _shown(time: int) -> str:
    return f"t{time}" if time else "lost"


def _faults(run: RunFault, folder: Path, cells: list[str]) -> Iterator[Row]:
    """A cell is STEP-NUMBER: the step, and which of its operations fails."""
    if cells:
        yield from (row for cell in cells if (row := _fault(run, folder, cell)))
        return
    for step in STEPS:
        yield from takewhile(bool, (_fault(run, folder, f"{step}-{number}") for number in count(1)))


def _fault(run: RunFault, folder: Path, cell: str) -> Row | None:
    step, _, number = cell.partition("-")
    with tempfile.TemporaryDirectory(dir=folder) as place:
        try:
            found = run(Path(place), step, int(number))
        except Exception:
            return Row(cell, (step, "", ""), traceback.format_exc())
    return None if found is None else Row(cell, (step, *map(_without_numbers, found)))


def _without_numbers(text: str) -> str:
    """Of files and offsets, which differ from run to run."""
    return re.sub(r"offset \d+", "offset N", re.sub(r"\d{20}|(?<=spare-)\d+", "N", text))


def _small_disks(folder: Path, cells: list[str]) -> Iterator[Row]:
    """A cell is the step at which a real disk is full."""
    for step in cells or small_disks.STEPS:
        with tempfile.TemporaryDirectory(dir=folder) as place:
            try:
                found = small_disks.run_cell(Path(place), step).replace(place, "")
            except Exception:
                yield Row(step, ("",), traceback.format_exc())
            else:
                yield Row(step, (found,))


_FAULT_TITLES = ("cell", "worker", "operation that fails", "what follows")

PARTS = {
    "restores": Part(
        ("cell", "worker", "sink", "checkpoint", "completed data", "outcome", "at the sink afterwards"),
        _restores,
        len(restores.cells()),
    ),
    "disk": Part(_FAULT_TITLES, partial(_faults, disk.run_cell), None),
    "small-disks": Part(
        ("cell", "what is reported until there is room; then everything completes"),
        _small_disks,
        len(small_disks.STEPS),
    ),
    "reads": Part(_FAULT_TITLES, partial(_faults, reads.run_cell), None),
}


def main(arguments: list[str]) -> int:
    options = _parse(arguments)
    logging.disable(logging.CRITICAL)  # of workers in this process: what they report is in the tables
    console = Console(width=160) if not Console().is_terminal else Console()
    wrong = [row for name in options.parts for row in _run(name, options.cell, console) if row.wrong]
    return 1 if wrong else 0


def _run(name: str, only: list[str] | None, console: Console) -> list[Row]:
    part = PARTS[name]
    cells = only or []
    rows: list[Row] = []
    with (
        tempfile.TemporaryDirectory(prefix="penstock-operate-") as folder,
        Progress(*_COLUMNS, console=console) as progress,
    ):
        for row in progress.track(part.run(Path(folder), cells), total=len(cells) or part.size, description=name):
            rows.append(row)
            if row.wrong:
                console.print(row.wrong, markup=False, highlight=False)
                again = f"script/test --campaign operate --part {name} --cell {row.cell}"
                console.print(f"[bold red]{name} {row.cell} is wrong.[/] Run it again: {again}")
    console.print(_table(name, part.titles, rows))
    failed = sum(1 for row in rows if row.wrong)
    console.print(f"[bold red]{failed} of {len(rows)} wrong[/]" if failed else f"[bold green]{len(rows)} right[/]")
    return rows


def _table(name: str, titles: tuple[str, ...], rows: Iterable[Row]) -> Table:
    table = Table(*titles, title=name, title_justify="left")
    for (columns, is_wrong), same in groupby(rows, lambda row: (row.columns, bool(row.wrong))):
        first, *more = same
        cell = f"{first.cell} … {more[-1].cell}" if more else first.cell
        table.add_row(cell, *columns, style="red" if is_wrong else None)
    return table


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="script/test --campaign operate", description=f"{ABOUT[0].upper()}{ABOUT[1:]}."
    )
    parser.add_argument("--part", dest="parts", action="append", choices=[*PARTS], help="this part alone")
    parser.add_argument("--cell", action="append", help="of one part: this cell alone, as its table names it")
    options = parser.parse_args(arguments)
    options.parts = options.parts or [*PARTS]
    if options.cell and len(options.parts) != 1:
        parser.error("--cell needs --part")
    return options
