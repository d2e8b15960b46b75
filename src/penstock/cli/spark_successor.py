"""Pipelines of `penstock run` on Spark, also after the end of Spark's JVM: PySpark cannot use another one in the same
process. So a successor is started, a process that loads the pipelines again and continues them in a JVM of its own.
Until it does, this process reports to the worker why they have failed.
"""

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeAlias

from penstock.cli.class_archive import BackgroundCreation
from penstock.cli.embedded_worker import FoundWorker, end_with_parent
from penstock.cli.run_setup import end_by_sigterm, report, stopped_by_signals
from penstock.cli.spark_run import Ended, Lost, SparkRun, Start, restart_text, run_here
from penstock.core.errors import RequestError
from penstock.core.logs import set_up_logging
from penstock.spark.run.attempt import RestartPolicy
from penstock.spark.run.driver import SparkNotStarted
from penstock.spark.run.failures import Failure
from penstock.spark.run.java import use_java
from penstock.spark.run.runner import Standing

_LOOK_SECONDS = 0.2

_END_SECONDS_MAX = 120.0
"""For a successor that was asked to stop: it waits for batches, and then for its JVM. A second Ctrl-C does not."""

_MAIN = f"from {__name__} import main; main()"


@dataclass(frozen=True, slots=True)
class NotStarted:
    """The successor could not load the pipelines, or Spark did not start."""

    text: str
    hint: str


@dataclass(frozen=True, slots=True)
class Failed:
    """Pipelines have failed for good."""

    text: str
    hint: str


Outcome: TypeAlias = Ended | Lost | NotStarted | Failed


def run_on_spark(worker: FoundWorker, run: SparkRun, start: Start) -> int | None:
    """Start Spark and run the pipelines until they end or are stopped. Returns the number of the signal that ended the
    run, if any. Raises RequestError when Spark does not start or a pipeline has failed for good, Unavailable when the
    worker has ended that was started for the run.
    """
    deadline = None if run.options.seconds_max is None else time.monotonic() + run.options.seconds_max
    with BackgroundCreation() as creation:
        found = run_here(worker, run, start, creation)
        while isinstance(found, Lost):
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            found = _continued(worker, run.within(left), found)
        return found.signal


# In the process that the user has started.


def _continued(worker: FoundWorker, run: SparkRun, lost: Lost) -> Ended | Lost:
    """Raises as `run_on_spark`."""
    stop = threading.Event()
    with stopped_by_signals(stop.set) as caught, _reported(worker.http, lost.standings):
        outcome = _outcome(worker, run, lost, stop)
        if caught:
            return Ended(caught[0])
        match outcome:
            case Failed(text, hint):
                raise RequestError(text, hint)
            case NotStarted(text, hint):
                return _after_pause(run, lost, Failure(text, hint, is_outage=True), stop)
            case Ended() | Lost() as found:
                return found


@contextmanager
def _reported(worker: str, standings: Mapping[str, Standing]) -> Iterator[None]:
    """Heartbeats for the pipelines, until newer generations send their own."""
    generations = [standing.report(name, worker) for name, standing in standings.items()]
    try:
        yield
    finally:
        for generation in filter(None, generations):
            generation.abandon()


def _outcome(worker: FoundWorker, run: SparkRun, lost: Lost, stop: threading.Event) -> Outcome:
    with TemporaryDirectory(prefix="penstock-") as folder:
        file = Path(folder, "outcome")
        process = subprocess.Popen(
            [sys.executable, "-c", _MAIN, str(os.getpid()), str(file)],
            stdin=subprocess.PIPE,
            process_group=0,  # Ctrl-C is for us: we stop it
        )
        try:
            assert process.stdin is not None
            with suppress(BrokenPipeError), process.stdin as given:  # it may have ended already
                pickle.dump((run, lost), given)
            _wait(worker, process, stop)
        finally:
            process.kill()  # does nothing if it has ended
            process.wait()
        if file.exists():
            found: Outcome = pickle.loads(file.read_bytes())  # noqa: S301  our own process has written it
            return found
    return NotStarted(_how(process.returncode), "Spark's log may have the reason.")


def _wait(worker: FoundWorker, process: "subprocess.Popen[bytes]", stop: threading.Event) -> None:
    while process.poll() is None:
        worker.check()
        if stop.wait(_LOOK_SECONDS):
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(_END_SECONDS_MAX)
            return


def _how(status: int) -> str:
    how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"has ended with status {status}"
    return f"the process of Spark's driver {how}"


def _after_pause(run: SparkRun, lost: Lost, failure: Failure, stop: threading.Event) -> Lost:
    """Returns when the first of the pipelines is due again."""
    now = time.monotonic()
    standings = {name: one.failed(failure, now, RestartPolicy()) for name, one in lost.standings.items()}
    due = {name: one.restart_at for name, one in standings.items() if one.restart_at is not None}
    for name, restart_at in due.items():
        report(run.console(), restart_text(name, failure, standings[name].restarts.in_a_row, restart_at))
    with _reported(run.worker, standings):
        stop.wait(max(0.0, min(due.values(), default=now) - now))
    return replace(lost, standings=standings)


# In the successor.


def main() -> None:
    parent, file = int(sys.argv[1]), Path(sys.argv[2])
    signal.signal(signal.SIGTERM, end_by_sigterm)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent(signal.SIGKILL)
    if os.getppid() != parent:  # it has ended before that
        sys.exit()
    set_up_logging()
    use_java()
    run, lost = pickle.load(sys.stdin.buffer)  # noqa: S301  from the process that has started this one
    partial = file.with_suffix(".partial")
    partial.write_bytes(pickle.dumps(_continue(run, lost)))
    partial.replace(file)


def _continue(run: SparkRun, lost: Lost) -> Outcome:
    try:
        start = Start(run.load(lost.deployed), lost.deployed, lost.standings, lost.reported)
    except RequestError as error:  # of a file that is being edited, for example
        return NotStarted(str(error), error.hint)
    try:
        return run_here(FoundWorker(run.worker, {}), run, start)
    except SparkNotStarted as error:
        return NotStarted(str(error), error.hint)
    except RequestError as error:
        return Failed(str(error), error.hint)
