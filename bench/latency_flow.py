"""One measurement of latency: a program sends at a steady rate, Spark passes the messages on, and another program
commits them.
"""

from __future__ import annotations

import select
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray
from pyspark.sql.streaming.query import StreamingQuery

from bench.contenders.ingest import FRAME, MESSAGE, Session, spread
from bench.events import EVENT_BYTES
from bench.flows import STAGES, WHOLE, Batch, Stage
from bench.harness import BenchmarkFailed, percentile
from bench.latency_sink import DATA, Commits, read_commits, start_sink
from bench.load import Worker
from bench.pipeline_flow import FORMAT, TIMINGS, Merge, TimedSink, read_merges, wait_until
from penstock.client.coordinator import CoordinatorClient, SinkSpec
from penstock.spark import Generation, begin

TICK_SECONDS = 0.001
"""Between two sends: what is due by then leaves together."""

STAMP = np.dtype([("stamp", ">u8"), ("noise", f"V{EVENT_BYTES - 8}")])
"""A payload: when it was due, in nanoseconds of the monotonic clock, which all processes of a machine share."""


@dataclass(frozen=True, slots=True)
class Paced:
    """The first message's number and time; how late the latest one left, which counts as latency."""

    first: int
    count: int
    began_ns: int
    behind_ms_max: float
    rate: int

    def stamps(self) -> NDArray[np.int64]:
        """Of all its messages, in order."""
        return due_ns(self.began_ns, self.rate, np.arange(self.count))


def due_ns(began_ns: int, rate: int, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    return began_ns + numbers * 1_000_000_000 // rate


@dataclass(frozen=True, slots=True)
class PacedJob:
    """A generator's job: `count` messages on one stream, `rate` in a second, numbered from `first` on. The stamp of a
    message is the time when it was due: a send that has to wait makes a message old, and not young.
    """

    port: int
    source: str
    rate: int
    first: int
    count: int

    def __call__(self) -> Paced:
        session = Session.open(self.port, self.source, [spread(0)])
        began_ns, sent, behind_ns = time.monotonic_ns(), 0, 0
        try:
            while sent < self.count:
                now_ns = time.monotonic_ns() - began_ns
                due = min(
                    self.count, now_ns * self.rate // 1_000_000_000 + 1, sent + session.granted - session.in_flight
                )
                if due > sent:
                    behind_ns = max(behind_ns, now_ns - sent * 1_000_000_000 // self.rate)
                    session.send(self._batch(began_ns, np.arange(sent, due)).tobytes(), due - sent)
                    sent = due
                _rest(session)
            while session.in_flight > 0:
                session.receive()
        finally:
            session.sock.close()
        return Paced(self.first, self.count, began_ns, behind_ns / 1e6, self.rate)

    def _batch(self, began_ns: int, numbers: NDArray[np.int64]) -> NDArray[np.void]:
        payload = np.zeros(len(numbers), STAMP)
        payload["stamp"] = due_ns(began_ns, self.rate, numbers)
        batch = np.zeros(len(numbers), FRAME)
        batch["length"], batch["tag"], batch["key_length"] = FRAME.itemsize - 4, MESSAGE, batch["key"].itemsize
        batch["stream"], batch["id"] = spread(0), self.first + numbers
        batch["payload"] = payload.view(f"V{EVENT_BYTES}")
        return batch


def _rest(session: Session) -> None:
    """For a tick, or until the worker sends something."""
    began = time.monotonic()
    if select.select([session.sock], [], [], TICK_SECONDS)[0]:
        session.receive()
        time.sleep(max(0.0, began + TICK_SECONDS - time.monotonic()))


PORT, SINK = "out", "program"

UP_SECONDS = 0.5
"""Messages for so long are sent first, and their commit is awaited: then the query is up."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Milliseconds that something took, many times over."""

    count: int
    p50_ms: float
    p99_ms: float
    parts_ms: Mapping[str, float] = field(default_factory=dict)
    """What they are made of: medians."""

    @classmethod
    def of(cls, samples_ms: Sequence[float], parts_ms: Mapping[str, float] | None = None) -> Timing:
        return cls(len(samples_ms), percentile(samples_ms, 50), percentile(samples_ms, 99), parts_ms or {})


@dataclass(frozen=True, slots=True)
class Trial:
    """One run under a name of its own. Messages of the first `warm_s` seconds are not measured."""

    stage: Stage
    program: Worker[Paced]
    name: str
    rate: int
    warm_s: float
    measure_s: float

    def run(self) -> Timing:
        """Raises BenchmarkFailed unless the sink has committed every message once, in order."""
        self.stage.spark.dataSource.register(TimedSink)
        folder = self.stage.directory / f"{self.name}-sink"
        with start_sink(folder) as sink, CoordinatorClient(self.stage.worker) as coordinator:
            with begin(self.name, worker=self.stage.worker, inputs={"in": self.name}, outputs=[PORT]) as generation:
                coordinator.bind(self.name, {SINK: SinkSpec(PORT, f"connector://127.0.0.1:{sink.ports['sink']}")})
                query = self._start(generation)
                try:
                    timing = self._measure(query, folder)
                finally:
                    query.stop()
            coordinator.unbind(self.name, SINK)
            coordinator.drop(self.name, outputs=True)
        return timing

    @property
    def _timings(self) -> Path:
        return self.stage.directory / f"{self.name}.merges"

    def _start(self, generation: Generation) -> StreamingQuery:
        options = generation.input("in") | {"columns": "value"}
        read = self.stage.spark.readStream.format("penstock").options(**options).load()
        writer = read.writeStream.format(FORMAT).options(**generation.output() | {TIMINGS: str(self._timings)})
        return writer.option("checkpointLocation", self.stage.checkpoint(self.name)).start()

    def _measure(self, query: StreamingQuery, folder: Path) -> Timing:
        up = self._send(query, folder, 0, UP_SECONDS)
        known = len(query.recentProgress)
        paced = self._send(query, folder, up.count, self.warm_s + self.measure_s)
        query.processAllAvailable()  # so that all batches have reported how long they took
        commits = read_commits(folder)
        latencies_ms = latencies(folder / DATA, commits, [up, paced])[up.count + int(self.warm_s * self.rate) :]
        batches = [Batch.of(progress) for progress in query.recentProgress[known:]]
        parts = what_made_it(batches, read_merges(self._timings, paced.began_ns / 1e9), commits)
        return Timing.of(latencies_ms.tolist(), parts | {"sender_behind_max": paced.behind_ms_max})

    def _send(self, query: StreamingQuery, folder: Path, first: int, seconds: float) -> Paced:
        """Returns when all of it is committed."""
        count = max(1, int(seconds * self.rate))
        self.program.begin(PacedJob(self.stage.server.ports["connector"], self.name, self.rate, first, count))
        paced = self.program.finish()
        wait_until(query, lambda: read_commits(folder).size >= (first + count) * EVENT_BYTES)
        return paced


def latencies(data: Path, commits: Commits, sent: Sequence[Paced]) -> NDArray[np.float64]:
    """In milliseconds, from when each message was due until the sink had committed it. Raises BenchmarkFailed if what
    is committed is not what was sent.
    """
    payloads = np.frombuffer(data.read_bytes()[: commits.size], STAMP)
    stamps = payloads["stamp"].astype(np.int64)
    wanted = np.concatenate([paced.stamps() for paced in sent])
    if not np.array_equal(stamps, wanted):
        raise BenchmarkFailed(f"the sink has committed {len(stamps)} messages, which are not the {len(wanted)} sent")
    ends = np.arange(1, len(stamps) + 1) * EVENT_BYTES
    return (commits.when(ends) - stamps) / 1e6


def what_made_it(batches: Sequence[Batch], merges: Sequence[Merge], commits: Commits) -> dict[str, float]:
    """Medians: Spark's batches and their stages, the merge among `addBatch`, and what follows until the commit. A
    message waits for the batch before its own, too.
    """
    full = [batch for batch in batches if batch.rows]
    stages = {name: median(batch.stages_ms.get(name, 0) for batch in full) for name in (WHOLE, *STAGES)}
    merging = median(merge.seconds * 1000 for merge in merges)
    return stages | {"merge": merging, "delivery": median(_delivery_ms(merge, commits) for merge in merges)}


def _delivery_ms(merge: Merge, commits: Commits) -> float:
    """From its end to the next commit; none if the sink was faster than the worker's answer to Spark."""
    following = np.searchsorted(commits.times_ns, int(merge.began * 1e9))
    committed_ns = commits.times_ns[min(int(following), len(commits.times_ns) - 1)]
    return max(0.0, float(committed_ns) / 1e6 - merge.ended * 1e3)
