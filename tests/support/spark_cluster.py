"""A standalone Spark cluster from the installed PySpark: a master and workers, whose processes can be killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Self

from penstock.spark.run.class_archive import find_archive
from tests.support.ports import free_port
from tests.support.waiting import SECONDS_MAX, until

_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"
_EXECUTOR = "CoarseGrainedExecutorBackend"


def executor_conf() -> dict[str, str]:
    """Small ones, which start as fast as they can. No task runs before both have registered."""
    return {
        "spark.cores.max": "2",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": f"{SECONDS_MAX:.0f}s",
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": _java_options(),
        "spark.sql.shuffle.partitions": "2",
    }


def _java_options() -> str:
    """These JVMs live for seconds. The driver's class archive fits them: they have the same class path."""
    archive = find_archive()
    return f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC {'' if archive is None else archive.options()}".strip()


class SparkCluster:
    """Each Spark worker has one core, and starts its executors in a directory of its own. They have none of our own
    variables: no token, and no address of a Penstock worker.
    """

    def __init__(self, folder: Path, workers: int = 2) -> None:
        self.folder = folder
        self._port, self._ui_port = free_port(), free_port()
        self._count = workers
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def url(self) -> str:
        return f"spark://127.0.0.1:{self._port}"

    @property
    def local(self) -> Path:
        """What executors write for themselves, in directories that only their user can read."""
        return self.folder / "local"

    @property
    def ui(self) -> str:
        return f"http://127.0.0.1:{self._ui_port}"

    def __enter__(self) -> Self:
        self._start("master", _MASTER, "--port", str(self._port), "--webui-port", str(self._ui_port))
        try:
            until(lambda: self._alive_workers() == 0, self.logs)
            self.start_workers()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start_workers(self) -> None:
        """Those that do not run. Returns when all have registered."""
        for name in (f"worker-{number}" for number in range(self._count)):
            if name not in self._processes:
                work = self.folder / name
                work.mkdir(exist_ok=True)
                options = ["--cores", "1", "--memory", "1g", "--webui-port", str(free_port()), "--work-dir", str(work)]
                self._start(name, _WORKER, *options, self.url)
        until(lambda: self._alive_workers() == self._count, self.logs)

    def kill_worker_of(self, pid: int) -> None:
        """The Spark worker that has started this process, directly or not. Its executors end with it."""
        chain = [*_ancestors(pid)]
        name = next(name for name, process in self._processes.items() if process.pid in chain)
        process = self._processes.pop(name)
        process.kill()
        process.wait()

    def close(self) -> None:
        started = [pid for process in self._processes.values() for pid in _descendants(process.pid)]
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.wait()
        for pid in started:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._processes.clear()

    def pids(self) -> list[int]:
        """Of all processes of the cluster, with executors and their Python processes."""
        own = [process.pid for process in self._processes.values()]
        return [*own, *(pid for parent in own for pid in _descendants(parent))]

    def executors(self) -> list[int]:
        return [pid for pid in self.pids() if _EXECUTOR in command_of(pid)]

    def logs(self) -> str:
        return "\n".join(log.read_text(errors="replace")[-2000:] for log in self.folder.glob("*.log"))

    def _start(self, name: str, main: str, *options: str) -> None:
        found = find_spec("pyspark")
        assert found is not None
        assert found.origin is not None
        home = Path(found.origin).parent
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [home / "bin" / "spark-class", main, "--host", "127.0.0.1", *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env=_environment(home, self.local),
                start_new_session=True,
            )

    def _alive_workers(self) -> int:
        try:
            with urllib.request.urlopen(f"{self.ui}/json/", timeout=5) as response:
                found: int = json.load(response)["aliveworkers"]
        except (OSError, ValueError):  # while its UI starts, other pages are there
            return -1
        return found


def _environment(home: Path, local: Path) -> dict[str, str]:
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("PENSTOCK_", "SPARK_"))}
    return ours | {
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(local),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": _java_options(),
        "SPARK_LAUNCHER_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }


def executor_of(pid: int) -> int:
    """The executor that has started this process."""
    return next(one for one in _ancestors(pid) if _EXECUTOR in command_of(one))


def command_of(pid: int) -> str:
    """Empty for a process that has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def environment_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/environ").read_text(errors="replace")
    except OSError:
        return ""


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _ancestors(pid: int) -> Iterator[int]:
    while pid > 1:
        yield pid
        pid = _parent(pid)


def _descendants(pid: int) -> Iterator[int]:
    parents = {int(one.name): _parent(int(one.name)) for one in Path("/proc").iterdir() if one.name.isdecimal()}
    left = [pid]
    while left:
        above = left.pop()
        for child in [child for child, parent in parents.items() if parent == above]:
            yield child
            left.append(child)
