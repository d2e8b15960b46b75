"""Our own part of `penstock bench pipeline`: a program sends over the gateway, Spark counts per key and minute, and a
file sink takes part in two-phase commit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.bench.batches import SILENCE_SECONDS_MAX, STAGES, Batch
from penstock.bench.contender import BenchmarkFailed
from penstock.bench.pipeline_events import MINUTE_MS, Events, Part
from penstock.bench.pipeline_sender import SendJob, Sent
from penstock.bench.pipeline_timed_sink import FORMAT, TIMINGS, Merge, TimedSink, read_merges
from penstock.client.coordinator import CoordinatorClient, SinkSpec
from penstock.client.sink import read_committed
from penstock.delivery.file.rotating_file import STATE
from penstock.delivery.file.sink import read_committed_parts
from penstock.spark import begin

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    from penstock.bench.flows import Stage
    from penstock.bench.generator import Worker
    from penstock.spark import Generation

PORT, SINK = "out", "results"

DELAY = f"{MINUTE_MS} milliseconds"
"""How long a minute waits for events that are late: sessions overtake one another by less."""

LOOK_SECONDS = 0.02
"""Between two looks at what the sink has committed: reading its log takes under a millisecond."""


@dataclass(frozen=True, slots=True)
class Counted:
    """`seconds`: from the first message sent to the last result committed at the sink, on one clock."""

    events: int
    seconds: float
    stages_s: Mapping[str, float]
    """Where they go. Ingest and Spark overlap: together they are more than all."""

    @property
    def events_per_s(self) -> float:
        return self.events / self.seconds


@dataclass(frozen=True, slots=True)
class Trial:
    """One run under a name of its own. The first `warm` events bring the query up, and are not on the clock."""

    stage: Stage
    program: Worker[Sent]
    events: Events
    warm: int
    name: str

    def run(self) -> Counted:
        """Raises BenchmarkFailed unless the sink has committed the right counts, each once."""
        results = self.stage.directory / self.name
        with CoordinatorClient(self.stage.worker) as coordinator, self._generation() as generation:
            self.stage.spark.dataSource.register(TimedSink)
            coordinator.bind(self.name, {SINK: SinkSpec(PORT, f"file:{results}")})
            query = self._start(generation)
            try:
                counted = self._measure(query, results)
            finally:
                query.stop()
            coordinator.unbind(self.name, SINK)
            coordinator.drop(self.name, outputs=True)
        return counted

    def _generation(self) -> Generation:
        return begin(self.name, worker=self.stage.worker, inputs={"in": self.name}, outputs=[PORT])

    def _start(self, generation: Generation) -> StreamingQuery:
        options = generation.input("in", min_partitions=self.stage.cores) | {"columns": "key,event_time"}
        read = self.stage.spark.readStream.format("penstock").options(**options).load()
        sink = generation.output() | {TIMINGS: str(self._timings)}
        writer = count_per_minute(read).writeStream.format(FORMAT).options(**sink)
        return writer.option("checkpointLocation", self.stage.checkpoint(self.name)).start()

    @property
    def _timings(self) -> Path:
        return self.stage.directory / f"{self.name}.merges"

    def _measure(self, query: StreamingQuery, results: Path) -> Counted:
        wanted = self.events.lines()
        self._send(0, self.warm, is_last=False)
        self.program.finish()
        _wait_for_rows(query, self.warm)
        query.processAllAvailable()  # what they make of the watermark is a batch, too
        known = len(query.recentProgress)
        self._send(self.warm, self.events.count, is_last=True)
        ended = _wait_for_bytes(query, results, sum(map(len, wanted)) + len(wanted))
        sent = self.program.finish()
        check(results, wanted)
        query.processAllAvailable()  # all batches have told how long they took
        batches = [Batch.of(progress) for progress in query.recentProgress[known:]]
        stages = where(batches, sent, read_merges(self._timings, sent.began), ended)
        return Counted(self.events.count - self.warm, ended - sent.began, stages)

    def _send(self, first: int, end: int, *, is_last: bool) -> None:
        port = self.stage.ports["connector"]
        self.program.begin(SendJob(port, self.name, Part(self.events, first, end), is_last))


def count_per_minute(events: DataFrame) -> DataFrame:
    """A row for each key and minute, once: when the minute is over."""
    from pyspark.sql import functions

    minute = functions.window("event_time", "1 minute")
    counts = events.withWatermark("event_time", DELAY).groupBy(minute.alias("minute"), "key").count()
    began_ms, key = functions.unix_millis("minute.start"), functions.col("key").cast("string")
    return counts.select(functions.concat_ws(",", began_ms, key, "count").alias("value"))


def _wait_for_rows(query: StreamingQuery, rows: int) -> None:
    wait_until(query, lambda: sum(progress["numInputRows"] for progress in query.recentProgress) >= rows)


def _wait_for_bytes(query: StreamingQuery, results: Path, size: int) -> float:
    wait_until(query, lambda: (results / STATE).exists() and read_committed(results / STATE).size >= size)
    return time.monotonic()


def wait_until(query: StreamingQuery, is_done: Callable[[], bool]) -> None:
    """Raises BenchmarkFailed when the query has failed, or nothing comes for too long."""
    deadline = time.monotonic() + SILENCE_SECONDS_MAX
    while not is_done():
        if (error := query.exception()) is not None:
            raise BenchmarkFailed(f"the query has failed: {error}")
        if time.monotonic() > deadline:
            raise BenchmarkFailed(f"the sink has not committed everything after {SILENCE_SECONDS_MAX:.0f} s")
        time.sleep(LOOK_SECONDS)


def check(results: Path, wanted: list[bytes]) -> None:
    """What is committed must be the independent count: nothing else, nothing twice. Raises BenchmarkFailed."""
    parts = read_committed_parts(results)
    found = sorted(b"".join(part.path.read_bytes()[: part.size] for part in parts).splitlines())
    if found != wanted:
        wrong = len(set(found) ^ set(wanted))
        raise BenchmarkFailed(
            f"the sink has committed {len(found)} results and not {len(wanted)}; {wrong} of them differ"
        )


def where(batches: Sequence[Batch], sent: Sent, merges: Sequence[Merge], ended: float) -> dict[str, float]:
    """Seconds by what they are spent on: sending until all is durable, meanwhile Spark's batches by their stages, in
    the order of a batch; of `addBatch`, the merges apart; and from the last merge until the sink has committed it.
    """
    spark = {stage: sum(batch.stages_ms.get(stage, 0) for batch in batches) / 1000 for stage in STAGES}
    merging = sum(merge.seconds for merge in merges)
    spark["addBatch"] = max(0.0, spark["addBatch"] - merging)
    return {"ingest": sent.ended - sent.began} | spark | {"merge": merging, "delivery": ended - merges[-1].ended}
