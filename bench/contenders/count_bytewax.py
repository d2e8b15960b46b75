# mypy: ignore-errors
"""Bytewax counting events per key and minute, from memory to nowhere. Run by an interpreter that has Bytewax:

    python count_bytewax.py EVENTS KEYS EVENTS_PER_MS BATCH_EVENTS

It imports nothing but Bytewax, and prints one JSON object. The source gives BATCH_EVENTS at once. The clock runs from
its first batch until the sink has had the last result.
"""

import json
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import bytewax.operators as op
from bytewax.dataflow import Dataflow
from bytewax.inputs import DynamicSource, StatelessSourcePartition
from bytewax.operators.windowing import EventClock, TumblingWindower, count_window
from bytewax.outputs import DynamicSink, StatelessSinkPartition
from bytewax.testing import run_main

BEGAN = datetime.fromtimestamp(1_699_999_980, UTC)
"""The first event time, and the beginning of a minute."""

Event = tuple[str, datetime]


def events(count: int, keys: int, per_ms: int) -> list[Event]:
    """The same events as every other contender has: scrambled keys, event times that go up."""
    names = [f"k{number:07d}" for number in range(keys)]
    return [(names[n * 48271 % 65521 % keys], BEGAN + timedelta(milliseconds=n // per_ms)) for n in range(count)]


class Result:
    """What came out, so that it can be compared with a count of another kind."""

    def __init__(self) -> None:
        self.began = self.ended = 0.0
        self.results = self.counted = self.squares = 0

    def take(self, count: int) -> None:
        self.results += 1
        self.counted += count
        self.squares += count * count


class Memory(DynamicSource[Event], StatelessSourcePartition[Event]):
    def __init__(self, data: list[Event], size: int, result: Result) -> None:
        batches = [data[start : start + size] for start in range(0, len(data), size)]
        self._batches: Iterator[list[Event]] = iter(batches)
        self._result = result

    def build(self, step_id: str, worker_index: int, worker_count: int) -> "Memory":  # noqa: ARG002
        return self

    def next_batch(self) -> list[Event]:
        self._result.began = self._result.began or time.perf_counter()
        return next(self._batches)


class Nowhere(DynamicSink[tuple[str, tuple[int, int]]], StatelessSinkPartition[tuple[str, tuple[int, int]]]):
    def __init__(self, result: Result) -> None:
        self._result = result

    def build(self, step_id: str, worker_index: int, worker_count: int) -> "Nowhere":  # noqa: ARG002
        return self

    def write_batch(self, items: list[tuple[str, tuple[int, int]]]) -> None:
        for _, (_, count) in items:
            self._result.take(count)
        self._result.ended = time.perf_counter()


def main(count: int, keys: int, per_ms: int, batch_events: int) -> None:
    result = Result()
    flow = Dataflow("count")
    stream = op.input("memory", flow, Memory(events(count, keys, per_ms), batch_events, result))
    clock: EventClock[Event] = EventClock(lambda event: event[1], timedelta(minutes=1))
    windower = TumblingWindower(timedelta(minutes=1), BEGAN)
    counts = count_window("count", stream, clock, windower, lambda event: event[0])
    op.output("nowhere", counts.down, Nowhere(result))
    run_main(flow)
    told = {"events": count, "seconds": result.ended - result.began}
    told |= {"results": result.results, "counted": result.counted, "squares": result.squares}
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
