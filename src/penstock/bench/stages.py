"""Where the time of an ingested message goes: what the worker was seen to use, and, of that, what its stages take when
they are called here one by one, on one run of messages.
"""

import time
from collections.abc import Callable, Sequence
from statistics import median

from penstock.bench import events
from penstock.bench.contenders.connector_frames import Batch
from penstock.bench.contenders.ingest import spread
from penstock.bench.measurement import Measurement
from penstock.protocol.connector.bulk import StreamTable, encode_acks, rewrite, scan
from penstock.protocol.connector.frames import EventTimeUnit
from penstock.protocol.stored.head import encode_head
from penstock.store.record import checksum

RUN_MESSAGES = 1000
"""What a session under load receives at once: seen in the gateway's counters, messages by acknowledgements."""

REPEATS = 30
"""The fastest one counts: the others were disturbed."""


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
