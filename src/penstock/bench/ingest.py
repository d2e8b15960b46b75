"""`penstock bench ingest`: how fast sources' messages become durable over the connector protocol, beside our own
segment protocol and two peers, with few streams and with many.
"""

import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from rich.console import Console

from penstock.bench import events
from penstock.bench.contender import Contender
from penstock.bench.contenders.ingest import Ingest, ManyStreams
from penstock.bench.contenders.nats import Nats
from penstock.bench.contenders.penstock import Penstock
from penstock.bench.contenders.redis import Redis
from penstock.bench.generator import Generators
from penstock.bench.report import Report, print_table, progress, to_json
from penstock.bench.rounds import base_directory, interleave, split_missing
from penstock.bench.stages import where_time_goes
from penstock.bench.trials import Effort, Trials

__all__ = ["CONTENDERS", "Effort", "Options", "Report", "print_table", "run", "to_json"]

CONTENDERS = ("append", "ingest", "many_streams", "redis", "nats")
"""In the order of a round: those whose ratios are closest run one after the other."""

GOALS = {"redis": 5.0, "append": 0.5, "many_streams": 0.8}

QUICK = Effort(rounds=4, warmup_s=0.4, measure_s=0.5, probe_s=0.25, read_s=0, total_s_max=54)
FULL = Effort(rounds=20, warmup_s=0.4, measure_s=0.6, probe_s=0.5, read_s=0, total_s_max=420)


@dataclass(frozen=True, slots=True)
class Options:
    """`append_block_bytes` and `append_window` are those of `bench append`."""

    quick: bool = False
    directory: Path | None = None
    only: tuple[str, ...] = CONTENDERS
    connections: int = 8
    streams: int = 10
    many_streams: int = 100_000
    append_block_bytes: int = 128 << 10
    append_window: int = 4
    effort: Effort | None = None
    """Given by tests alone; otherwise QUICK or FULL."""


class Append(Penstock):
    """As in `bench append`."""

    name: ClassVar[str] = "append"


def contenders(options: Options) -> list[Contender]:
    everyone: list[Contender] = [
        Append(options.append_block_bytes, options.append_window, options.connections),
        Ingest(options.connections, options.streams),
        ManyStreams(options.connections, options.many_streams),
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
        sizes = {"event_bytes": events.EVENT_BYTES, "streams": options.streams, "many_streams": options.many_streams}
        return Report(
            "ingest",
            results,
            skipped,
            GOALS,
            sizes | trials.surroundings(),
            ours=Ingest.name,
            harder=(ManyStreams.name,),
            where=where_time_goes(results.get(Ingest.name, []), options.streams),
        )
