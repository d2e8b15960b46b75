"""`script/bench remote`: a Spark query that reads a source of another shard, beside one of the pipeline's own shard.

Two shard processes on this machine; the same events in both. Each round reads all of them, in several epochs, with a
new pipeline. Nothing is written: the difference is that of cuts and reads.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from bench.contenders import shard
from bench.flows import bench_session
from bench.harness import BenchmarkFailed, Report, figures, interleave_warm, progress, surroundings
from penstock.client import Message, Source
from penstock.client.coordinator import CoordinatorClient

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NEAR, FAR = "own shard", "other shard"
GOAL = 1.2
PAYLOAD = b"x" * 200
EPOCHS = 8
STOP_SECONDS_MAX = 10.0


@dataclass(frozen=True, slots=True)
class Effort:
    rounds: int
    events: int
    total_s_max: float


QUICK = Effort(rounds=3, events=300_000, total_s_max=180)
FULL = Effort(rounds=7, events=1_000_000, total_s_max=900)


def run(effort: Effort, directory: Path | None = None, console: Console | None = None) -> RemoteReport:
    with bench_session(directory) as (spark, base), ExitStack() as stack:
        note = stack.enter_context(progress(console, 1 + 2 * (effort.rounds + 1)))
        (base / "data").mkdir()
        (base / "data" / "token").write_text("not needed here")  # where the session's processes look for one
        shards = stack.enter_context(_shards(base))
        note("sending the events")
        for ports, source in zip(shards, ("near", "far"), strict=True):
            _send(f"127.0.0.1:{ports['connector']}", source, effort.events)
        home = f"127.0.0.1:{shards[0]['http']}"
        contenders = [Query(*names, home, spark, base, effort.events) for names in ((NEAR, "near"), (FAR, "far"))]
        found = interleave_warm(contenders, effort.rounds, lambda one: one.measure(), note, effort.total_s_max)
        return RemoteReport(found, surroundings(base) | {"events": effort.events, "epochs": EPOCHS})


@contextmanager
def _shards(base: Path) -> Iterator[list[Mapping[str, int]]]:
    path = base / "map.json"
    places = {"near": 0, "far": 1}
    path.write_text(json.dumps({"places": places, "addresses": {}}))
    with ExitStack() as stack:
        found = [stack.enter_context(_process(base / f"shard-{number}", path, number)) for number in range(2)]
        addresses = {
            number: [f"127.0.0.1:{ports['http']}", f"127.0.0.1:{ports['segment']}"]
            for number, ports in enumerate(found)
        }
        path.write_text(json.dumps({"places": places, "addresses": addresses}))
        yield found


@contextmanager
def _process(data: Path, path: Path, number: int) -> Iterator[Mapping[str, int]]:
    data.mkdir()
    command = [sys.executable, "-m", shard.__name__, str(data), str(path), str(number)]
    with (data / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)
    assert process.stdout is not None
    with process.stdout as said:
        try:
            yield json.loads(said.readline())
        finally:
            process.kill()
            process.wait(STOP_SECONDS_MAX)


def _send(connector: str, source: str, count: int) -> None:
    def messages(after: int | None) -> Iterator[Message]:
        for number in range((after or 0) + 1, count + 1):
            yield Message(number, PAYLOAD, number)

    program = Source(connector, source=source)
    program.stream("one", messages)
    program.run()


@dataclass(slots=True)
class Query:
    name: str
    source: str
    home: str
    spark: SparkSession
    base: Path
    events: int
    _runs: int = field(default=0)

    def measure(self) -> float:
        """Seconds from the start of a query to its end, when it has read everything."""
        self._runs += 1
        pipeline = f"{self.source}-{self._runs}"
        with closing(CoordinatorClient(self.home)) as coordinator:
            size = sum(coordinator.resolve([self.source], "latest").values())
            load = self.spark.readStream.format("penstock").option("maxBytesPerEpoch", str(-(-size // EPOCHS)))
            frame = load.options(worker=self.home, pipeline=pipeline, source=self.source).load()
            writer = frame.writeStream.format("noop").option("checkpointLocation", str(self.base / pipeline))
            began = time.perf_counter()
            query = writer.trigger(availableNow=True).start()
            query.awaitTermination()
            spent = time.perf_counter() - began
            coordinator.drop(pipeline)
        read = sum(one["numInputRows"] for one in query.recentProgress)
        if read != self.events:
            raise BenchmarkFailed(f"{self.name}: {read} of {self.events} events were read")
        return spent


@dataclass(frozen=True)
class RemoteReport(Report):
    found: Mapping[str, Sequence[float]]
    settings: Mapping[str, object]
    benchmark = "remote"
    goals = {FAR: GOAL}  # noqa: RUF012  a constant of the class
    at_most = (FAR,)

    def round_ratios(self) -> dict[str, list[float]]:
        return {FAR: [far / near for far, near in zip(self.found[FAR], self.found[NEAR], strict=True)]}

    def rounds(self) -> int:
        return len(self.found[NEAR])

    def details(self) -> dict[str, object]:
        return {"seconds": {name: [round(one, 3) for one in values] for name, values in self.found.items()}}

    def tables(self) -> Iterable[Table]:
        table = figures("Reading a source with Spark", "", "seconds", "ratio", "goal")
        for name, values in self.found.items():
            table.add_row(name, f"{median(values):.2f}", self.ratio_cell(name), self.goal_cell(name))
        yield table
