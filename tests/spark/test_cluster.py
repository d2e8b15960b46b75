"""A standalone Spark cluster: separate processes with their own directories, which fail and are replaced."""

from __future__ import annotations

import base64
import json
import os
import pickle
import signal
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from penstock.core.errors import RequestError
from penstock.spark.run.java import find_java
from tests.spark.sending import outputs, send
from tests.spark.test_run_command import Run, is_running
from tests.support.ports import free_port
from tests.support.spark_cluster import SparkCluster, command_of, environment_of, executor_conf, executor_of
from tests.support.tokens import TOKEN
from tests.support.worker_process import WorkerProcess

pytestmark = [
    pytest.mark.process,
    pytest.mark.spark,
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("spark cluster"),  # they share one
]

CHECK_SECONDS_MAX = 300
START_SECONDS_MAX = 300
"""A driver and two executors, on a busy machine."""

COUNT_WORDS = """
import os
import time
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import functions as F

from penstock import windows
from penstock.spark import pipeline

GATES = Path({gates!r})


def wait_at(stage):
    while (GATES / stage).exists():
        (GATES / f"{{stage}}-{{os.getpid()}}").touch()
        time.sleep(0.05)


def mapped(batches):
    for batch in batches:
        wait_at("map")
        yield batch


def reduced(batches):
    number = int(TaskContext.get().getLocalProperty("streaming.sql.batchId"))
    for batch in batches:
        wait_at("reduce")
        yield pa.RecordBatch.from_arrays([*batch.columns, pa.array([number] * len(batch))], ["key", "count", "batch"])


@pipeline(mode="complete", columns=("value",))
def count_words(lines):
    lines = lines.mapInArrow(mapped, "value binary")
    words = lines.select(F.explode(F.split(F.col("value").cast("string"), " ")).alias("key"))
    return words.groupBy("key").count().mapInArrow(reduced, "key string, count long, batch long")


@pipeline
def lines_per_minute(lines):
    return windows.aggregate(lines, windows.tumbling("1 minute"), keys=["stream"], count=windows.count())
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """All its processes share the directories of this machine, as machines of a cluster share a file system."""
    pytest.importorskip("pyspark", reason="PySpark is not installed")
    try:
        find_java()
    except RequestError as error:
        pytest.skip(str(error))
    with SparkCluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[WorkerProcess]:
    """A worker that wants a token, which only this process and what it starts have."""
    with WorkerProcess(tmp_path / "data") as running:
        yield running


class Gates:
    """Of the tasks of a stage: while one is closed, they wait there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def close(self, stage: str) -> None:
        (self.folder / stage).touch()

    def open(self, stage: str) -> None:
        (self.folder / stage).unlink()

    def waiting(self, stage: str) -> list[int]:
        """The Python processes of these tasks."""
        return [int(file.name.partition("-")[2]) for file in self.folder.glob(f"{stage}-*")]


def options(conf: dict[str, str]) -> list[str]:
    return [part for name, value in (executor_conf() | conf).items() for part in ("--conf", f"{name}={value}")]


def lines(number: int) -> list[bytes]:
    return [b"the %d of many" % n for n in range(number)]


def counts(worker: WorkerProcess) -> dict[str, int]:
    """The last count of each word. Every epoch emits all words: each of them is there once for each epoch."""
    rows = [json.loads(event.payload) for event in outputs(worker.address, "count_words")]
    emitted = [(row["batch"], row["key"]) for row in rows]
    assert len(emitted) == len(set(emitted))
    assert emitted
    return {row["key"]: row["count"] for row in rows}


def expected(number: int) -> dict[str, int]:
    return Counter(word for line in lines(number) for word in line.decode().split())


def pages(ui: str) -> Iterator[str]:
    """Spark's UI, and its REST API."""
    with urllib.request.urlopen(f"{ui}/api/v1/applications", timeout=30) as response:
        (application,) = json.load(response)
    api = f"api/v1/applications/{application['id']}"
    for path in (
        "environment/",
        "jobs/",
        "stages/",
        "storage/",
        "executors/",
        "SQL/",
        "SQL/execution/?id=1",
        "StreamingQuery/",
        f"{api}/environment",
        f"{api}/sql?details=true&planDescription=true",
    ):
        with urllib.request.urlopen(f"{ui}/{path}", timeout=30) as response:
            yield response.read().decode(errors="replace")


def forms(token: str) -> list[bytes]:
    """As text, and in Base64 wherever it begins."""
    encoded = [base64.b64encode(b"x" * shift + token.encode())[4:-4] for shift in range(3)]
    return [token.encode(), *encoded]


def shows(data: bytes | str) -> bool:
    given = data.encode() if isinstance(data, str) else data
    return any(form in given for form in forms(TOKEN))


def files_in(place: Path, but: Path) -> Iterator[tuple[Path, bytes]]:
    """Executors may still be ending, and delete what is theirs."""
    for folder, _, names in os.walk(place):
        for file in (Path(folder, name) for name in names):
            with suppress(FileNotFoundError):
                if not file.is_relative_to(but):
                    yield file, file.read_bytes()


def test_the_forms_of_a_token_are_found() -> None:
    assert all(shows(base64.b64encode(b"a" * shift + pickle.dumps([TOKEN]))) for shift in range(3))
    assert not shows(b"any other text")


class Killed:
    """A run whose tasks are killed while an epoch waits in one of its stages."""

    def __init__(self, run: Run, worker: WorkerProcess, gates: Gates) -> None:
        self._run = run
        self._worker = worker
        self._gates = gates

    def sending(self, number: int, stage: str, kill: Callable[[int], None]) -> None:
        """Returns when the epoch has finished all the same, and the lines are acknowledged."""
        self._gates.close(stage)
        with ThreadPoolExecutor(1) as pool:
            connector = f"127.0.0.1:{self._worker.connector_port}"
            sent = pool.submit(send, connector, "lines", "book", lines(number))
            self._run.until(lambda: self._gates.waiting(stage))
            kill(self._gates.waiting(stage)[0])
            self._gates.open(stage)
            sent.result()


def test_executors_with_other_versions_or_without_access_to_the_worker_are_named(
    cluster: SparkCluster, guarded: WorkerProcess, tmp_path: Path
) -> None:
    cluster.start_workers()
    other = tmp_path / "other" / "pyarrow-1.2.3.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: pyarrow\nVersion: 1.2.3\n")
    path = os.pathsep.join(filter(None, (str(other.parent), os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-m", "penstock", "check", "--master", cluster.url, "--json"]
    command += [*options({"spark.executorEnv.PYTHONPATH": path}), "--worker", f"127.0.0.1:{guarded.http_port}"]
    nowhere = f"127.0.0.1:{free_port()}"
    command += ["--advertised-worker", nowhere]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=CHECK_SECONDS_MAX,
        cwd=tmp_path,
        check=False,
        env=os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"},
    )
    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout)
    assert [one["host"] for one in found["executors"]] == ["127.0.0.1", "127.0.0.1"]
    for one in found["executors"]:
        version, port = one["differences"]
        assert version == f"has pyarrow 1.2.3, not {found['driver']['pyarrow']}"
        assert port.startswith(f"cannot use the worker's HTTP port: the worker at {nowhere} cannot be reached")
    assert not shows(done.stdout + done.stderr)


def test_counts_are_exactly_once_though_executors_are_killed_and_nothing_shows_the_token(
    cluster: SparkCluster, guarded: WorkerProcess, tmp_path: Path
) -> None:
    http, ui_port, events = f"127.0.0.1:{guarded.http_port}", free_port(), tmp_path / "events"
    gates = Gates(tmp_path / "gates")
    events.mkdir()
    (tmp_path / "words.py").write_text(COUNT_WORDS.format(gates=str(gates.folder)))
    shown = {
        "spark.ui.enabled": "true",
        "spark.ui.port": str(ui_port),
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": events.as_uri(),
    }
    arguments = ["words.py", "--worker", http, "--master", cluster.url, *options(shown)]
    arguments += ["--checkpoint", str(tmp_path / "shared"), "--shared-checkpoint"]
    with Run(tmp_path, *arguments, SPARK_LOCAL_IP="127.0.0.1") as run:
        names = ("count_words", "lines_per_minute")
        run.until(lambda: all(is_running(http, name) for name in names), START_SECONDS_MAX)
        send(f"127.0.0.1:{guarded.connector_port}", "lines", "book", lines(20))
        killed = Killed(run, guarded, gates)
        killed.sending(40, "map", lambda task: os.kill(executor_of(task), signal.SIGKILL))
        killed.sending(60, "reduce", cluster.kill_worker_of)
        assert counts(guarded) == expected(60)
        assert "2 executors on 127.0.0.1: same versions" in run.said
        assert "failed" not in run.said, "Spark has run the tasks again, and no query was restarted"
        processes = [*run.alive(), *cluster.pids()]
        assert not [text for text in map(command_of, processes) if shows(text)]
        assert not [text for text in map(environment_of, processes) if shows(text)]
        found = [*pages(f"http://127.0.0.1:{ui_port}")]
        assert all(name in "".join(found) for name in names)
        assert not [text for text in found if shows(text)]
        os.kill(run.process.pid, signal.SIGTERM)
        assert run.ended() == 0, run.said
    written = dict(files_in(tmp_path, but=guarded.data)) | dict(files_in(cluster.folder, but=cluster.local))
    assert any(file.is_relative_to(events) for file in written)
    assert any(file.name == "stderr" for file in written)
    assert not [file for file, data in written.items() if shows(data)]
