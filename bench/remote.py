"""`script/bench remote`: a Spark query that reads a source of another shard, beside one of the pipeline's own shard.

Two shard processes on this machine; the same events in both. Each round reads all of them, in several epochs, with a
new pipeline. Nothing is written: the difference is that of cuts and reads. Besides the elapsed time, the core seconds
of both shards and of Spark are compared: other work on the machine hardly changes these.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Console
from rich.table import Table

from bench.contenders import shard
from bench.flows import bench_session
from bench.harness import BenchmarkFailed, Report, figures, interleave_warm, progress, ratios, surroundings
from bench.processes import cpu_seconds_of_spark, own_cpu_seconds
from penstock.client import Message, Source
from penstock.client.coordinator import CoordinatorClient

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NEAR, FAR = "own shard", "other shard"
CORES = "other shard, core seconds"
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
        found = compare(effort, spark, base, note)
        return RemoteReport(found, surroundings(base) | {"events": effort.events, "epochs": EPOCHS})


def compare(
    effort: Effort, spark: SparkSession, base: Path, note: Callable[[str], None]
) -> Mapping[str, Sequence[Spent]]:
    """By contender. In an existing session, and an empty directory."""
    with _shards(base) as shards:
        note("sending the events")
        for one, source in zip(shards, ("near", "far"), strict=True):
            _send(f"127.0.0.1:{one.ports['connector']}", source, effort.events)
        setting = Setting(f"127.0.0.1:{shards[0].ports['http']}", [one.pid for one in shards], spark, base)
        contenders = [Query(*names, setting, effort.events) for names in ((NEAR, "near"), (FAR, "far"))]
        return interleave_warm(contenders, effort.rounds, lambda one: one.measure(), note, effort.total_s_max)


@dataclass(frozen=True, slots=True)
class ShardProcess:
    pid: int
    ports: Mapping[str, int]


@contextmanager
def _shards(base: Path) -> Iterator[list[ShardProcess]]:
    path = base / "map.json"
    places = {"near": 0, "far": 1}
    path.write_text(json.dumps({"places": places, "addresses": {}}))
    with ExitStack() as stack:
        found = [stack.enter_context(_process(base / f"shard-{number}", path, number)) for number in range(2)]
        addresses = {
            number: [f"127.0.0.1:{one.ports['http']}", f"127.0.0.1:{one.ports['segment']}"]
            for number, one in enumerate(found)
        }
        path.write_text(json.dumps({"places": places, "addresses": addresses}))
        yield found


@contextmanager
def _process(data: Path, path: Path, number: int) -> Iterator[ShardProcess]:
    data.mkdir()
    command = [sys.executable, "-m", shard.__name__, str(data), str(path), str(number)]
    with (data / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)
    assert process.stdout is not None
    with process.stdout as said:
        try:
            yield ShardProcess(process.pid, json.loads(said.readline()))
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


@dataclass(frozen=True, slots=True)
class Setting:
    home: str
    """The HTTP address of the pipeline's own shard."""
    shards: Sequence[int]
    """The processes of both shards."""
    spark: SparkSession
    base: Path

    def core_seconds(self) -> float:
        """Core seconds that everything involved has used so far."""
        return sum(map(own_cpu_seconds, self.shards)) + sum(cpu_seconds_of_spark().values())


class Spent(NamedTuple):
    seconds: float
    cores: float


@dataclass(slots=True)
class Query:
    name: str
    source: str
    setting: Setting
    events: int
    _runs: int = field(default=0)

    def measure(self) -> Spent:
        """Measure from the start of a query until it has read everything and ended."""
        self._runs += 1
        home, pipeline = self.setting.home, f"{self.source}-{self._runs}"
        with closing(CoordinatorClient(home)) as coordinator:
            size = sum(coordinator.resolve([self.source], "latest").values())
            load = self.setting.spark.readStream.format("penstock").option("maxBytesPerEpoch", str(-(-size // EPOCHS)))
            frame = load.options(worker=home, pipeline=pipeline, source=self.source).load()
            writer = frame.writeStream.format("noop").option("checkpointLocation", str(self.setting.base / pipeline))
            began, cores = time.perf_counter(), self.setting.core_seconds()
            query = writer.trigger(availableNow=True).start()
            query.awaitTermination()
            spent = Spent(time.perf_counter() - began, self.setting.core_seconds() - cores)
            coordinator.drop(pipeline)
        read = sum(one["numInputRows"] for one in query.recentProgress)
        if read != self.events:
            raise BenchmarkFailed(f"{self.name}: {read} of {self.events} events were read")
        return spent


@dataclass(frozen=True)
class RemoteReport(Report):
    found: Mapping[str, Sequence[Spent]]
    settings: Mapping[str, object]
    benchmark = "remote"
    goals = {FAR: GOAL, CORES: GOAL}  # noqa: RUF012  a constant of the class
    at_most = (FAR, CORES)

    def round_ratios(self) -> dict[str, list[float]]:
        far, near = self.found[FAR], self.found[NEAR]
        return {
            FAR: ratios([one.seconds for one in far], [one.seconds for one in near]),
            CORES: ratios([one.cores for one in far], [one.cores for one in near]),
        }

    def rounds(self) -> int:
        return len(self.found[NEAR])

    def details(self) -> dict[str, object]:
        return {
            "seconds": {name: [round(one.seconds, 3) for one in values] for name, values in self.found.items()},
            "core_seconds": {name: [round(one.cores, 2) for one in values] for name, values in self.found.items()},
        }

    def tables(self) -> Iterable[Table]:
        table = figures("Reading a source with Spark", "", "all", "ratio", "goal")
        for name, values in self.found.items():
            seconds = f"{median(one.seconds for one in values):.2f} s"
            table.add_row(name, seconds, self.ratio_cell(name), self.goal_cell(name))
        for name, label in ((NEAR, f"{NEAR}, core seconds"), (FAR, CORES)):
            cores = f"{median(one.cores for one in self.found[name]):.2f} s"
            table.add_row(label, cores, self.ratio_cell(label), self.goal_cell(label))
        yield table
