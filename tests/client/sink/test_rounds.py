"""Rounds of two-phase commit with a sink that has a place for bytes: what is committed, and what is void."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from penstock.client.sink import DataFile, Transaction, lines
from penstock.protocol.connector import (
    Ack,
    Acked,
    EndOfStream,
    Notify,
    NotifyAck,
    Phase1,
    Phase2,
    Range,
    Reply,
)
from tests.client.sink.conftest import Output
from tests.client.sink.running_sink import Serve
from tests.client.sink.scripted_worker import ScriptedWorker


@pytest.fixture
def connect(serve: Serve, output: Output) -> Iterator[ScriptedWorker]:
    """A session that begins with an empty sink."""
    with serve(DataFile(output.path), encode=lines) as address, ScriptedWorker(address) as worker:
        assert worker.greet() == ()
        yield worker


@contextmanager
def session(address: str, uncommitted: tuple[bytes, ...] = ()) -> Iterator[ScriptedWorker]:
    with ScriptedWorker(address) as worker:
        assert worker.greet() == uncommitted
        yield worker


def test_an_epoch_is_committed_by_phase_two_and_not_before(connect: ScriptedWorker, output: Output) -> None:
    worker = connect
    span = worker.write([b"one", b"two"])
    assert worker.vote(b"p:1:1", span)
    assert output.committed == b""
    assert output.all == b"one\ntwo\n"
    worker.decide(b"p:1:1", True)
    assert output.committed == b"one\ntwo\n"
    worker.deliver(b"p:2:1", [b"three"])
    assert output.committed == b"one\ntwo\nthree\n"


def test_many_epochs_of_many_messages_arrive_in_order(connect: ScriptedWorker, output: Output) -> None:
    expected = b""
    for epoch in range(20):
        payloads = [b"%d of %d" % (number, epoch) * 5 for number in range(2000)]
        connect.deliver(b"p:%d:1" % epoch, payloads)
        expected += b"".join(payload + b"\n" for payload in payloads)
    assert output.committed == expected


def test_an_aborted_epoch_is_removed_and_comes_again_under_another_id(connect: ScriptedWorker, output: Output) -> None:
    worker = connect
    worker.deliver(b"p:1:1", [b"first"])
    span = worker.write([b"second"])
    assert worker.vote(b"p:2:1", span)
    worker.decide(b"p:2:1", False)
    assert output.all == b"first\n"
    worker.offset = span[0]
    worker.deliver(b"p:2:2", [b"second"])
    assert output.committed == b"first\nsecond\n"


@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_in_doubt_is_listed_to_the_next_session_which_decides(
    serve: Serve, output: Output, commit: bool
) -> None:
    with serve(DataFile(output.path), encode=lines) as address:
        with session(address) as worker:
            worker.deliver(b"p:1:1", [b"first"])
            assert worker.vote(b"p:2:1", worker.write([b"second"]))
        with session(address, (b"p:2:1",)) as worker:
            assert output.committed == b"first\n"
            worker.decide(b"p:2:1", commit)
            assert output.all == output.committed == (b"first\nsecond\n" if commit else b"first\n")
        with session(address) as worker:
            worker.deliver(b"p:3:1", [b"third"])
    assert output.committed == (b"first\nsecond\nthird\n" if commit else b"first\nthird\n")


@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_in_doubt_outlives_the_process(serve: Serve, output: Output, commit: bool) -> None:
    with serve(DataFile(output.path)) as address, session(address) as worker:
        worker.deliver(b"p:1:1", [b"first"])
        assert worker.vote(b"p:2:1", worker.write([b"second"]))
    with serve(DataFile(output.path)) as address, session(address, (b"p:2:1",)) as worker:
        worker.decide(b"p:2:1", commit)
        assert output.all == output.committed == (b"firstsecond" if commit else b"first")


@pytest.mark.parametrize("commit", [True, False])
def test_a_decision_may_be_repeated_even_to_the_next_process(serve: Serve, output: Output, commit: bool) -> None:
    expected = b"first" if commit else b""
    with serve(DataFile(output.path)) as address, session(address) as worker:
        assert worker.vote(b"p:1:1", worker.write([b"first"]))
        worker.decide(b"p:1:1", commit)
        worker.decide(b"p:1:1", commit)
        assert output.all == output.committed == expected
    with serve(DataFile(output.path)) as address, session(address) as worker:
        worker.decide(b"p:1:1", commit)
        assert output.all == output.committed == expected


def test_an_abort_of_an_unknown_transaction_does_nothing(connect: ScriptedWorker, output: Output) -> None:
    connect.deliver(b"p:1:1", [b"first"])
    connect.decide(b"p:9:9", False)
    assert output.committed == b"first\n"


def test_a_commit_without_a_vote_is_an_error(connect: ScriptedWorker, output: Output) -> None:
    connect.write([b"first"])
    connect.send(Phase2(b"p:1:1", True))
    text = connect.expect_error()
    assert "PHASE2: commits b'p:1:1', on which there was no vote" in text
    assert "state Streaming" in text
    assert output.committed == b""


@pytest.mark.parametrize("commit", [True, False])
def test_a_decision_that_contradicts_the_last_one_is_an_error(
    connect: ScriptedWorker, output: Output, commit: bool
) -> None:
    assert connect.vote(b"p:1:1", connect.write([b"first"]))
    connect.decide(b"p:1:1", commit)
    connect.send(Phase2(b"p:1:1", not commit))
    assert f"was already {'committed' if commit else 'aborted'}" in connect.expect_error()
    assert output.committed == (b"first\n" if commit else b"")


def test_data_that_is_lost_with_its_session_before_phase_one_is_void(serve: Serve, output: Output) -> None:
    with serve(DataFile(output.path)) as address:
        with session(address) as worker:
            worker.deliver(b"p:1:1", [b"first"])
            worker.write([b"second, and much more of it"])
            worker.uncommitted()
            assert output.all == b"firstsecond, and much more of it"
        with session(address) as worker:
            assert worker.offset == 5
            assert output.all == b"first"
            worker.deliver(b"p:2:2", [b"second"])
    assert output.committed == b"firstsecond"


def test_messages_that_are_here_already_are_skipped(connect: ScriptedWorker, output: Output) -> None:
    worker = connect
    worker.deliver(b"p:1:1", [b"one", b"two"])
    _, end = worker.write([b"one", b"two", b"three"], at=0)
    worker.write([b"three"], at=6)
    assert worker.vote(b"p:2:1", (0, end))
    worker.decide(b"p:2:1", True)
    assert output.committed == b"one\ntwo\nthree\n"


def test_an_abort_removes_nothing_that_was_committed_before(connect: ScriptedWorker, output: Output) -> None:
    connect.deliver(b"p:1:1", [b"one", b"two"])
    _, end = connect.write([b"one", b"two", b"three"], at=0)
    assert connect.vote(b"p:2:1", (0, end))
    connect.decide(b"p:2:1", False)
    assert output.all == output.committed == b"one\ntwo\n"


def test_a_gap_is_an_error_that_reports_its_size(connect: ScriptedWorker, output: Output) -> None:
    connect.deliver(b"p:1:1", [b"first"])
    connect.write([b"third"], at=11)
    assert connect.expect_error() == "MESSAGE: id 11 leaves a gap of 6 bytes after 5 (state Streaming)"
    assert output.all == b"first\n"


def test_a_message_across_the_end_of_what_is_here_is_an_error(connect: ScriptedWorker) -> None:
    connect.deliver(b"p:1:1", [b"first"])
    connect.write([b"stsecond"], at=3)
    assert connect.expect_error().startswith("MESSAGE: bytes 3 to 11 overlap the 5 already received")


def test_phase_one_for_bytes_that_did_not_arrive_is_voted_no(connect: ScriptedWorker, output: Output) -> None:
    connect.write([b"half"])
    assert not connect.vote(b"p:1:1", (0, 8))
    connect.decide(b"p:1:1", False)
    assert output.all == b""
    connect.offset = 0
    connect.deliver(b"p:1:2", [b"half", b"full"])
    assert output.committed == b"half\nfull\n"


@pytest.mark.parametrize(
    "ranges",
    [
        (Range(1, 1, 5),),
        (Range(1, 0, 4),),
        (),
        (Range(2, 0, 5),),
        (Range(1, 0, 2), Range(1, 3, 5)),
        (Range(1, 5, 0),),
    ],
)
def test_phase_one_that_omits_received_bytes_is_an_error(connect: ScriptedWorker, ranges: tuple[Range, ...]) -> None:
    connect.write([b"first"])
    connect.send(Phase1(b"p:1:1", ranges))
    assert connect.expect_error().startswith("PHASE1: ")


def test_phase_one_may_have_several_ranges(connect: ScriptedWorker, output: Output) -> None:
    connect.write([b"one", b"two"])
    connect.send(Phase1(b"p:1:1", (Range(1, 0, 3), Range(1, 3, 6))))
    assert connect.expect(Reply) == Reply(b"p:1:1", True)
    connect.decide(b"p:1:1", True)
    assert output.committed == b"one\ntwo\n"


def test_an_epoch_without_bytes_may_have_a_round(connect: ScriptedWorker, output: Output) -> None:
    connect.send(Phase1(b"p:1:1"))
    assert connect.expect(Reply).commit
    connect.decide(b"p:1:1", True)
    connect.deliver(b"p:2:1", [])
    connect.deliver(b"p:3:1", [b"", b"first", b""])
    assert output.committed == b"\nfirst\n\n"


def test_an_id_is_never_used_again(connect: ScriptedWorker) -> None:
    connect.deliver(b"p:1:1", [b"first"])
    connect.send(Phase1(b"p:1:1"))
    assert "the transaction id b'p:1:1' was already used" in connect.expect_error()


@pytest.mark.parametrize("size", [0, 1025])
def test_an_id_has_a_length_that_fits_into_the_log(connect: ScriptedWorker, size: int) -> None:
    connect.send(Phase1(b"x" * size))
    assert f"PHASE1: transaction id has {size} bytes, expected 1 to 1024" in connect.expect_error()


def test_no_data_and_no_other_round_while_one_is_open(serve: Serve, output: Output) -> None:
    with serve(DataFile(output.path)) as address:
        with session(address) as worker:
            assert worker.vote(b"p:1:1", worker.write([b"first"]))
            worker.write([b"second"])
            assert worker.expect_error() == "MESSAGE is not legal in state Voted"
        with session(address, (b"p:1:1",)) as worker:
            worker.write([b"second"])
            assert "MESSAGE: transaction b'p:1:1' is in doubt: expected its PHASE2" in worker.expect_error()
        with session(address, (b"p:1:1",)) as worker:
            worker.send(Phase1(b"p:2:1"))
            assert "PHASE1: transaction b'p:1:1' is in doubt" in worker.expect_error()
        with session(address, (b"p:1:1",)) as worker:
            worker.decide(b"p:1:1", True)
            worker.deliver(b"p:2:1", [b"second"])
    assert output.committed == b"firstsecond"


def test_data_before_notify_and_a_second_notify_are_errors(serve: Serve, output: Output) -> None:
    with serve(DataFile(output.path)) as address:
        with session(address) as worker:
            worker.send(Notify(1, "output"))
            assert worker.expect_error() == "NOTIFY is not legal for stream 1 in state Active"
        with session(address) as worker:
            worker.send(Notify(2, "other"))
            assert "a sink has only stream 1" in worker.expect_error()
        with session(address) as worker:
            worker.send(EndOfStream(5))
            assert "EOS_MESSAGE: stream 5 is not open" in worker.expect_error()


def test_the_end_of_the_output_is_acknowledged_when_all_of_it_is_committed(connect: ScriptedWorker) -> None:
    span = connect.write([b"one", b"two"])
    connect.send(EndOfStream(1))
    assert connect.vote(b"p:1:1", span)
    connect.send(Phase2(b"p:1:1", True))
    assert connect.expect(Ack) == Ack(0, (Acked(1, 3),))
    connect.send(Notify(1, "output"))
    assert connect.expect(NotifyAck) == NotifyAck(True, 1, 6)
    connect.send(EndOfStream(1))
    assert connect.expect(Ack) == Ack(0, (Acked(1, 6),))


def test_commits_are_reported_when_they_are_done(serve: Serve, output: Output) -> None:
    told: list[Transaction] = []
    with serve(DataFile(output.path), on_commit=told.append) as address, session(address) as worker:
        worker.deliver(b"p:1:1", [b"first"])
        worker.deliver(b"p:2:1", [b"second"])
    assert told == [Transaction(b"p:1:1", 0, 5), Transaction(b"p:2:1", 5, 11)]
