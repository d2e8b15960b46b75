"""How a sink ends, and what it does when there is no room."""

import errno
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from penstock.client import DataFile
from penstock.client.sink import lines
from penstock.core.errors import Damaged, RequestError
from penstock.core.types import Buffer
from penstock.protocol.connector import Phase1, Phase2, Range
from tests.client.sink.conftest import Output
from tests.client.sink.recorder import Recorder
from tests.client.sink.running_sink import KINDS, RunningSink, Serve
from tests.client.sink.scripted_worker import ScriptedWorker
from tests.support.waiting import SECONDS_MAX


def test_stop_closes_the_session_plainly_and_keeps_what_is_in_doubt(kind: str, tmp_path: Path) -> None:
    recorder = Recorder()
    running = RunningSink(KINDS[kind]("127.0.0.1:0", recorder, state=tmp_path / "state"))
    with ScriptedWorker(running.address) as worker:
        worker.greet()
        assert worker.vote(b"1", worker.write([b"a"]))
        running.stop()
        worker.expect_close()
    assert len(recorder.staged) == 1


def test_stop_discards_nothing_itself_and_the_next_start_does(kind: str, tmp_path: Path) -> None:
    recorder = Recorder()
    running = RunningSink(KINDS[kind]("127.0.0.1:0", recorder, state=tmp_path / "state"))
    with ScriptedWorker(running.address) as worker:
        worker.greet()
        worker.write([b"a"])
        worker.uncommitted()
        running.stop()
    assert len(recorder.staged) == 1
    RunningSink(KINDS[kind]("127.0.0.1:0", recorder, state=tmp_path / "state")).stop()
    assert recorder.staged == []


def test_stop_may_come_from_on_commit(kind: str, tmp_path: Path) -> None:
    recorder = Recorder()
    sink: Any = KINDS[kind]("127.0.0.1:0", recorder, state=tmp_path / "state", on_commit=lambda _: sink.stop())
    running = RunningSink(sink)
    with ScriptedWorker(running.address) as worker:
        worker.greet()
        worker.send(Phase1(b"1", (Range(1, *worker.write([b"a"])),)), Phase2(b"1", True))
        running.join()
    assert recorder.payloads == [b"a"]


def test_stop_before_run_is_of_no_effect_after_it(kind: str, tmp_path: Path) -> None:
    sink = KINDS[kind]("127.0.0.1:0", Recorder(), state=tmp_path / "state")
    sink.stop()
    thread = threading.Thread(target=sink.run)
    thread.start()
    thread.join(SECONDS_MAX)
    assert not thread.is_alive()
    RunningSink(sink).stop()


class FullDisk(DataFile):
    """A file on a disk with room for so many more bytes."""

    room = 0
    code = errno.ENOSPC

    def write_at(self, offset: int, data: Buffer) -> None:
        super().write_at(offset, data[: self.room])
        if len(data) > self.room:
            raise OSError(self.code, "No space left on device")
        self.room -= len(data)


def test_on_a_full_disk_the_vote_is_no_until_there_is_room(serve: Serve, output: Output) -> None:
    data = FullDisk(output.path)
    data.room = 10
    with serve(data) as address, ScriptedWorker(address) as worker:
        worker.greet()
        worker.deliver(b"1", [b"first"])
        for attempt in (b"2:1", b"2:2"):
            worker.write([b"second"], at=5)
            span = worker.write([b"third"])
            assert not worker.vote(attempt, (5, span[1]))
            worker.decide(attempt, False)
            assert output.all == b"first"
        data.room = 100
        worker.offset = 5
        worker.deliver(b"2:3", [b"second", b"third"])
    assert output.committed == b"firstsecondthird"


def test_a_disk_that_is_found_full_at_the_sync_votes_no_as_well(serve: Serve, output: Output) -> None:
    class Late(DataFile):
        failures = 1

        def sync(self) -> None:
            if self.failures:
                self.failures -= 1
                raise OSError(errno.EDQUOT, "Disk quota exceeded")
            super().sync()

    with serve(Late(output.path)) as address, ScriptedWorker(address) as worker:
        worker.greet()
        assert not worker.vote(b"1:1", worker.write([b"first"]))
        worker.decide(b"1:1", False)
        worker.offset = 0
        worker.deliver(b"1:2", [b"first"])
    assert output.committed == b"first"


def test_any_other_failure_of_the_disk_ends_the_sink(kind: str, tmp_path: Path, output: Output) -> None:
    data = FullDisk(output.path)
    data.code = errno.EIO
    running = RunningSink(KINDS[kind]("127.0.0.1:0", data, state=tmp_path / "state"))
    with ScriptedWorker(running.address) as worker:
        worker.greet()
        worker.write([b"first"])
        assert "the sink has failed" in worker.expect_error()
    with pytest.raises(OSError, match="No space"):
        running.join()


def test_the_reason_arrives_even_while_much_is_on_its_way(kind: str, tmp_path: Path, output: Output) -> None:
    much = [b"x" * 2**20] * 30
    data = FullDisk(output.path)
    data.code = errno.EIO
    running = RunningSink(KINDS[kind]("127.0.0.1:0", data, state=tmp_path / "state"))
    with ScriptedWorker(running.address) as worker:
        worker.greet()
        worker.write(much, at=1)
        assert "leaves a gap of 1 bytes" in worker.expect_error()
    with ScriptedWorker(running.address) as worker:
        worker.greet()
        worker.write(much)
        assert "the sink has failed" in worker.expect_error()
    with pytest.raises(OSError, match="No space"):
        running.join()


def test_a_file_that_the_state_does_not_record_is_not_touched(serve: Serve, output: Output) -> None:
    output.path.write_bytes(b"precious")
    for _ in range(2):
        with pytest.raises(RequestError, match="the data has 8 bytes, but the state directory records none"):
            serve(DataFile(output.path)).__enter__()
    assert output.all == b"precious"


def test_a_file_that_lacks_what_is_committed_is_not_used(serve: Serve, output: Output) -> None:
    with serve(DataFile(output.path)) as address, ScriptedWorker(address) as worker:
        worker.greet()
        worker.deliver(b"1", [b"first"])
    output.path.write_bytes(b"fir")
    with pytest.raises(Damaged, match="the data has 3 bytes, but the state directory records 5"):
        serve(DataFile(output.path)).__enter__()


def test_forty_sessions_leave_nothing_behind(serve: Serve, output: Output) -> None:
    open_before = len(list(Path("/proc/self/fd").iterdir()))
    with serve(DataFile(output.path), encode=lines) as address:
        for number in range(40):
            with ScriptedWorker(address) as worker:
                worker.greet()
                worker.deliver(b"%d" % number, [b"%d" % number])
                worker.write([b"lost with the session"])
    assert output.committed == b"".join(b"%d\n" % number for number in range(40))
    deadline = time.monotonic() + SECONDS_MAX
    while len(list(Path("/proc/self/fd").iterdir())) > open_before + 5:
        assert time.monotonic() < deadline
        time.sleep(0.05)
