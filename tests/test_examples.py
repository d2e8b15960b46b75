"""The examples and the README's program run as they are shown."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.client.segments import SegmentClient
from tests.support.running_worker import RunningWorker
from tests.support.waiting import SECONDS_MAX

pytestmark = pytest.mark.process

ROOT = Path(__file__).parent.parent


def run(*arguments: str, seconds_max: float = 200) -> str:
    command = [sys.executable, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds_max)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_readme_s_writer_continues_where_it_was(worker: RunningWorker, tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(# write_orders.py\n.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    program = tmp_path / "write_orders.py"
    program.write_text(code.replace("127.0.0.1:7101", worker.address))
    for _ in range(2):
        lines = run(str(program)).splitlines()
        assert len(lines) == 1000
        assert lines[-1].endswith("b'order 1000'")


def test_import_lines_stores_each_line_once(worker: RunningWorker, tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    lines.write_text("one\ntwo\n")
    example = [str(ROOT / "examples/import_lines.py"), str(lines), "imported", worker.address]
    assert run(*example) == "0 lines were there, 2 are new\n"
    lines.write_text("one\ntwo\nthree\n")
    assert run(*example) == "2 lines were there, 1 are new\n"
    with SegmentClient(worker.address) as client:
        assert [bytes(event.data) for event in client.events("imported")] == [b"one", b"two", b"three"]


def test_follow_prints_what_comes_until_the_segment_is_sealed(worker: RunningWorker) -> None:
    with SegmentClient(worker.address) as client:
        client.create("followed")
        command = [sys.executable, str(ROOT / "examples/follow.py"), "followed", worker.address]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as following:
            assert following.stdout is not None
            for number in range(3):
                with client.appender("followed") as appender:
                    appender.append(b"event %d" % number)
                assert following.stdout.readline().endswith(f"event {number}\n")
            client.seal("followed")
            assert following.wait(SECONDS_MAX) == 0
