"""The main job, start to end: two programs send, a pipeline on Spark counts per key and window in event time, a sink
program commits the results by two-phase commit, and what it has committed is compared with a calculation that knows
neither Penstock nor Spark. With --chaos the worker, the driver, the sink and a program are killed along the way, with
SIGKILL. With --store the journal and the checkpoints are in an object store, and each start of the worker and of the
driver is in another, empty directory, as if it were on another machine.

Nothing here is pretended: all parts are processes of their own, and the verdict is computed from the data.
"""

import argparse
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from demo.events import KEYS, PROGRAMS, START_MS, STREAMS
from demo.parts import DriverPart, Part, WorkerPart
from demo.results import Results, Verdict, judge
from penstock.client.coordinator import CoordinatorClient
from penstock.protocol.api.pipelines import PipelineStatus
from penstock.protocol.stored.event import END_OF_TIME
from tests.support.ports import free_port

console = Console(highlight=False)

RATE = 200.0
"""Events a second of each stream."""
SECONDS_MAX = 600.0
TURN_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Kill:
    """Kill the part once so large a share of all events is in the results, and an epoch was completed since the last
    kill: so that it meets a system that is at work.
    """

    share: float
    name: str


KILLS = (
    Kill(0.02, "north"),
    Kill(0.1, "worker"),
    Kill(0.2, "driver"),
    Kill(0.3, "sink"),
    Kill(0.5, "worker"),
    Kill(0.6, "sink"),
    Kill(0.7, "driver"),
)


class Demo:
    def __init__(self, directory: Path, per_stream: int, kills: tuple[Kill, ...], store: str | None = None) -> None:
        self.per_stream = per_stream
        self.total = len(PROGRAMS) * len(STREAMS) * per_stream
        self.directory = directory
        self.moves = store is not None
        self.worker = WorkerPart(directory, directory / "worker.log", store)
        self.results = Results(directory / "results.jsonl")
        self.sink_address = f"127.0.0.1:{free_port()}"
        command = ["demo.sink", str(self.results.file), self.sink_address]
        self.sink = Part("sink", command, directory / "sink.log")
        self.log: list[str] = []
        self._kills = list(kills)
        self._last_kill = 0

    def start(self) -> None:
        self.sink.start()
        self.worker.start()
        command = ["penstock", "run", "demo/pipeline.py", "--worker", self.worker.address("http")]
        command += ["--sink", f"connector://{self.sink_address}"]
        checkpoints, log = self.directory / "checkpoint", self.directory / "driver.log"
        self.driver = DriverPart(command, checkpoints, log, moves=self.moves)
        self.programs = [self._program(name) for name in PROGRAMS]
        self.driver.start()
        self._wait_for_pipeline()
        for program in self.programs:
            program.start()

    def _wait_for_pipeline(self) -> None:
        """A program is acknowledged by the pipelines that are registered: without one, when its events are stored."""
        with CoordinatorClient(self.worker.address("http")) as coordinator:
            while not any(pipeline.inputs for pipeline in coordinator.pipelines()):
                self._check_alive()
                time.sleep(TURN_SECONDS)

    def _program(self, name: str) -> Part:
        addresses = [self.worker.address("connector"), self.worker.address("http")]
        command = ["demo.source", *addresses, name, str(self.per_stream), str(RATE)]
        return Part(name, command, self.directory / f"{name}.log")

    def turn(self) -> None:
        """Look at what has come out; kill what is due."""
        self.results.read_on()
        self._check_alive()
        if self._kills and self.processed >= self._kills[0].share * self.total:
            complete = self._pipeline().complete
            if complete > self._last_kill:
                self._last_kill = complete
                self._kill(self._kills.pop(0).name)

    @property
    def processed(self) -> int:
        return sum(total.count for total in self.results.totals.values())

    def is_done(self) -> bool:
        """The programs end when everything they sent is acknowledged, and they have said that there is no more; then
        the last windows close, and are committed at the sink.
        """
        if any(program.is_running for program in self.programs):
            return False
        pipeline = self._pipeline()
        return pipeline.watermark == END_OF_TIME and pipeline.complete == pipeline.planned

    def _pipeline(self) -> PipelineStatus:
        """A worker that was just started does not serve its shard yet."""
        with CoordinatorClient(self.worker.address("http")) as coordinator:
            while not (found := coordinator.pipelines()):
                self._check_alive()
                time.sleep(TURN_SECONDS)
        return found[0]

    def _check_alive(self) -> None:
        failed = [part for part in self.programs if part.exit_status]
        failed += [part for part in (self.sink, self.worker, self.driver) if not part.is_running]
        if failed:
            raise SystemExit(f"{failed[0].name} has ended with {failed[0].exit_status}:\n{failed[0].last_words()}")

    def _kill(self, name: str) -> None:
        part = next(part for part in self.parts if part.name == name)
        if not part.is_running:
            return
        part.kill()
        part.start()
        where = " in an empty directory" if self.moves and part in (self.worker, self.driver) else ""
        self.log.append(f"kill {sum(part.kills for part in self.parts)}: SIGKILL to {name}, started again{where}")

    @property
    def parts(self) -> list[Part]:
        return [self.sink, self.worker, self.driver, *self.programs]

    def stop(self) -> None:
        for part in reversed(self.parts):
            part.stop()


def view(demo: Demo) -> Group:
    totals = demo.results.totals
    starts = sorted({cell.window_ms for cell in totals})
    table = Table(title="events per window in event time, as the sink has committed them", title_justify="left")
    table.add_column("window", justify="right")
    for key in KEYS:
        table.add_column(key, justify="right")
    for start in starts:
        counts = {cell.key: total.count for cell, total in totals.items() if cell.window_ms == start}
        table.add_row(f"{(start - START_MS) / 1000:+.1f} s", *(f"{counts.get(key, 0):,}" for key in KEYS))
    bottom = Text(progress(demo))
    return Group(*(Text(f"  {line}") for line in demo.log), table if totals else Text(), bottom)


def progress(demo: Demo) -> str:
    if not demo.results.totals:
        return "starting Spark …"
    return f"{demo.processed:,} of {demo.total:,} events are in windows that the sink has committed"


@contextmanager
def running(demo: Demo) -> Iterator[None]:
    demo.start()
    try:
        yield
    finally:
        demo.stop()


class Screen:
    """A live table; where there is no terminal, a line whenever there is something new to say."""

    def __init__(self, demo: Demo) -> None:
        self._demo = demo
        self._said = 0
        self._last = ""
        self._live = Live(console=console, auto_refresh=False, transient=True)

    def __enter__(self) -> "Screen":
        if console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def show(self) -> None:
        if console.is_terminal:
            self._live.update(view(self._demo), refresh=True)
            return
        for line in (*self._demo.log[self._said :], progress(self._demo)):
            if line != self._last:
                console.print(line)
        self._said, self._last = len(self._demo.log), progress(self._demo)


def watch(demo: Demo) -> None:
    """Until everything that the programs sent is in windows that the sink has committed."""
    deadline = time.monotonic() + SECONDS_MAX
    with Screen(demo) as screen:
        while not demo.is_done():
            demo.turn()
            screen.show()
            if time.monotonic() > deadline:
                raise SystemExit(f"the demo takes too long; the driver says:\n{demo.driver.last_words()}")
            time.sleep(TURN_SECONDS)
        demo.turn()
    console.print(view(demo))


def report(demo: Demo, verdict: Verdict, seconds: float) -> None:
    table = Table(title="What happened", title_justify="left", show_header=False)
    table.add_row("events sent and acknowledged", f"{verdict.sent:,}")
    table.add_row("stored", f"{verdict.stored:,}")
    table.add_row("processed, as the windows at the sink count them", f"{verdict.processed:,}")
    table.add_row("late, or not to be processed", f"{verdict.late:,}")
    table.add_row("windows that were emitted more than once", f"{verdict.repeated:,}")
    table.add_row("cells that differ from the independent calculation", f"{verdict.wrong_cells:,}")
    table.add_row("committed bytes, line by line", "right" if verdict.has_right_bytes else "wrong")
    for part in demo.parts:
        if part.kills:
            table.add_row(f"{part.name} killed with SIGKILL", f"{part.kills} ({part.processes_killed} processes)")
    table.add_row("time", f"{seconds:.0f} s")
    console.print(table)
    if not verdict.is_good:
        console.print("[bold red]Verdict: the results are not what they should be.[/]")
        raise SystemExit(1)
    console.print(
        "[bold green]Verdict: every event was stored once and counted once; what the sink has committed is right.[/]"
    )


_OWN_STORE = "seaweedfs"


@contextmanager
def opened(store: str | None, directory: str) -> Iterator[str | None]:
    """The URL of the store; SeaweedFS is started, and stopped at the end."""
    if store != _OWN_STORE:
        yield store
        return
    from penstock.testing.seaweedfs import SeaweedFS  # here: the demo needs no bucket otherwise

    with SeaweedFS(Path(directory) / "seaweedfs") as seaweedfs:
        os.environ.update(seaweedfs.environment())
        yield seaweedfs.url("demo")


def main() -> None:
    parser = argparse.ArgumentParser(prog="script/demo", description=__doc__)
    parser.add_argument("--chaos", action="store_true", help="kill worker, driver, sink and a program along the way")
    parser.add_argument("--events", type=int, default=6000, help="events of each stream (default: 6000, half a minute)")
    parser.add_argument(
        "--store",
        nargs="?",
        const=_OWN_STORE,
        metavar="URL",
        help="keep journal and checkpoints in this object store (an empty prefix), or in a SeaweedFS of its own, and "
        "start worker and driver in another directory after each kill",
    )
    options = parser.parse_args()
    console.print(
        f"A worker, {len(PROGRAMS)} programs with {len(STREAMS)} streams each, a pipeline on Spark, and a sink …"
    )
    with tempfile.TemporaryDirectory(prefix="penstock-demo-") as directory, opened(options.store, directory) as store:
        demo = Demo(Path(directory), options.events, KILLS if options.chaos else (), store)
        began = time.monotonic()
        with running(demo):
            watch(demo)
            verdict = judge(demo.worker.address("segment"), demo.results, options.events)
        report(demo, verdict, time.monotonic() - began)


def _stop(*_: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _stop)
    try:
        main()
    except KeyboardInterrupt:
        console.print("stopped")
        raise SystemExit(130) from None
