"""Standard input and output of a worker process carry only data."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.process


def test_a_worker_logs_nothing_to_its_standard_output(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "penstock", "worker", "--data", str(tmp_path / "data"), "--chapter-size=1MiB"]
    ports = [f"--{name}-port=0" for name in ("connector", "segment", "http")]
    with subprocess.Popen([*command, *ports], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        until = time.monotonic() + 60
        while not (tmp_path / "data" / "ports.json").exists() and time.monotonic() < until:
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=60)
    assert output == b""
    assert b"is ready" in errors
    assert process.returncode == 0
