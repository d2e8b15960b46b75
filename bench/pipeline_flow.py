"""Our own part of `script/bench pipeline`: a program sends over the connector protocol, Spark counts per key and
minute, and a file sink takes part in two-phase commit.
"""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pyspark.sql import DataFrame, functions
from pyspark.sql.datasource import DataSource, WriterCommitMessage
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from bench.contenders.ingest import FRAME, KEY_BYTES, MESSAGE, WINDOW, Session, spread
from bench.events import EVENT_BYTES
from bench.flows import QUERY_SILENCE_SECONDS_MAX, STAGES, Batch, Stage
from bench.harness import BenchmarkFailed
from bench.load import SILENCE_SECONDS_MAX, Worker
from bench.processes import cpu_seconds_of_spark, own_cpu_seconds
from penstock.client.coordinator import CoordinatorClient, SinkSpec
from penstock.client.sink import read_committed
from penstock.connectors.file import read_committed_parts
from penstock.connectors.file.parts import STATE
from penstock.spark import Generation, begin, session, windows
from penstock.spark.python_worker import hinted
from penstock.spark.sink.writer import SinkOptions, StreamSink

PORT, SINK = "out", "results"

MINUTE_MS = 60_000

LOOK_SECONDS = 0.02
"""Between two looks at what the sink has committed: reading its log takes under a millisecond."""

QUERY_LOOK_SECONDS = 1.0
"""Between two looks whether the query has failed: asking the JVM takes it away from the query."""

# The events that all contenders count, made from their numbers alone; and their count, computed here by other means
# than any of them uses.

BEGAN_MS = 1_699_999_980_000
"""The first event time, and the beginning of a minute."""

SCRAMBLE, MODULUS = 48_271, 65_521
"""Number × SCRAMBLE mod MODULUS mod keys: an order of keys that SQL can work out as well as Python."""


@dataclass(frozen=True, slots=True)
class Events:
    """Events 0 to `count`, `per_ms` of them in a millisecond of event time."""

    count: int
    keys: int
    per_ms: int

    def key_numbers(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        return numbers * SCRAMBLE % MODULUS % self.keys

    def times_ms(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        return BEGAN_MS + numbers // self.per_ms

    @property
    def end_ms(self) -> int:
        """The end of the minute in which the last event lies."""
        last = BEGAN_MS + (self.count - 1) // self.per_ms
        return last - last % MINUTE_MS + MINUTE_MS

    def counts(self) -> NDArray[np.int64]:
        """By minute and key."""
        numbers = np.arange(self.count)
        cells = (self.times_ms(numbers) - BEGAN_MS) // MINUTE_MS * self.keys + self.key_numbers(numbers)
        minutes = (self.end_ms - BEGAN_MS) // MINUTE_MS
        return np.bincount(cells, minlength=minutes * self.keys).reshape(minutes, self.keys)

    def lines(self) -> list[bytes]:
        """The results as our pipeline writes them, sorted."""
        found = self.counts()
        return sorted(
            f"{BEGAN_MS + minute * MINUTE_MS},{key_name(key)},{found[minute, key]}".encode()
            for minute, key in np.argwhere(found).tolist()
        )


def key_name(number: int) -> str:
    return f"k{number:07d}"


@dataclass(frozen=True, slots=True)
class Part:
    """Events `first` to `end`, as MESSAGE frames; the payload is noise, the same in every batch."""

    events: Events
    first: int
    end: int

    def batches(self, size: int) -> Iterator[NDArray[np.void]]:
        """In order. Each goes to one stream, which the caller sets."""
        noise = np.random.default_rng(size).bytes(size * EVENT_BYTES)
        names = np.array([key_name(number) for number in range(self.events.keys)], f"S{KEY_BYTES}")
        whole = np.zeros(size, FRAME)
        whole["length"], whole["tag"], whole["key_length"] = FRAME.itemsize - 4, MESSAGE, KEY_BYTES
        whole["payload"] = np.frombuffer(noise, f"V{EVENT_BYTES}")
        for start in range(self.first, self.end, size):
            numbers = np.arange(start, min(start + size, self.end))
            batch = whole[: len(numbers)].copy()
            batch["id"], batch["time"] = numbers, self.events.times_ms(numbers)
            batch["key"] = names[self.events.key_numbers(numbers)]
            yield batch


def last_of_all(events: Events, stream: int) -> bytes:
    """An event of a stream so late that every minute before it ends, once all streams have sent one; its own minute
    never does.
    """
    end = np.zeros(1, FRAME)
    end["length"], end["tag"], end["key_length"] = FRAME.itemsize - 4, MESSAGE, KEY_BYTES
    end["stream"], end["id"] = spread(stream), events.count
    end["time"], end["key"] = events.end_ms + 60 * MINUTE_MS, b"end"
    return end.tobytes()


# The program that sends: a process of its own, with several sessions of one source, as fast as credits allow.

SESSIONS = 4
"""One session alone has no more in flight than its window: it would wait for fsyncs."""


@dataclass(frozen=True, slots=True)
class Sent:
    """On the monotonic clock, which all processes of a machine share: the first send, and the last acknowledgement."""

    began: float
    ended: float


@dataclass(frozen=True, slots=True)
class SendJob:
    """A generator's job. All is durable when it returns; `is_last` sends what ends all minutes, after everything
    else is durable.
    """

    port: int
    source: str
    part: Part
    is_last: bool

    def __call__(self) -> Sent:
        sessions = [Session.open(self.port, self.source, [spread(number)]) for number in range(SESSIONS)]
        try:
            with selectors.DefaultSelector() as selector:
                for session in sessions:
                    selector.register(session.sock, selectors.EVENT_READ, session)
                return self._send(selector, sessions)
        finally:
            for session in sessions:
                session.sock.close()

    def _send(self, selector: selectors.BaseSelector, sessions: list[Session]) -> Sent:
        granted = min(session.granted for session in sessions)
        size = max(1, granted // WINDOW)
        began = 0.0
        for batch in self.part.batches(size):
            began = began or time.monotonic()
            session = _free(selector, sessions, granted - len(batch))
            batch["stream"] = spread(sessions.index(session))
            session.send(memoryview(batch.view("u1").data), len(batch))
        _wait_for_all(selector, sessions)
        if self.is_last:
            for number, session in enumerate(sessions):
                session.send(last_of_all(self.part.events, number), 1)
            _wait_for_all(selector, sessions)
        return Sent(began, time.monotonic())


def _free(selector: selectors.BaseSelector, sessions: list[Session], in_flight_max: int) -> Session:
    """The one that has least in flight, as soon as that is little enough."""
    while True:
        session = min(sessions, key=lambda session: session.in_flight)
        if session.in_flight <= in_flight_max:
            return session
        _receive(selector)


def _wait_for_all(selector: selectors.BaseSelector, sessions: list[Session]) -> None:
    while any(session.in_flight > 0 for session in sessions):
        _receive(selector)


def _receive(selector: selectors.BaseSelector) -> None:
    ready = selector.select(SILENCE_SECONDS_MAX)
    if not ready:
        raise BenchmarkFailed(f"nothing acknowledged for {SILENCE_SECONDS_MAX:.0f} s")
    for key, _ in ready:
        key.data.receive()


# Our sink with a clock: when each merge began and ended, written to a file for the benchmark.

FORMAT = "penstock_timed"
TIMINGS = "timings"
"""The option that names the file."""


@dataclass(frozen=True, slots=True)
class Merge:
    """On the monotonic clock, which all processes of a machine share."""

    began: float
    ended: float

    @property
    def seconds(self) -> float:
        return self.ended - self.began


class TimedSink(DataSource):
    @classmethod
    def name(cls) -> str:
        return FORMAT

    def streamWriter(self, schema: StructType, overwrite: bool) -> TimedWriter:  # noqa: ARG002, N802  Spark's name
        given = {name: value for name, value in self.options.items() if name != TIMINGS}
        with hinted():
            return TimedWriter(SinkOptions.parse(given), schema, self.options[TIMINGS])


class TimedWriter(StreamSink):
    def __init__(self, options: SinkOptions, schema: StructType, timings: str) -> None:
        super().__init__(options, schema)
        self._timings = timings

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  Spark's name
        began = time.monotonic()
        super().commit(messages, batchId)
        with Path(self._timings).open("a") as file:
            file.write(f"{began} {time.monotonic()}\n")


def read_merges(timings: Path, since: float) -> list[Merge]:
    """Those that began since then."""
    lines = timings.read_text().splitlines()
    return [merge for line in lines if (merge := Merge(*map(float, line.split()))).began >= since]


# A run


@dataclass(frozen=True, slots=True)
class Counted:
    """`seconds`: from the first message sent to the last result committed at the sink, on one clock."""

    events: int
    seconds: float
    stages_s: Mapping[str, float]
    """Where they go. Ingest and Spark overlap: together they are more than all."""
    core_s: Mapping[str, float] = field(default_factory=dict)
    """The processor time in them, by process."""

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
        spark, cores = self.stage.spark, str(self.stage.cores)
        with session(spark, pipeline=generation):
            counted = count_per_minute(generation.load(spark, "in", columns="key,event_time", minPartitions=cores))
        sink = generation.output() | {TIMINGS: str(self._timings)}
        writer = counted.writeStream.format(FORMAT).options(**sink)
        return writer.option("checkpointLocation", self.stage.checkpoint(self.name)).start()

    @property
    def _timings(self) -> Path:
        return self.stage.directory / f"{self.name}.merges"

    def _measure(self, query: StreamingQuery, results: Path) -> Counted:
        wanted = self.events.lines()
        self._send(0, self.warm, is_last=False)
        self.program.finish()
        query.processAllAvailable()
        known, before = len(query.recentProgress), self._core_s()
        self._send(self.warm, self.events.count, is_last=True)
        ended = _wait_for_bytes(query, results, sum(map(len, wanted)) + len(wanted))
        core_s = {process: used - before[process] for process, used in self._core_s().items()}
        sent = self.program.finish()
        check(results, wanted)
        query.processAllAvailable()  # so that all batches have reported how long they took
        batches = [Batch.of(progress) for progress in query.recentProgress[known:]]
        stages = where(batches, sent, read_merges(self._timings, sent.began), ended)
        return Counted(self.events.count - self.warm, ended - sent.began, stages, core_s)

    def _core_s(self) -> dict[str, float]:
        """Used so far by each process on the way of the events; by all Python processes of Spark together."""
        worker = own_cpu_seconds(self.stage.server.process.pid)
        return {"sender": own_cpu_seconds(self.program.pid), "worker": worker} | cpu_seconds_of_spark()

    def _send(self, first: int, end: int, *, is_last: bool) -> None:
        port = self.stage.server.ports["connector"]
        self.program.begin(SendJob(port, self.name, Part(self.events, first, end), is_last))


def count_per_minute(events: DataFrame) -> DataFrame:
    """A row for each key and minute, once: when the minute is over."""
    counts = windows.aggregate(events, windows.tumbling("1 minute"), keys=["key"], count=windows.count())
    began_ms, key = functions.unix_millis("window_start"), functions.col("key").cast("string")
    return counts.select(functions.concat_ws(",", began_ms, key, "count").alias("value"))


def _wait_for_bytes(query: StreamingQuery, results: Path, size: int) -> float:
    wait_until(query, lambda: (results / STATE).exists() and read_committed(results / STATE).size >= size)
    return time.monotonic()


def wait_until(query: StreamingQuery, is_done: Callable[[], bool]) -> None:
    """Raises BenchmarkFailed when the query has failed, or nothing comes for too long."""
    began = looked = time.monotonic()
    while not is_done():
        now = time.monotonic()
        if now - looked > QUERY_LOOK_SECONDS:
            looked = now
            if (error := query.exception()) is not None:
                raise BenchmarkFailed(f"the query has failed: {error}")
        if now - began > QUERY_SILENCE_SECONDS_MAX:
            raise BenchmarkFailed(f"the sink has not committed everything after {QUERY_SILENCE_SECONDS_MAX:.0f} s")
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
