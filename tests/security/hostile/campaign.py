"""`script/test --campaign hostile [--seconds S] [--seed N] [--part fuzz|table|segments] [--attack NAME]`: fuzzing of
all ports, then the table of attacks, then very many segments. The exit status is 1 if an invariant does not hold, if a
good client loses more than half of its throughput, or if the event loop stalls.
"""

import argparse
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from tests.security.hostile.attacks import ATTACKS
from tests.security.hostile.fuzz import fuzz
from tests.security.hostile.segments import SEGMENTS, measure_stalls
from tests.security.hostile.table import RATIO_MIN, ROUNDS, Row, as_table, measure
from tests.security.hostile.target import Target, running_target

ABOUT = "every route and port fuzzed under authentication, a good client's throughput under each attack, many segments"
SECONDS = 600.0
SLICE_SECONDS = 5.0
"""As one principal; then the invariants are checked."""

_COLUMNS = (TextColumn("{task.description:45}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())


def main(arguments: list[str]) -> int:
    options = _parse(arguments)
    console = Console()
    parts = {"fuzz": _fuzz, "table": _table}
    for name, part in parts.items():
        if options.part in (None, name):
            with (
                tempfile.TemporaryDirectory(prefix="penstock-hostile-") as directory,
                running_target(Path(directory)) as target,
            ):
                if not part(target, options, console):
                    return 1
    if options.part in (None, "segments") and not _segments(options, console):
        return 1
    return 0


def _segments(options: argparse.Namespace, console: Console) -> bool:
    with tempfile.TemporaryDirectory(prefix="penstock-hostile-") as directory:
        stalls = measure_stalls(Path(directory), options.segments)
    console.print(str(stalls), style="red" if stalls.stalls else "green", highlight=False)
    if stalls.stalls:
        console.print(stalls.log, markup=False, highlight=False)
    return not stalls.stalls


def _fuzz(target: Target, options: argparse.Namespace, console: Console) -> bool:
    with Progress(*_COLUMNS, console=console) as progress:
        task = progress.add_task("fuzz", total=options.seconds)

        def on_slice(principal: str, sent: int) -> None:
            progress.update(task, advance=SLICE_SECONDS, description=f"fuzz: {sent:,} requests, now by {principal}")

        try:
            fuzzer = fuzz(target, options.seed, options.seconds, SLICE_SECONDS, on_slice)
        except AssertionError as error:
            console.print(str(error), markup=False, highlight=False)
            again = f"script/test --campaign hostile --part fuzz --seconds {options.seconds:g} --seed {options.seed}"
            console.print(f"[bold red]Seed {options.seed} fails.[/] Run it again: {again}")
            return False
    console.print(f"[bold green]{fuzzer.sent:,} requests with seed {options.seed}, no failure.[/]")
    console.print(target.stalls(), markup=False, highlight=False)
    return True


def _table(target: Target, options: argparse.Namespace, console: Console) -> bool:
    with Progress(*_COLUMNS, console=console) as progress:
        attacks = options.attack or [*ATTACKS]
        task = progress.add_task("attacks", total=len(attacks))

        def on_row(row: Row) -> None:
            progress.update(task, advance=1, description=f"{row.attack}: {row.ratio:.2f}")

        rows = measure(target, attacks, options.rounds, on_row)
    console.print(as_table(rows))
    slow = [row.attack for row in rows if row.ratio < RATIO_MIN]
    if slow:
        console.print(f"[bold red]Below {RATIO_MIN} of the undisturbed throughput:[/] {', '.join(slow)}")
    try:
        target.check()
    except AssertionError as error:
        console.print(f"After the attacks: {error}", style="red", markup=False, highlight=False)
        return False
    console.print(target.stalls(), markup=False, highlight=False)
    return not slow


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="script/test --campaign hostile", description=f"{ABOUT[0].upper()}{ABOUT[1:]}."
    )
    parser.add_argument("--part", choices=("fuzz", "table", "segments"), help="this part alone")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of fuzzing (default: %(default)g)")
    parser.add_argument("--seed", type=int, default=int(time.time()) % 10**9, help="of the fuzzer (default: a new one)")
    parser.add_argument("--attack", action="append", choices=[*ATTACKS], help="this row of the table alone")
    parser.add_argument("--segments", type=int, default=SEGMENTS, help="of the last part (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of each attack (default: %(default)s)")
    return parser.parse_args(arguments)
