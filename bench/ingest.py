"""`script/bench ingest`: how fast sources' messages become durable over the connector protocol, beside our own
segment protocol and two peers, with few streams and with many, with event times from the data, from programs that
announce a large window, as the SDK does, and from plain ones.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import ClassVar

from rich.console import Console

from bench import events
from bench.contender import Contender, Effort, LoadReport, Measurement, measure_all
from bench.contenders.ingest import Batch, EventTimes, Ingest, ManyStreams, PlainPrograms, spread
from bench.contenders.nats import Nats
from bench.contenders.penstock import Penstock
from bench.contenders.redis import Redis
from penstock.protocol.connector.bulk import StreamTable, encode_acks, rewrite, scan
from penstock.protocol.connector.frames import EventTimeUnit
from penstock.protocol.stored.head import encode_head
from penstock.store.record import checksum

CONTENDERS = ("append", "ingest", "event_times", "many_streams", "plain_programs", "redis", "nats")
"""In the order of a round: those whose ratios are closest run one after the other."""

GOALS = {"redis": 5.0, "append": 0.5, "event_times": 0.5, "many_streams": 0.8}

QUICK = Effort(rounds=4, warmup_s=0.4, measure_s=0.5, probe_s=0.25, read_s=0, total_s_max=54)
FULL = Effort(rounds=20, warmup_s=0.4, measure_s=0.6, probe_s=0.5, read_s=0, total_s_max=420)

RUN_MESSAGES = 1000
"""What a session under load receives at once: seen in the program server's counters, messages by acknowledgements."""

REPEATS = 30
"""The fastest one counts: the others were disturbed."""


@dataclass(frozen=True, slots=True)
class Options:
    """`append_block_bytes` and `append_window` are those of `script/bench append`."""

    only: tuple[str, ...] = CONTENDERS
    connections: int = 8
    streams: int = 10
    many_streams: int = 100_000
    append_block_bytes: int = 128 << 10
    append_window: int = 4


DEFAULTS = Options()


class Append(Penstock):
    """As in `script/bench append`."""

    name: ClassVar[str] = "append"


def contenders(options: Options) -> list[Contender]:
    everyone: list[Contender] = [
        Append(options.append_block_bytes, options.append_window, options.connections),
        Ingest(options.connections, options.streams),
        EventTimes(options.connections, options.streams),
        ManyStreams(options.connections, options.many_streams),
        PlainPrograms(options.connections, options.streams),
        Redis(options.connections),
        Nats(),
    ]
    return [contender for contender in everyone if contender.name in options.only]


def run(
    effort: Effort, directory: Path | None = None, console: Console | None = None, options: Options = DEFAULTS
) -> LoadReport:
    found = measure_all(contenders(options), options.connections, effort, directory, console)
    return LoadReport(
        "ingest",
        found.results,
        found.skipped,
        GOALS,
        {"streams": options.streams, "many_streams": options.many_streams, **found.settings},
        ours=Ingest.name,
        harder=(EventTimes.name, ManyStreams.name, PlainPrograms.name),
        ns_per_event=where_time_goes(found.results.get(Ingest.name, []), options.streams),
    )


# Where the time of a message goes: what the worker was seen to use, and how much of that its stages take when they are
# called here one by one, on one run of messages.


def where_time_goes(rounds: Sequence[Measurement], streams: int) -> dict[str, float]:
    """Nanoseconds for each message: of the clock, of the processor, and of the stages. The stages are part of `user`,
    whose rest is Python between them; what `user` and `system` leave of the clock's is waiting.
    """
    if not rounds:
        return {}
    seen = {
        "clock": median(1e9 / r.events_per_s for r in rounds),
        "user": median(1e9 * r.cpu.user / r.events_per_s for r in rounds),
        "system": median(1e9 * r.cpu.system / r.events_per_s for r in rounds),
    }
    return seen | time_stages(streams)


def time_stages(streams: int) -> dict[str, float]:
    """Nanoseconds for each message of a run that goes round `streams` streams."""
    stream_ids = [spread(number) for number in range(streams)]
    batch = Batch([stream_ids[number % streams] for number in range(RUN_MESSAGES)], events.payloads(RUN_MESSAGES))
    table = StreamTable(seed=1)
    for stream_id in stream_ids:
        table.open(stream_id)
    columns = scan(batch.data)
    admission = table.admit(columns, EventTimeUnit.MS)
    (stored,) = rewrite(columns, admission)
    found = admission.streams
    return {
        "scan": _fastest(lambda: scan(batch.data)),
        "admit": _fastest(lambda: table.admit(columns, EventTimeUnit.MS)),
        "rewrite": _fastest(lambda: rewrite(columns, admission)),
        "checksum": _fastest(lambda: checksum([stored.data])),
        "head": _fastest(lambda: encode_head(stored.streams, (), stored.count)),
        "ack": _fastest(lambda: encode_acks(1, found.stream_ids, found.last_ids)),
    }


def _fastest(stage: Callable[[], object]) -> float:
    return min(_once(stage) for _ in range(REPEATS)) / RUN_MESSAGES


def _once(stage: Callable[[], object]) -> int:
    began = time.perf_counter_ns()
    stage()
    return time.perf_counter_ns() - began
