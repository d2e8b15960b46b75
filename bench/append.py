"""`script/bench append`: how fast events become durable, beside the bare loop and two peers, and what Pravega's
own client achieves with our worker.
"""

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from bench.contender import Contender, Effort, LoadReport, measure_all
from bench.contenders.bare import Bare
from bench.contenders.nats import Nats
from bench.contenders.penstock import Penstock
from bench.contenders.pravega import PravegaClient
from bench.contenders.redis import Redis

CONTENDERS = ("bare", "penstock", "redis", "nats", "pravega-client")
"""In the order of a round: the two whose ratio is closest run one after the other."""

GOALS = {"bare": 0.5, "redis": 5.0}

QUICK = Effort(rounds=6, warmup_s=0.4, measure_s=0.5, probe_s=0.25, read_s=0.25, total_s_max=50)
FULL = Effort(rounds=20, warmup_s=0.4, measure_s=0.6, probe_s=0.5, read_s=0.5, total_s_max=300)


@dataclass(frozen=True, slots=True)
class Options:
    """`block_bytes` and `window` are what the bare loop is fastest with."""

    only: tuple[str, ...] = CONTENDERS
    connections: int = 8
    block_bytes: int = 128 << 10
    window: int = 4


DEFAULTS = Options()


def contenders(options: Options) -> list[Contender]:
    everyone: list[Contender] = [
        Bare(options.block_bytes, options.window),
        Penstock(options.block_bytes, options.window, options.connections),
        Redis(options.connections),
        Nats(),
        PravegaClient(options.connections),
    ]
    return [contender for contender in everyone if contender.name in options.only]


def run(
    effort: Effort, directory: Path | None = None, console: Console | None = None, options: Options = DEFAULTS
) -> LoadReport:
    found = measure_all(contenders(options), options.connections, effort, directory, console)
    settings = {"block_bytes": options.block_bytes, **found.settings}
    return LoadReport("append", found.results, found.skipped, GOALS, settings)
