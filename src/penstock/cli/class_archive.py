"""Creates the class archive: runs small pipelines in a JVM that dumps its classes when it ends.

`penstock run` does this in the background. `python -m penstock.cli.class_archive` does it at once, for instance when an
image is built.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import TYPE_CHECKING, Self

from penstock.cli.embedded_worker import FoundWorker, embedded_worker
from penstock.spark.pipelines import Pipeline, pipeline
from penstock.spark.run.class_archive import AUTO, SWITCH, ClassArchive, find_archive
from penstock.spark.run.java import use_java

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from penstock.client.source import Message
    from penstock.spark.run.runner import Runner, RunningPipeline

_QUIET_SECONDS = 60.0
"""Delay from the first epochs of a run to creating the archive in the background. Short runs are over by then."""

_RUN_SECONDS_MAX = 600.0
"""For the pipelines in the background, on a busy machine."""

_WRITE_SECONDS_MAX = 600.0
"""For a JVM that dumps its classes: 10 s of CPU time."""

_NICENESS = 19
"""Everything else on the machine comes first."""

_EVENTS = 100
"""Of ten seconds, for windows of one second."""

_PORTS = ("--connector-port=0", "--segment-port=0", "--http-port=0")
"""Free ones: programs look for workers on the default ports."""


# In the process that creates it.


@pipeline
def windowed(events: DataFrame) -> DataFrame:
    from penstock import dead_letters, windows

    return windows.aggregate(
        dead_letters.decode_json(events, "name string, number bigint"),
        windows.tumbling("1 second"),
        keys=["name"],
        events=windows.count(),
        total=windows.sum("number"),
    )


@pipeline
def counted(events: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812  as everybody calls it

    from penstock import watermarked

    counts = watermarked(events).groupBy(F.window("event_time", "1 second"), "stream").count()
    return counts.select("stream", F.window_time("window").alias("event_time"), "count")


def create(archive: ClassArchive) -> bool:
    """Returns whether it exists now. Does nothing if another process is creating it."""
    archive.path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(archive.path.with_suffix(".lock")) as is_locked:
        if is_locked and archive.is_missing:
            partial = archive.path.with_suffix(".partial")
            partial.unlink(missing_ok=True)  # left by a process that was killed while writing
            if _run_pipelines((windowed, counted), archive.creating_options(partial)):
                _finish(archive, partial)
    return archive.is_usable


def _finish(archive: ClassArchive, partial: Path) -> None:
    if partial.exists():
        archive.install(partial)
    else:
        archive.mark_failed()


@contextmanager
def _locked(path: Path) -> Iterator[bool]:
    with path.open("wb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
            return
        yield True


def _run_pipelines(pipelines: Sequence[Pipeline], java_options: str) -> bool:
    """Process everything that is stored, in a JVM with these options. Returns whether the JVM exited normally: one that
    takes too long is killed, possibly while it dumps its classes.
    """
    from penstock.spark.run.attempt import RunSettings
    from penstock.spark.run.driver import spark_driver
    from penstock.spark.run.runner import Runner, carry_by_value

    carry_by_value(pipelines)
    conf = {"spark.driver.extraJavaOptions": java_options, "spark.driver.memory": "512m"}
    with TemporaryDirectory(prefix="penstock-classes-") as name, embedded_worker(Path(name, "data"), _PORTS) as worker:
        folder = Path(name)
        with spark_driver(
            "penstock: class archive",
            "local[2]",
            conf,
            folder / "spark.log",
            uses_archive=False,  # a JVM cannot write an archive while it uses one
            end_seconds_max=_WRITE_SECONDS_MAX,
        ) as driver:
            settings = RunSettings(
                worker=worker.http, checkpoints=str(folder / "checkpoints"), cores=2, available_now=True
            )
            _send(worker.ports["connector"], _EVENTS)
            Runner(driver.session, pipelines, settings).run(_RUN_SECONDS_MAX)
            _recover(Runner(driver.session, pipelines, replace(settings, available_now=False)), worker)
    return driver.exit_status == 0


def _recover(runner: Runner, worker: FoundWorker) -> None:
    """Continue from the checkpoints, as after a crash, for some more events: those are the classes that matter most."""

    def send() -> None:
        _send(worker.ports["connector"], 2 * _EVENTS)  # returns when all pipelines have committed them
        runner.stop()

    threading.Thread(target=send, name="events", daemon=True).start()
    runner.run(_RUN_SECONDS_MAX)


def _send(port: int, last: int) -> None:
    """Events up to this number; those that are stored already are not sent again."""
    from penstock.client.source import Message, Source

    def events(after: int | None) -> Iterator[Message]:
        for number in range((after or 0) + 1, last + 1):
            payload = json.dumps({"name": f"name {number % 10}", "number": number})
            yield Message(number, payload.encode(), number * 100)

    source = Source(f"127.0.0.1:{port}", source="events")
    source.stream("training", events)
    source.run()


# In `penstock run`.


class BackgroundCreation:
    """Creates a missing archive in a process of its own, once all pipelines of a run have made progress. The process
    ends with the run at the latest, unless the run is killed; then the next run tries again.
    """

    def __init__(self) -> None:
        archive = find_archive() if os.environ.get(SWITCH, AUTO).lower() == AUTO else None
        self._is_due = archive is not None and archive.is_missing
        self._progress_at: float | None = None
        self.process: subprocess.Popen[bytes] | None = None
        self._cleanup = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cleanup.close()

    def look(self, pipelines: Sequence[RunningPipeline], now: float) -> None:
        if not self._is_due or not all(one.progress is not None for one in pipelines):
            return
        if self._progress_at is None:
            self._progress_at = now
        elif now - self._progress_at >= _QUIET_SECONDS:
            self._is_due = False
            self._start()

    def _start(self) -> None:
        """Its output is discarded: if it fails, Spark starts as it would without an archive."""
        folder = self._cleanup.enter_context(TemporaryDirectory(prefix="penstock-", ignore_cleanup_errors=True))
        self.process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "TMPDIR": folder},
            process_group=0,  # Ctrl-C is for the run
        )
        self._cleanup.callback(_kill, self.process)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """With its JVM, which would otherwise dump its classes first."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def main() -> None:
    os.nice(_NICENESS)
    use_java()
    archive = find_archive()
    if archive is None:
        sys.exit(f"no class archive: {SWITCH} is off, or Spark cannot run here")
    if not create(archive):
        sys.exit(f"no class archive: this Java could not write {archive.path}")


if __name__ == "__main__":
    main()
