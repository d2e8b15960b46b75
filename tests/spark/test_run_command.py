"""`penstock run` as a user runs it: real processes, ended in every possible way, and nothing is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from penstock.client.coordinator import CoordinatorClient
from tests.spark.sending import outputs, send
from tests.support.java import need_spark
from tests.support.running_worker import RunningWorker

pytestmark = [pytest.mark.process, pytest.mark.spark]

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
START_SECONDS_MAX = 120
END_SECONDS_MAX = 150
ASKING = "python_streaming_source_runner"
"""A process that was just requesting an offset retries a worker that is gone for a minute, and then ends."""
SMALL = ["--master", "local[2]"]


@pytest.fixture(autouse=True, scope="module")
def _java() -> None:
    need_spark()


class Run:
    """A `penstock run` in its own process group. Everything that it starts is identified by a mark."""

    def __init__(self, folder: Path, *arguments: str, **environment: str) -> None:
        self._mark = uuid.uuid4().hex
        self._log = folder / f"run-{self._mark}.log"
        master = () if "--master" in arguments else SMALL
        self._command = [sys.executable, "-m", "penstock", "run", *arguments, *master]
        self._folder = folder
        self._environment = os.environ | {"PENSTOCK_TEST_MARK": self._mark, "COLUMNS": "120"} | environment

    def __enter__(self) -> Self:
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                self._command,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                env=self._environment,
                start_new_session=True,
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def kill(self) -> None:
        """Everything that it has started, also what is started meanwhile."""
        while alive := self.alive():
            for pid in alive:
                with suppress(ProcessLookupError):  # it has ended by itself since
                    os.kill(pid, signal.SIGKILL)
            self.process.poll()
        self.process.wait()

    @property
    def said(self) -> str:
        return self._log.read_text(errors="replace")

    def alive(self) -> list[int]:
        """All processes that this run has started, including itself."""
        marked = f"PENSTOCK_TEST_MARK={self._mark}".encode()
        return [pid for pid, environment in environments() if marked in environment]

    def until(self, condition: Callable[[], object], seconds: float = START_SECONDS_MAX) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert self.process.poll() is None, f"it has ended:\n{self.said}"
            assert time.monotonic() < deadline, f"it did not happen in time:\n{self.said}"
            time.sleep(0.05)

    def ended(self, but: str = "nothing") -> int:
        """Its exit status, once everything that it has started is gone, except these."""
        try:
            status = self.process.wait(END_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it has not ended:\n{self.said}") from None
        deadline = time.monotonic() + END_SECONDS_MAX
        while left := [text for text in map(command_of, self.alive()) if but not in text]:
            assert time.monotonic() < deadline, f"left behind: {left}"
            time.sleep(0.05)
        return status


def environments() -> Iterator[tuple[int, bytes]]:
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                yield int(folder.name), (folder / "environ").read_bytes()
            except OSError:  # it has ended, or is not ours
                continue


def command_of(pid: int) -> str:
    return whole_command_of(pid)[:200]


def whole_command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def ports(data: Path) -> dict[str, int]:
    try:
        found: dict[str, int] = json.loads((data / "ports.json").read_text())
    except FileNotFoundError:
        return {}
    return found


def is_running(worker: str, pipeline: str) -> bool:
    with CoordinatorClient(worker) as coordinator:
        return any(each.name == pipeline and each.state == "RUNNING" for each in coordinator.pipelines())


def counts(segment_address: str) -> dict[str, int]:
    """The last count of each word."""
    rows = [json.loads(event.payload) for event in outputs(segment_address, "count_words")]
    return {row["key"]: row["count"] for row in rows}


def lines(number: int) -> list[bytes]:
    return [b"the %d of many" % n for n in range(number)]


def expected(number: int) -> dict[str, int]:
    return Counter(word for line in lines(number) for word in line.decode().split())


def is_starting_spark(run: Run) -> bool:
    return any("pyspark-shell" in whole_command_of(pid) for pid in run.alive())


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_a_run_that_is_stopped_while_spark_starts_leaves_no_jvm_behind(
    worker: RunningWorker, tmp_path: Path, number: signal.Signals, status: int
) -> None:
    http = f"127.0.0.1:{worker.ports['http']}"
    with Run(tmp_path, str(EXAMPLES / "count_words.py"), "--worker", http) as run:
        run.until(lambda: is_starting_spark(run))
        os.kill(run.process.pid, number)
        assert run.ended() == status, run.said
    assert "Traceback" not in run.said


COUNT_WORDS = """
from penstock.spark import pipeline
from pyspark.sql import functions as F
from pyspark.sql.types import StringType

lower = F.udf(lambda text: text.lower(), returnType=StringType())  # has a counterpart in the JVM

@pipeline(mode="complete")
def count_words(lines):
    words = lines.select(F.explode(F.split(lower(F.col("value").cast("string")), " ")).alias("key"))
    return words.groupBy("key").count()
"""


def of_spark(run: Run) -> dict[int, str]:
    """The JVM and its Python processes."""
    commands = {pid: whole_command_of(pid) for pid in run.alive()}
    return {pid: text for pid, text in commands.items() if "pyspark" in text or "python_daemon" in text}


def kill_jvm(run: Run) -> None:
    """Returns when everything that belonged to it is gone."""
    jvms: list[int] = []

    def is_alone() -> bool:
        """While Java starts a process, the new one has the command line of the JVM, too."""
        jvms[:] = [pid for pid in run.alive() if "pyspark-shell" in whole_command_of(pid)]
        return len(jvms) == 1

    run.until(is_alone)
    before = of_spark(run)
    os.kill(jvms[0], signal.SIGKILL)
    run.until(lambda: not before.keys() & run.alive())


@pytest.mark.timeout(600)
def test_a_run_continues_after_a_kill_of_its_jvm_or_itself_and_ctrl_c_leaves_no_process(
    tmp_path: Path,
) -> None:
    """A run restarts its JVM. The worker of a killed run ends with it, and the next run continues."""
    data = tmp_path / "data"
    (tmp_path / "count_words.py").write_text(COUNT_WORDS)
    arguments = ("count_words.py", "--data", str(data))
    with Run(tmp_path, *arguments) as run:
        run.until(lambda: ports(data))
        run.until(lambda: is_running(f"127.0.0.1:{ports(data)['http']}", "count_words"))
        send(f"127.0.0.1:{ports(data)['connector']}", "lines", "book", lines(50))
        assert counts(f"127.0.0.1:{ports(data)['segment']}") == expected(50), "acknowledged: the counts are there"
        kill_jvm(run)
        send(f"127.0.0.1:{ports(data)['connector']}", "lines", "book", lines(60))
        assert counts(f"127.0.0.1:{ports(data)['segment']}") == expected(60)
        assert "count_words failed, and is restarted in 1 s: Spark's JVM was ended by SIGKILL" in run.said
        assert run.said.count("ready: count_words") == 2, run.said
        assert "Traceback" not in run.said
        run.process.kill()
        assert run.ended(but=ASKING) == -signal.SIGKILL
    with Run(tmp_path, *arguments) as again:
        again.until(lambda: ports(data))
        again.until(lambda: is_running(f"127.0.0.1:{ports(data)['http']}", "count_words"))
        send(f"127.0.0.1:{ports(data)['connector']}", "lines", "book", lines(80))
        assert counts(f"127.0.0.1:{ports(data)['segment']}") == expected(80)
        again.until(lambda: "epoch" in again.said)
        os.kill(again.process.pid, signal.SIGINT)
        assert again.ended() == 130, again.said
    assert "Traceback" not in again.said
    assert not (data / "ports.json").exists(), "the worker has stopped in order"
    assert (data / "checkpoints" / "count_words" / "offsets").is_dir()


MINE = """
import beside
from archive import archive
from penstock.spark import pipeline
from sort_readings import sort_readings

def shout(batches):
    for batch in batches:
        yield beside.in_capitals(batch)

@pipeline
def loud(sensors):
    return sensors.select("value").mapInArrow(shout, "value binary")

@pipeline
def not_chosen(sensors):
    return sensors.select("no_such_column")
"""

BESIDE = """
import pyarrow as pa
import pyarrow.compute as pc

def in_capitals(batch):
    text = pc.utf8_upper(batch.column("value").cast(pa.string()))
    return pa.RecordBatch.from_arrays([text.cast(pa.binary())], ["value"])
"""


def test_pipelines_of_a_file_run_in_one_session_on_a_running_worker_which_is_left_alone(
    worker: RunningWorker, tmp_path: Path
) -> None:
    """The examples, and a function of the file that Spark's Python workers need, with another module."""
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "beside.py").write_text(BESIDE)
    connector, http = (f"127.0.0.1:{worker.ports[name]}" for name in ("connector", "http"))
    send(connector, "sensors", "roof", [b'{"celsius": 21.5}', b"rain", b'{"celsius": 20}'])
    chosen = [f"--pipeline={name}" for name in ("archive", "sort_readings", "loud")]
    environment = {"ARCHIVE": str(tmp_path / "archive"), "PYTHONPATH": str(EXAMPLES)}
    with Run(tmp_path, "mine.py", *chosen, "--worker", http, "--available-now", **environment) as run:
        assert run.ended() == 0, run.said
        assert "sort_readings: 3 events in, 3 rows out, 0 dead letters, 0 late" in run.said
        assert "; everything is delivered" in run.said
    good, bad = (outputs(worker.address, "sort_readings", port) for port in ("good", "bad"))
    assert [json.loads(event.payload)["celsius"] for event in good] == [21.5, 20]
    assert [(event.payload, event.event_id, event.metadata["stream"]) for event in bad] == [(b"rain", 2, "roof")]
    loud = [event.payload for event in outputs(worker.address, "loud")]
    assert loud == [b'{"CELSIUS": 21.5}', b"RAIN", b'{"CELSIUS": 20}']
    archived = pytest.importorskip("pyarrow.dataset").dataset(tmp_path / "archive").to_table().to_pylist()
    assert sorted(row["text"] for row in archived) == ["rain", '{"celsius": 20}', '{"celsius": 21.5}']
    with CoordinatorClient(http) as coordinator:
        assert {each.name: each.complete == each.planned for each in coordinator.pipelines()} == {
            "archive": True,
            "loud": True,
            "sort_readings": True,
        }
    assert (tmp_path / "penstock-checkpoints" / "loud").is_dir()
    assert (tmp_path / "penstock-checkpoints" / "spark.log").is_file()
