"""How a participant is called, and what follows from what it returns and raises."""

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from penstock.client import Sink
from penstock.client.sink import Message, Transaction
from penstock.core.errors import RequestError
from penstock.protocol.connector import (
    SINK_VERSION,
    Error,
    Hello,
    ListUncommitted,
    Notify,
    NotifyAck,
    Ok,
    Phase1,
    Phase2,
    Range,
    ReplyUncommitted,
)
from tests.client.scripted_peer import Cut
from tests.client.sink.recorder import AsyncRecorder, Recorder
from tests.client.sink.running_sink import KINDS, RunningSink, serve_with
from tests.client.sink.scripted_worker import ScriptedWorker
from tests.support.waiting import SECONDS_MAX


@pytest.fixture(params=[*KINDS, "awaited"])
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Recorder], Any]:
    """`with served(recorder) as address`; the third time through coroutine functions."""
    if request.param == "awaited":
        serve = serve_with("asyncio", tmp_path / "state")
        return lambda recorder: serve(AsyncRecorder(recorder))
    return serve_with(request.param, tmp_path / "state")


Served = Callable[[Recorder], Any]


def test_messages_come_with_all_that_they_carry_and_many_at_a_time(served: Served) -> None:
    recorder = Recorder()
    with served(recorder) as address, ScriptedWorker(address) as worker:
        worker.greet()
        worker.deliver(b"t", [b"%04d" % number for number in range(5000)])
    assert recorder.committed[:2] == [Message(0, b"0000", 1000, b"key"), Message(4, b"0001", 1004, b"key")]
    assert recorder.payloads == [b"%04d" % number for number in range(5000)]
    assert sum(count for name, count in recorder.calls if name == "write" and isinstance(count, int)) == 5000
    assert sum(name == "write" for name, _ in recorder.calls) < 50


def test_a_round_is_prepare_and_then_the_decision(served: Served) -> None:
    recorder = Recorder()
    with served(recorder) as address, ScriptedWorker(address) as worker:
        worker.greet()
        worker.deliver(b"1", [b"a"])
        assert worker.vote(b"2", worker.write([b"b"]))
        worker.decide(b"2", False)
    assert recorder.calls == [
        ("abort", b""),  # of whatever an earlier run may have left
        ("write", 1),
        ("prepare", b"1"),
        ("commit", b"1"),
        ("write", 1),
        ("prepare", b"2"),
        ("abort", b"2"),
    ]


def test_a_vote_of_no_aborts_at_once_and_the_epoch_comes_again(served: Served) -> None:
    recorder = Recorder()
    recorder.votes = [False, False, True]
    with served(recorder) as address, ScriptedWorker(address) as worker:
        worker.greet()
        for attempt in (b"1:1", b"1:2"):
            assert not worker.vote(attempt, worker.write([b"a", b"b"], at=0))
            assert not recorder.staged
            worker.decide(attempt, False)
        assert worker.vote(b"1:3", worker.write([b"a", b"b"], at=0))
        worker.decide(b"1:3", True)
    assert recorder.payloads == [b"a", b"b"]


def test_a_no_is_never_listed_and_cannot_be_committed(served: Served) -> None:
    recorder = Recorder()
    recorder.votes = [False]
    with served(recorder) as address:
        with ScriptedWorker(address) as worker:
            worker.greet()
            assert not worker.vote(b"1:1", worker.write([b"a"]))
        with ScriptedWorker(address) as worker:
            assert worker.greet() == ()
            with pytest.raises(AssertionError, match="was already aborted"):
                worker.decide(b"1:1", True)


def test_what_a_lost_session_sent_without_a_vote_is_aborted(served: Served) -> None:
    recorder = Recorder()
    with served(recorder) as address:
        with ScriptedWorker(address) as worker:
            worker.greet()
            worker.deliver(b"1", [b"a"])
            worker.write([b"b"])
            worker.uncommitted()
        with ScriptedWorker(address) as worker:
            worker.greet()
            assert (worker.offset, recorder.staged) == (1, [])
    assert recorder.calls[-1] == ("abort", b"")


def test_what_is_in_doubt_is_not_aborted_by_the_end_of_session_or_process(served: Served) -> None:
    recorder = Recorder()
    with served(recorder) as address, ScriptedWorker(address) as worker:
        worker.greet()
        assert worker.vote(b"1", worker.write([b"a"]))
    with served(recorder) as address, ScriptedWorker(address) as worker:
        assert worker.greet() == (b"1",)
        worker.decide(b"1", True)
    assert recorder.payloads == [b"a"]
    assert recorder.calls.count(("abort", b"")) == 1


class Failing(Recorder):
    def __init__(self, method: str) -> None:
        super().__init__()
        self.method = method

    def _fail(self, method: str) -> None:
        if method == self.method:
            self.method = ""
            raise OSError(5, "the disk is gone")

    def write(self, messages: Sequence[Message]) -> None:
        self._fail("write")
        super().write(messages)

    def prepare(self, transaction: Transaction) -> bool:
        self._fail("prepare")
        return super().prepare(transaction)

    def commit(self, transaction: Transaction) -> None:
        self._fail("commit")
        super().commit(transaction)

    def abort(self, transaction: Transaction) -> None:
        if transaction.id:
            self._fail("abort")
        super().abort(transaction)


def errors(worker: ScriptedWorker) -> list[str]:
    """The texts of all ERRORs until the connection is closed."""
    texts = []
    with suppress(Cut):
        while True:
            frame = worker.next()
            if isinstance(frame, Error):
                texts.append(frame.text)
    return texts


@pytest.mark.parametrize("method", ["write", "prepare", "commit", "abort"])
def test_what_a_participant_raises_is_reported_to_the_worker_and_ends_the_sink(
    kind: str, tmp_path: Path, method: str
) -> None:
    failing = Failing(method)
    options: Any = {"state": tmp_path / "state"}
    running = RunningSink(KINDS[kind]("127.0.0.1:0", failing, **options))
    with ScriptedWorker(running.address) as worker:
        worker.greet()
        worker.send(Phase1(b"1", (Range(1, *worker.write([b"a"])),)), Phase2(b"1", method == "commit"))
        assert errors(worker) == ["the sink has failed: OSError: [Errno 5] the disk is gone (state Streaming)"]
    with pytest.raises(OSError, match="the disk is gone"):
        running.join()

    running = RunningSink(KINDS[kind]("127.0.0.1:0", failing, **options))
    with ScriptedWorker(running.address) as worker:
        assert worker.greet() == ()
        if method == "commit":  # it was decided: the next run has made up for it by itself
            assert failing.payloads == [b"a"]
        else:
            assert worker.offset == 0
            worker.deliver(b"2", [b"a"])
    running.stop()
    assert failing.payloads == [b"a"]


def test_a_vote_is_true_or_false(kind: str, tmp_path: Path) -> None:
    class Forgetful(Recorder):
        def prepare(self, transaction: Transaction) -> Any:
            return None

    running = RunningSink(KINDS[kind]("127.0.0.1:0", Forgetful(), state=tmp_path / "state"))
    with ScriptedWorker(running.address) as worker:
        worker.greet()
        worker.send(Phase1(b"1"))
        assert "prepare returned None" in worker.expect_error()
    with pytest.raises(RequestError, match="prepare returned None"):
        running.join()


def test_what_cannot_be_a_target_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="AsyncRecorder has asynchronous methods") as raised:
        Sink("127.0.0.1:0", AsyncRecorder(Recorder()), state=tmp_path)
    assert raised.value.hint == "Use AsyncSink."
    nothing: Any = object()
    with pytest.raises(RequestError, match="neither the participant methods"):
        Sink("127.0.0.1:0", nothing, state=tmp_path)


def test_while_a_plain_participant_waits_the_loop_continues_but_no_other_call_begins(tmp_path: Path) -> None:
    entered, leave = threading.Event(), threading.Event()

    class Slow(Recorder):
        def prepare(self, transaction: Transaction) -> bool:
            entered.set()
            assert leave.wait(SECONDS_MAX)
            return super().prepare(transaction)

    slow = Slow()
    serve = serve_with("asyncio", tmp_path / "state")
    with serve(slow, handshake_seconds=1) as address, ScriptedWorker(address) as first:
        first.greet()
        first.send(Phase1(b"1", (Range(1, *first.write([b"a"])),)))
        assert entered.wait(SECONDS_MAX)
        with ScriptedWorker(address) as silent:
            assert "no HELLO within 1 s" in silent.expect_error()
        with ScriptedWorker(address) as second:
            second.send(Hello(SINK_VERSION, b"", "penstock", "orders"), Notify(1, "output"), ListUncommitted(1))
            leave.set()
            second.expect(Ok)
            second.expect(NotifyAck)
            assert second.expect(ReplyUncommitted).txn_ids == (b"1",)
            assert errors(first) == []
            second.decide(b"1", True)
    assert slow.payloads == [b"a"]
