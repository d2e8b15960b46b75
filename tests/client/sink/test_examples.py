"""The examples run as they are shown, and are killed over and over: each epoch is there once."""

import random
import sqlite3
import threading
import time
from pathlib import Path

import pytest

from penstock.client.sink import read_committed
from tests.client.sink.model_worker import ModelWorker
from tests.client.sink.scripted_worker import ScriptedWorker
from tests.client.sink.sink_process import SinkProcess

pytestmark = pytest.mark.process

EXAMPLES = Path(__file__).parents[3] / "examples"

EPOCHS = [[b"%d of epoch %d" % (number, epoch) for number in range(50)] for epoch in range(60)]
PAYLOADS = [payload for epoch in EPOCHS for payload in epoch]


def example(name: str, path: Path) -> SinkProcess:
    return SinkProcess(str(EXAMPLES / name), str(path), "ADDRESS")


def deliver_while_it_is_killed(process: SinkProcess, kills: int, seed: int) -> None:
    worker = ModelWorker(process.address, EPOCHS, seed)
    failed: list[BaseException] = []

    def run() -> None:
        try:
            worker.run()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    moments = random.Random(seed)
    process.start()
    thread.start()
    for epoch in sorted(moments.sample(range(1, len(EPOCHS) - 1), kills)):
        while worker.done < epoch and thread.is_alive():
            time.sleep(0.001)
        time.sleep(moments.uniform(0.0, 0.02))
        process.kill()
        process.start()
    thread.join(60)
    assert failed == []
    assert not thread.is_alive()


def rows(path: Path) -> list[tuple[int, int, bytes, bytes]]:
    database = sqlite3.connect(path)
    try:
        return database.execute("SELECT * FROM messages ORDER BY rowid").fetchall()
    finally:
        database.close()


def test_sink_file_appends_a_line_for_each_message_once(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    with example("sink_file.py", path) as process:
        deliver_while_it_is_killed(process, 8, seed=1)
        committed = read_committed(f"{path}.state")
        assert process.interrupt() == 0
    assert path.read_bytes()[: committed.size].splitlines() == PAYLOADS
    assert committed.offset == sum(map(len, PAYLOADS))


def test_sink_sqlite_inserts_a_row_for_each_message_once(tmp_path: Path) -> None:
    path = tmp_path / "out.sqlite"
    with example("sink_sqlite.py", path) as process:
        deliver_while_it_is_killed(process, 8, seed=2)
        assert process.interrupt() == 0
    found = rows(path)
    assert [payload for *_, payload in found] == PAYLOADS
    assert found[0] == (0, 1000, b"key", b"0 of epoch 0")


def test_sink_sqlite_shows_an_epoch_with_its_commit_and_not_before(tmp_path: Path) -> None:
    path = tmp_path / "out.sqlite"
    with example("sink_sqlite.py", path) as process:
        process.start()
        with ScriptedWorker(process.address) as worker:
            worker.greet()
            assert worker.vote(b"1:1", worker.write([b"a", b"", b"b"]))
            assert rows(path) == []
            worker.decide(b"1:1", False)
            worker.offset = 0
            worker.deliver(b"1:2", [b"a", b"", b"b"])
            assert [payload for *_, payload in rows(path)] == [b"a", b"", b"b"]
        assert process.interrupt() == 0
