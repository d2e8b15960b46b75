"""Spark's Python processes are forked by a process that has imported what they need."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from penstock.spark.run.fork_server import ADDRESS, fork_server
from penstock.spark.run.session import prepare_environment
from tests.support.waiting import until

pytestmark = pytest.mark.process

DESCRIBE = """
import json, os, sys
forked = "pyarrow" in sys.modules
from penstock.spark.source.stream import driver_identity
print(json.dumps({
    "arguments": sys.argv[1:],
    "directory": os.getcwd(),
    "driver": driver_identity(),
    "forked": forked,
    "pid": os.getpid(),
    "read": sys.stdin.readline(),
    "variable": os.environ.get("VARIABLE"),
    "zip": any("pyspark.zip" in entry for entry in sys.path),
}), flush=True)
sys.stdin.read()
"""

DRIVER = """
import sys
from pathlib import Path
from penstock.spark.run.fork_server import fork_server
with fork_server(Path(sys.argv[1])):
    print("started", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of a JVM, with its PYTHONPATH for a process."""
    pytest.importorskip("pyspark", reason="PySpark is not installed")
    folder = tmp_path_factory.mktemp("modules")
    (folder / "describe.py").write_text(DESCRIBE)
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as sockets:
        patch.setattr(os, "environ", dict(os.environ))
        prepare_environment("local[2]")
        with fork_server(Path(sockets)):
            until((Path(sockets) / "fork-server").exists)
            yield {**os.environ, "PYTHONPATH": f"/spark/python/lib/pyspark.zip:{folder}", "VARIABLE": "a value"}


def start(environment: dict[str, str], directory: Path, arguments: Sequence[str] = ()) -> subprocess.Popen[str]:
    """As Spark does."""
    return subprocess.Popen(
        [environment["PYSPARK_PYTHON"], "-m", "describe", *arguments],
        env=environment,
        cwd=directory,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def described(process: subprocess.Popen[str]) -> dict[str, object]:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("a line\n")
    process.stdin.flush()
    found: dict[str, object] = json.loads(process.stdout.readline())
    return found


def is_alive(pid: object) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_a_forked_process_is_like_the_requested_one(environment: dict[str, str], tmp_path: Path) -> None:
    process = start(environment, tmp_path, ["one", "two"])
    found = described(process)
    pid = found.pop("pid")
    assert found == {
        "arguments": ["one", "two"],
        "directory": str(tmp_path),
        "driver": identity_here(),
        "forked": True,
        "read": "a line\n",
        "variable": "a value",
        "zip": False,
    }
    assert pid != process.pid
    process.communicate()  # ends its input, and thus the process
    until(lambda: not is_alive(pid))


def test_the_signal_that_ends_the_client_reaches_the_forked_process(
    environment: dict[str, str], tmp_path: Path
) -> None:
    process = start(environment, tmp_path)
    pid = described(process)["pid"]
    process.terminate()
    process.wait()
    until(lambda: not is_alive(pid))
    process.communicate()


def test_without_a_server_the_process_is_started(environment: dict[str, str], tmp_path: Path) -> None:
    process = start(environment | {ADDRESS: str(tmp_path / "gone")}, tmp_path)
    found = described(process)
    assert (found["forked"], found["read"], found["pid"]) == (False, "a line\n", process.pid)
    process.communicate()


def test_a_client_whose_server_was_killed_runs_the_process_itself(environment: dict[str, str], tmp_path: Path) -> None:
    with TemporaryDirectory() as sockets:
        driver = [sys.executable, "-c", DRIVER, sockets]
        path = Path(sockets, "fork-server")
        with subprocess.Popen(driver, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            until(path.exists)
            [server] = children(process.pid)
            process.send_signal(signal.SIGKILL)
        until(lambda: not is_alive(server))  # it does not outlive its driver
        process_of_client = start(environment | {ADDRESS: str(path)}, tmp_path)
        found = described(process_of_client)
        assert (found["forked"], found["pid"]) == (False, process_of_client.pid)
        process_of_client.communicate()


def identity_here() -> str:
    """Like that of a process started from this one without a server."""
    command = [sys.executable, "-c", "from penstock.spark.source.stream import *; print(driver_identity())"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
