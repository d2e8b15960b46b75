"""Standard input and output of a worker process carry only data."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.waiting import until

pytestmark = pytest.mark.process


def test_a_worker_logs_nothing_to_its_standard_output(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "penstock", "worker", "--data", str(tmp_path / "data"), "--chapter-size=1MiB"]
    ports = [f"--{name}-port=0" for name in ("connector", "segment", "http")]
    with subprocess.Popen([*command, *ports], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        until((tmp_path / "data" / "ports.json").exists)
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=60)
    assert output == b""
    assert b"is ready" in errors
    assert process.returncode == 0
