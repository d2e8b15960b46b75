"""The examples run as they are shown, and continue where they were."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.protocol.connector import stream_id_of
from tests.client.source.stored import StoredMessage, stored_messages
from tests.support.running_worker import RunningWorker
from tests.support.waiting import SECONDS_MAX, until

pytestmark = pytest.mark.process

EXAMPLES = Path(__file__).parents[3] / "examples"


def connector(worker: RunningWorker) -> str:
    return f"127.0.0.1:{worker.ports['connector']}"


def run(example: str, *arguments: str) -> list[str]:
    command = [sys.executable, str(EXAMPLES / example), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def stored(worker: RunningWorker, source: str, stream: str) -> list[StoredMessage]:
    return stored_messages(worker.address, source)[stream_id_of(stream)]


def wait_for(worker: RunningWorker, stream: str, payloads: list[bytes]) -> None:
    until(lambda: [m.payload for m in stored(worker, "logs", stream)] == payloads)


def test_send_file_sends_each_line_once(worker: RunningWorker, tmp_path: Path) -> None:
    path = tmp_path / "lines.txt"
    path.write_text("one\ntwo\n")
    assert run("send_file.py", str(path), connector(worker))[-2:] == ["lines.txt: 8 bytes are safe", "2 lines sent"]
    path.write_text("one\ntwo\nthree\n")
    assert run("send_file.py", str(path), connector(worker))[-1] == "1 lines sent"
    assert [m.payload for m in stored(worker, "files", "lines.txt")] == [b"one", b"two", b"three"]


def test_tail_directory_follows_files_that_grow_and_finds_new_ones(worker: RunningWorker, tmp_path: Path) -> None:
    first, second = tmp_path / "first.log", tmp_path / "second.log"
    first.write_bytes(b"1\n2\nhal")
    for round_number in range(2):
        command = [sys.executable, str(EXAMPLES / "tail_directory.py"), str(tmp_path), connector(worker)]
        with subprocess.Popen(command) as tailing:
            until(lambda: len(stored(worker, "logs", "first.log")) >= 2)
            with first.open("ab") as file:
                file.write(b"f\n" if round_number == 0 else b"more\n")
            second.write_bytes(b"new\n")
            expected = [b"1", b"2", b"half", b"more"][: 3 + round_number]
            wait_for(worker, "first.log", expected)
            wait_for(worker, "second.log", [b"new"])
            tailing.send_signal(signal.SIGINT)
            assert tailing.wait(SECONDS_MAX) == 0


def test_random_sensor_continues_with_the_next_measurement(worker: RunningWorker) -> None:
    assert run("random_sensor.py", connector(worker), "3")[-1] == "3 measurements are safe"
    assert run("random_sensor.py", connector(worker), "5")[-1] == "5 measurements are safe"
    found = stored(worker, "sensors", "roof")
    assert [m.id for m in found] == [1, 2, 3, 4, 5]
    assert {m.key for m in found} == {b"roof"}
    assert all(b"celsius" in m.payload and m.event_time_us > 0 for m in found)
