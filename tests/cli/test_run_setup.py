"""What `penstock run` prepares: the worker, and what stands beside it; and what both say about the platform."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.run_setup import Place, RunOptions, worker_of
from tests.support.waiting import until
from tests.worker.hosts import children

pytestmark = pytest.mark.process


def options(data: Path, **more: Any) -> RunOptions:
    small = ["--chapter-size=1MiB", "--reserve=2MiB"]
    given: dict[str, Any] = {"worker_options": small, "trigger_ms": None, "available_now": False, "seconds_max": None}
    return RunOptions(place=Place.of(data, None, None), worker=None, master="local[1]", conf={}, **(given | more))


def test_what_the_platform_lacks_is_said_when_a_worker_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delattr(os, "posix_fallocate")
    with worker_of(options(tmp_path / "data")):
        first = capfd.readouterr().err
        with worker_of(options(tmp_path / "data")):
            second = capfd.readouterr().err
    assert "on this platform: posix_fallocate is missing: " in first
    assert "runs already" in second
    assert "on this platform" not in second


def test_a_worker_says_what_the_platform_lacks(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import os\ndel os.posix_fallocate\n")
    ports = [f"--{name}-port=0" for name in ("connector", "segment", "http")]
    command = [sys.executable, "-m", "penstock", "worker", "--data", str(tmp_path / "data"), *ports, "--reserve=2MiB"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        assert any("on this platform: posix_fallocate is missing: " in line for line in process.stderr)
        process.kill()


def test_the_dashboard_beside_it_knows_the_folder_of_the_application(tmp_path: Path) -> None:
    pytest.importorskip("nicegui", reason="the dashboard is not installed")

    def commands() -> list[list[str]]:
        found = [Path(f"/proc/{pid}/cmdline").read_text().split("\0") for pid in children(os.getpid())]
        return [words for words in found if "dashboard" in words]

    with worker_of(options(tmp_path / "data", dashboard_port=0, folder=tmp_path / "apps")):
        until(commands)
        (words,) = commands()
    assert words[words.index("--folder") + 1] == str(tmp_path / "apps")
