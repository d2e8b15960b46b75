"""The demo loses a machine, not one process of it."""

import subprocess
import sys
from pathlib import Path

import pytest

from demo.parts import Part
from demo.process_tree import kill_tree, wait_until_gone

_CHILD = "import time; print('started', flush=True); time.sleep(600)"
_HOST = f"""
import subprocess, sys, time
for _ in range(2):
    child = subprocess.Popen([sys.executable, "-c", {_CHILD!r}], stdout=subprocess.PIPE, start_new_session=True)
    child.stdout.readline()
print("started", flush=True)
time.sleep(600)
"""


def test_a_kill_takes_along_what_has_a_session_of_its_own() -> None:
    with subprocess.Popen([sys.executable, "-c", _HOST], stdout=subprocess.PIPE) as host:
        assert host.stdout is not None
        host.stdout.readline()
        killed = kill_tree(host.pid)
        host.wait()
    wait_until_gone(killed)
    assert len(killed) == 3


def test_a_part_that_was_killed_is_gone_with_its_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "some_host.py").write_text(_HOST)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    part = Part("host", ["some_host"], tmp_path / "log")
    part.start()
    try:
        while "started" not in (tmp_path / "log").read_text():
            assert part.is_running
    finally:
        part.kill()
    assert part.processes_killed == 3
    assert not part.is_running
