# mypy: ignore-errors
"""PyFlink's DataStream counting events per key and minute, from memory to nowhere. Run by an interpreter that has it:

    python count_flink_python.py EVENTS KEYS EVENTS_PER_MS

It imports nothing but PyFlink, and prints one JSON object. Numbers come from Flink's own sequence; Python makes events
of them and counts. The time that a job of few events takes, starting and ending it, is measured first and left out.
"""

import json
import os
import sys
import time
from collections.abc import Iterator

from pyflink.common import Configuration, Duration, Time, Types, WatermarkStrategy
from pyflink.common.watermark_strategy import TimestampAssigner
from pyflink.datastream import AggregateFunction, StreamExecutionEnvironment
from pyflink.datastream.connectors.number_seq import NumberSequenceSource
from pyflink.datastream.window import TumblingEventTimeWindows

BEGAN_MS = 1_699_999_980_000
"""The first event time, and the beginning of a minute."""

FEW_EVENTS = 1_000
"""For the job whose time is left out."""

SETTINGS = {
    "parallelism.default": str(os.cpu_count() or 1),
    "python.fn-execution.bundle.size": "100000",
    "pipeline.object-reuse": "true",
}
"""What makes it faster."""

Event = tuple[str, int]


class EventTime(TimestampAssigner):
    def extract_timestamp(self, value: Event, record_timestamp: int) -> int:  # noqa: ARG002
        return value[1]


class Count(AggregateFunction):
    def create_accumulator(self) -> int:
        return 0

    def add(self, value: Event, accumulator: int) -> int:  # noqa: ARG002
        return accumulator + 1

    def get_result(self, accumulator: int) -> int:
        return accumulator

    def merge(self, acc_a: int, acc_b: int) -> int:
        return acc_a + acc_b


def counts(environment: StreamExecutionEnvironment, count: int, keys: int, per_ms: int) -> Iterator[int]:
    """The counts of all keys and minutes, as they come out."""
    names = [f"k{number:07d}" for number in range(keys)]

    def event(n: int) -> Event:
        return names[n * 48271 % 65521 % keys], BEGAN_MS + n // per_ms

    numbers = environment.from_source(
        NumberSequenceSource(0, count - 1), WatermarkStrategy.no_watermarks(), "numbers", Types.LONG()
    )
    late = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_minutes(1))
    events = numbers.map(event, Types.TUPLE([Types.STRING(), Types.LONG()]))
    timed = events.assign_timestamps_and_watermarks(late.with_timestamp_assigner(EventTime()))
    windows = timed.key_by(lambda event: event[0], Types.STRING()).window(TumblingEventTimeWindows.of(Time.minutes(1)))
    counted = windows.aggregate(Count(), accumulator_type=Types.LONG(), output_type=Types.LONG())
    with counted.execute_and_collect() as found:
        yield from found


def run(count: int, keys: int, per_ms: int) -> tuple[float, list[int]]:
    """The seconds it took, and the counts."""
    configuration = Configuration()
    for key, value in SETTINGS.items():
        configuration.set_string(key, value)
    configuration.set_string("python.executable", sys.executable)
    environment = StreamExecutionEnvironment.get_execution_environment(configuration)
    began = time.perf_counter()
    found = list(counts(environment, count, keys, per_ms))
    return time.perf_counter() - began, found


def main(count: int, keys: int, per_ms: int) -> None:
    idle, _ = run(FEW_EVENTS, keys, per_ms)
    seconds, found = run(count, keys, per_ms)
    told = {"events": count, "seconds": seconds - idle, "results": len(found)}
    sys.stdout.write(json.dumps(told | {"counted": sum(found), "squares": sum(n * n for n in found)}) + "\n")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
