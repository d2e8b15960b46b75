"""Load generators: processes apart from the server under test and from the progress display."""

import gc
import multiprocessing
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Generic, Self, TypeVar, cast

from penstock.bench.contender import BenchmarkFailed, Link, ReadTarget, Target
from penstock.bench.drive import Load, drive, probe, read_back

ANSWER_SECONDS_MAX = 60.0
"""More than a job's own limits allow: then the generator itself is stuck."""

R = TypeVar("R")


_connected: list[Link] = []
"""In a generator process: the connections that wait for the load."""


@dataclass(frozen=True, slots=True)
class ConnectJob:
    """Before the load, since some contenders have much to say on connecting."""

    target: Target
    indices: range

    def __call__(self) -> None:
        _disconnect()
        _connected.extend(self.target.connect(index) for index in self.indices)


@dataclass(frozen=True, slots=True)
class LoadJob:
    window: int
    start: float
    end: float

    def __call__(self) -> Load:
        try:
            return drive(_connected, self.window, self.start, self.end)
        finally:
            _disconnect()


def _disconnect() -> None:
    while _connected:
        _connected.pop().sock.close()


@dataclass(frozen=True, slots=True)
class ProbeJob:
    target: Target
    seconds: float

    def __call__(self) -> list[float]:
        link = self.target.connect(0)
        with link.sock:
            return probe(link, self.seconds)


@dataclass(frozen=True, slots=True)
class ReadJob:
    target: ReadTarget
    request_bytes: int
    seconds: float

    def __call__(self) -> tuple[int, float]:
        reader = self.target.connect_reader()
        with reader.sock:
            return read_back(reader, self.request_bytes, self.seconds)


@dataclass(frozen=True, slots=True)
class Failure:
    error: Exception


class Worker(Generic[R]):
    """One generator process; takes one job at a time."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()

    def begin(self, job: Callable[[], R]) -> None:
        self._pipe.send(job)

    def finish(self) -> R:
        try:
            if not self._pipe.poll(ANSWER_SECONDS_MAX):
                raise BenchmarkFailed("the load generator does not answer")
            answer = self._pipe.recv()
        except EOFError:
            raise BenchmarkFailed("the load generator died") from None
        if isinstance(answer, Failure):
            raise answer.error
        return cast("R", answer)

    def stop(self) -> None:
        self._pipe.close()
        self._process.kill()
        self._process.join()


def serve(pipe: Connection) -> None:
    """A generator process: jobs in, results out, until its parent has gone. Ctrl-C is for the
    parent; collections of garbage would be pauses in the load, and there is next to none.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.disable()
    while True:
        try:
            job: Callable[[], object] = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send(job())
        except Exception as error:
            pipe.send(Failure(error))


class Generators:
    """All generator processes of one benchmark; the connections are shared out among them."""

    def __init__(self, processes: int = 1) -> None:
        self._workers: list[Worker[object]] = [Worker() for _ in range(processes)]

    def connect(self, target: Target, connections: int) -> None:
        """Make the connections of the next load."""
        for number, worker in enumerate(self._workers):
            worker.begin(ConnectJob(target, range(number, connections, len(self._workers))))
        for worker in self._workers:
            worker.finish()

    def load(self, window: int, warmup_s: float, measure_s: float) -> Load:
        """Load the connections that were made; the warm-up begins now. They are closed afterwards."""
        start = time.monotonic() + warmup_s
        for worker in self._workers:
            worker.begin(LoadJob(window, start, start + measure_s))
        loads = [cast("Load", worker.finish()) for worker in self._workers]
        events = sum(load.events for load in loads)
        total = sum(load.total for load in loads)
        return Load(events, max(load.seconds for load in loads), total)

    def run(self, job: Callable[[], R]) -> R:
        """One job on one generator, the others idle."""
        worker = cast("Worker[R]", self._workers[0])
        worker.begin(job)
        return worker.finish()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for worker in self._workers:
            worker.stop()
