"""Long campaigns: `script/test --campaign NAME [--seeds N | --minutes M] [--first SEED]`. `bucket`, `cluster`,
`hostile`, `migration` and `operate` have options of their own: `script/test --campaign hostile --help`.
"""

import argparse
import logging
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count, takewhile

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from tests.cluster.simulation.cluster import simulate_cluster
from tests.delivery.crasher.campaign import run as kill_everything
from tests.delivery.simulation import simulate as simulate_delivery
from tests.operate import campaign as operate
from tests.protocol.connector.fuzz import run as compare_decoders
from tests.protocol.segment.fuzz import mutate_and_decode
from tests.protocol.stored.fuzz import run as compare_stored
from tests.security.hostile import campaign as hostile
from tests.spark.crashes.campaign import run as kill_in_every_window
from tests.store.bucket_simulation import simulate_bucket
from tests.store.simulation import simulate, simulate_damage
from tests.support.tokens import set_token_variables
from tests.windows.campaign import run as compare_windows
from tests.worker import bucket_campaign as bucket
from tests.worker import cluster_campaign as cluster
from tests.worker import migration_campaign as migration

MUTATIONS_A_SEED = 100_000
FRAMES_A_SEED = 100_000
EVENTS_A_SEED = 100_000

CAMPAIGNS: dict[str, tuple[str, int, Callable[[int], object]]] = {
    "store": ("random operations, crashes and faults of the disk against a model", 1000, simulate),
    "damage": ("the same, with bits flipped: right bytes or an error, never wrong bytes", 1000, simulate_damage),
    "bucket-simulation": (
        "the same on a faulty bucket, with zombies and slow candidates",
        10_000,
        simulate_bucket,
    ),
    "cluster-simulation": (
        "hosts, shards, streams and pipelines over a faulty bucket and network, with zombies and drifting clocks",
        10_000,
        simulate_cluster,
    ),
    "fuzz": (
        f"{MUTATIONS_A_SEED:,} mutated messages a seed against the segment decoder",
        10,
        lambda seed: mutate_and_decode(seed, MUTATIONS_A_SEED),
    ),
    "fuzz-connector": (
        f"{FRAMES_A_SEED:,} mutated frames a seed: the connector protocol's decoders agree",
        100,
        lambda seed: compare_decoders(seed, FRAMES_A_SEED),
    ),
    "fuzz-stored": (
        f"{EVENTS_A_SEED:,} mutated events a seed: the decoders of stored events agree, and the encoders",
        100,
        lambda seed: compare_stored(seed, EVENTS_A_SEED),
    ),
    "delivery": ("sources, worker, driver and sinks killed at random, two minutes a seed", 4, kill_everything),
    "delivery-simulation": ("sinks that fail anywhere, a worker that dies, epochs parked", 1000, simulate_delivery),
    "windows": ("streams, speeds, disorder, crashes: windows equal to a plain reference", 1000, compare_windows),
    "spark": ("driver and worker killed in each window of an epoch, 14 kills a seed", 3, kill_in_every_window),
}

OWN_OPTIONS: dict[str, tuple[str, Callable[[list[str]], int]]] = {
    "bucket": (bucket.ABOUT, bucket.main),
    "cluster": (cluster.ABOUT, cluster.main),
    "hostile": (hostile.ABOUT, hostile.main),
    "migration": (migration.ABOUT, migration.main),
    "operate": (operate.ABOUT, operate.main),
}
"""Campaigns that have no seeds, or more than that."""


def main() -> int:
    set_token_variables()
    if sys.argv[1:2] and sys.argv[1] in OWN_OPTIONS:
        return OWN_OPTIONS[sys.argv[1]][1](sys.argv[2:])
    options = _parse()
    console = Console()
    _, default, run = CAMPAIGNS[options.name]
    logging.disable(logging.WARNING)  # faults are what a campaign is about: thousands of lines would hide its result
    seeds = options.seeds or (None if options.minutes else default)
    done = 0
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console) as progress:
        for seed in progress.track(_seeds(options, seeds), total=seeds, description=options.name):
            try:
                run(seed)
                done += 1
            except Exception:
                console.print_exception()
                again = f"script/test --campaign {options.name} --seeds 1 --first {seed}"
                console.print(f"[bold red]seed {seed} fails.[/] Run it again: {again}")
                return 1
    console.print(f"[bold green]{done} seeds, no failure.[/]")
    return 0


def _seeds(options: argparse.Namespace, limit: int | None) -> Iterator[int]:
    """So many, or new ones until the time is over: the last one is brought to its end."""
    if limit is not None:
        return iter(range(options.first, options.first + limit))
    end = time.monotonic() + options.minutes * 60
    return takewhile(lambda _: time.monotonic() < end, count(options.first))


def _parse() -> argparse.Namespace:
    about = "\n".join(f"  {name:15} {text} (default: {seeds} seeds)" for name, (text, seeds, _) in CAMPAIGNS.items())
    about += "".join(f"\n  {name:15} {text} (options: {name} --help)" for name, (text, _) in OWN_OPTIONS.items())
    parser = argparse.ArgumentParser(
        prog="script/test --campaign", epilog=f"campaigns:\n{about}", formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("name", choices=CAMPAIGNS, metavar="NAME")
    how_long = parser.add_mutually_exclusive_group()
    how_long.add_argument("--seeds", type=int, help="how many")
    how_long.add_argument("--minutes", type=float, help="for how long, instead")
    parser.add_argument(
        "--first", type=int, default=int(time.time()) % 10**9, help="the first of them (default: new ones)"
    )
    if sys.argv[1:2] == ["help"]:
        sys.argv[1] = "--help"
    return parser.parse_args()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
