"""The worker of `penstock run`: started unless one is there, and only then stopped."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from penstock.cli import embedded_worker as embedded
from penstock.cli.connect import get_json
from penstock.cli.embedded_worker import embedded_worker
from penstock.core.errors import Unavailable
from tests.core.test_logs import LINE
from tests.support.ports import free_port

pytestmark = pytest.mark.process

SMALL = ("--chapter-size=1MiB", "--reserve=2MiB")


def test_it_is_started_once_and_stopped_by_the_one_who_has_started_it(tmp_path: Path) -> None:
    with embedded_worker(tmp_path / "data", SMALL) as first:
        assert first.process is not None
        with embedded_worker(tmp_path / "data", SMALL) as second:
            assert (second.http, second.process) == (first.http, None)
        assert get_json(first.http, "/status")["pid"] == first.process.pid, "it is still there"
        first.check()
    assert first.process.returncode == 0
    with pytest.raises(Unavailable):
        first.check()
    said = (tmp_path / "data" / "worker.log").read_text().splitlines()
    lines = [line for line in said if not line.startswith(("error:", "hint:"))]  # of a first try: a port was taken
    assert [*filter(None, lines)] == [line for line in lines if re.match(LINE, line)], "each has a time and a level"
    assert any("penstock worker is ready" in line for line in lines)
    assert sum("no cookie is set" in line for line in lines) == 1


def test_ports_that_a_killed_worker_has_left_behind_mislead_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Another test may take the default ports as soon as the first worker has left them.
    monkeypatch.setattr(embedded, "DEFAULT_PORTS", {name: free_port() for name in embedded.DEFAULT_PORTS})
    with embedded_worker(tmp_path / "data", SMALL) as first:
        assert first.process is not None
        left = (tmp_path / "data" / "ports.json").read_text()
    (tmp_path / "data" / "ports.json").write_text(left)
    with embedded_worker(tmp_path / "data", SMALL) as again:
        assert again.process is not None
        assert again.ports == first.ports, "programs of the killed worker find this one"


def test_taken_ports_are_avoided(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections of a worker before may linger there
        try:
            taken.bind(("127.0.0.1", 7101))
            taken.listen()
        except OSError:
            pass  # somebody has it already, which will do
        with embedded_worker(tmp_path / "data", SMALL) as worker:
            assert not {7100, 7101, 7102} & set(worker.ports.values())


def test_a_port_that_is_taken_between_the_look_and_the_start_is_avoided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it looks free again after the start has failed."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        default = {"connector": 0, "segment": port, "http": 0}
        monkeypatch.setattr(embedded, "DEFAULT_PORTS", default)
        monkeypatch.setattr(embedded, "_ports", lambda _: default)
        with embedded_worker(tmp_path / "data", SMALL) as worker:
            assert port not in worker.ports.values()


def test_one_that_does_not_start_reports_its_reason(tmp_path: Path) -> None:
    with (
        pytest.raises(Unavailable, match=r"did not start(.|\n)*no such option|No such option") as caught,
        embedded_worker(tmp_path / "data", ["--no-such-option"]),
    ):
        pass
    assert "worker.log" in caught.value.hint


def test_it_ends_with_the_process_that_has_started_it(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys\nfrom pathlib import Path\nfrom penstock.cli.embedded_worker import embedded_worker\n"
        f"with embedded_worker(Path({str(tmp_path / 'data')!r}), {SMALL!r}) as worker:\n"
        "    print(worker.process.pid, flush=True)\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == -signal.SIGKILL, done.stderr
    for _ in range(600):
        try:
            os.kill(int(done.stdout), 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    pytest.fail("the worker is still there")
