"""`penstock bench append`: how fast events become durable, beside the bare loop and two peers."""

import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from penstock.bench import events
from penstock.bench.contender import Contender
from penstock.bench.contenders.bare import Bare
from penstock.bench.contenders.nats import Nats
from penstock.bench.contenders.penstock import Penstock
from penstock.bench.contenders.redis import Redis
from penstock.bench.generator import Generators
from penstock.bench.report import Report, print_table, progress, to_json
from penstock.bench.rounds import base_directory, interleave, split_missing
from penstock.bench.trials import Effort, Trials

__all__ = ["CONTENDERS", "Effort", "Options", "Report", "print_table", "run", "to_json"]

CONTENDERS = ("bare", "penstock", "redis", "nats")
"""In the order of a round: the two whose ratio is closest run one after the other."""

GOALS = {"bare": 0.5, "redis": 5.0}


QUICK = Effort(rounds=6, warmup_s=0.4, measure_s=0.5, probe_s=0.25, read_s=0.25, total_s_max=50)
FULL = Effort(rounds=20, warmup_s=0.4, measure_s=0.6, probe_s=0.5, read_s=0.5, total_s_max=300)


@dataclass(frozen=True, slots=True)
class Options:
    """`block_bytes` and `window` were chosen by what is fastest for the bare loop."""

    quick: bool = False
    directory: Path | None = None
    only: tuple[str, ...] = CONTENDERS
    connections: int = 8
    block_bytes: int = 128 << 10
    window: int = 4
    effort: Effort | None = None
    """Given by tests alone; otherwise QUICK or FULL."""


def contenders(options: Options) -> list[Contender]:
    everyone: list[Contender] = [
        Bare(options.block_bytes, options.window),
        Penstock(options.block_bytes, options.window, options.connections),
        Redis(options.connections),
        Nats(),
    ]
    return [contender for contender in everyone if contender.name in options.only]


def run(options: Options, console: Console | None = None) -> Report:
    """Run the whole benchmark; progress goes to `console`, which should be standard error."""
    effort = options.effort or (QUICK if options.quick else FULL)
    deadline = time.monotonic() + effort.total_s_max
    present, skipped = split_missing(contenders(options))
    with ExitStack() as stack:
        base = stack.enter_context(base_directory(options.directory))
        trials = Trials(options.connections, effort, base, stack.enter_context(Generators()))
        note = stack.enter_context(progress(console, effort.rounds * len(present)))
        results = interleave(present, effort.rounds, trials.measure, note, deadline)
        sizes = {"event_bytes": events.EVENT_BYTES, "block_bytes": options.block_bytes}
        return Report("append", results, skipped, GOALS, sizes | trials.surroundings())
