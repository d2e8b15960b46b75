"""`script/test --campaign migration [--streams N] [--moves N] [--kills N] [--seed S]`: the shard moves between two
workers on SeaweedFS, again and again, while a program with many streams sends, and the longest gap of each stream is
printed: for 99 of 100 streams it is at most 2 s, and only what was not acknowledged is sent twice. Then either worker
is killed at a random moment of a move.
"""

import argparse
import os
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from random import Random

from rich.console import Console

from penstock.testing.seaweedfs import SeaweedFS
from tests.support.waiting import until
from tests.worker.bucket_moves import move_while_sending, sending, workers

ABOUT = "the shard moves between workers while 1,000 streams send, and either worker is killed meanwhile"

GAP_SECONDS_MAX = 2.0
"""For 99 of 100 streams that move."""
KILLED_STREAMS = 50
KILL_SECONDS_MAX = 3.0
"""A move takes a second or two, so kills fall before, into and after it."""

console = Console(highlight=False)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="script/test --campaign migration", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--streams", type=int, default=1000, help="of the program that is moved (default: 1000)")
    parser.add_argument("--moves", type=int, default=10, help="(default: 10)")
    parser.add_argument("--kills", type=int, default=20, help="moves in which a worker is killed (default: 20)")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="for the moments of the kills")
    options = parser.parse_args(arguments)
    with (
        tempfile.TemporaryDirectory(prefix="penstock-migration-") as folder,
        SeaweedFS(Path(folder) / "store") as store,
    ):
        os.environ.update(store.environment())
        if options.moves:
            moves = move_while_sending(Path(folder) / "moves", store.url("moves"), options.streams, options.moves)
            for number, move in enumerate(moves, 1):
                console.print(f"move {number}: {move}")
            if any(move.gaps.p99 > GAP_SECONDS_MAX for move in moves):
                console.print(f"[bold red]It fails:[/] p99 of the gaps is over {GAP_SECONDS_MAX:g} s.")
                return 1
        for seed in range(options.seed, options.seed + options.kills):
            try:
                kill_in_a_move(Path(folder) / f"kill-{seed}", store.url(f"kill-{seed}"), Random(seed))
            except Exception:
                console.print_exception()
                again = f"script/test --campaign migration --moves 0 --kills 1 --seed {seed}"
                console.print(f"[bold red]seed {seed} fails.[/] Run it again: {again}")
                return 1
    console.print("[bold green]No failure.[/]")
    return 0


def kill_in_a_move(folder: Path, url: str, random: Random) -> None:
    """Everything is stored once, in order, whoever is killed and when."""
    with ExitStack() as stack:
        two = stack.enter_context(workers(folder, url))
        program = stack.enter_context(sending(two.seeds, KILLED_STREAMS))
        killed = random.choice(two.all)
        two.begin_drain(two.all[0])
        time.sleep(random.uniform(0, KILL_SECONDS_MAX))
        killed.kill()
        (left,) = [one for one in two.all if one is not killed]
        until(left.has_ports, lambda: left.said)
        left.read_ports()
        program.wait_for_acks()
        count = program.check(left)
        console.print(f"{'owner' if killed is two.all[0] else 'successor'} killed: {count} messages, once and in order")
