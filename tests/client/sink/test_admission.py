"""Who may connect, what ends a session, and that it ends alone."""

import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from penstock.client import DataFile, Sink
from penstock.client.sink.base import CONNECTIONS_MAX
from penstock.core.errors import RequestError, StoreInUse
from penstock.protocol.connector import SINK_VERSION, Error, Hello, ListUncommitted, Notify, Ok, encode
from tests.client.scripted_peer import Cut
from tests.client.sink.conftest import Output
from tests.client.sink.recorder import Recorder
from tests.client.sink.running_sink import KINDS, RunningSink, Serve
from tests.client.sink.scripted_worker import ScriptedWorker


def hello(**changes: object) -> Hello:
    fields = {"version": SINK_VERSION, "cookie": b"", "program": "penstock", "instance": "orders"} | changes
    return Hello(**fields)  # type: ignore[arg-type]


def refusal(address: str, first: Hello) -> str:
    with ScriptedWorker(address) as worker:
        worker.send(first)
        return worker.expect_error()


@pytest.mark.parametrize("version", ["0.0.1", "v0.0.2", ""])
def test_another_version_is_refused(serve: Serve, version: str) -> None:
    with serve(Recorder()) as address:
        text = refusal(address, hello(version=version))
    assert text == f"HELLO: version {version!r} is not supported, only v0.0.1 (state Connected)"


def test_the_cookie_must_match_and_is_never_echoed(serve: Serve) -> None:
    with serve(Recorder(), cookie=b"secret") as address:
        for wrong in (b"", b"secre", b"secret!"):
            assert refusal(address, hello(cookie=wrong)) == "HELLO: the cookie is wrong (state Connected)"
        with ScriptedWorker(address) as worker:
            assert worker.greet(cookie=b"secret") == ()


def test_a_cookie_where_none_is_expected_is_refused(serve: Serve) -> None:
    with serve(Recorder()) as address:
        assert "unexpected cookie" in refusal(address, hello(cookie=b"secret"))


def test_program_and_instance_are_checked_where_they_are_given(serve: Serve) -> None:
    with serve(Recorder(), program="penstock", instance="orders") as address:
        assert refusal(address, hello(program="other")).startswith("HELLO: unexpected program 'other'")
        assert refusal(address, hello(instance="other")).startswith("HELLO: unexpected instance 'other'")
        with ScriptedWorker(address) as worker:
            assert worker.greet() == ()


def test_the_state_belongs_to_the_first_instance_for_good(serve: Serve) -> None:
    with serve(Recorder()) as address, ScriptedWorker(address) as worker:
        worker.greet(instance="orders")
    with serve(Recorder()) as address:
        text = refusal(address, hello(instance="payments"))
        assert text.startswith("HELLO: this sink is bound to 'orders', and refuses 'payments'")
        with ScriptedWorker(address) as worker:
            worker.greet(instance="orders")


def test_a_name_that_does_not_fit_into_the_log_is_refused(serve: Serve) -> None:
    with serve(Recorder()) as address:
        assert "longer than 1024 bytes" in refusal(address, hello(instance="x" * 1025))


def test_the_same_instance_replaces_its_old_session(serve: Serve, output: Output) -> None:
    with serve(DataFile(output.path)) as address, ScriptedWorker(address) as first, ScriptedWorker(address) as second:
        first.greet()
        first.deliver(b"1", [b"a"])
        first.write([b"b"])
        first.uncommitted()
        assert second.greet() == ()
        assert second.offset == 1
        assert output.all == b"a"
        first.expect_close()
        second.deliver(b"2", [b"b"])
    assert output.committed == b"ab"


def test_strangers_do_not_disturb_the_session(serve: Serve, output: Output) -> None:
    with serve(DataFile(output.path), cookie=b"c") as address, ScriptedWorker(address) as worker:
        worker.greet(cookie=b"c")
        span = worker.write([b"a"])
        assert "cookie" in refusal(address, hello())
        assert "'other'" in refusal(address, hello(cookie=b"c", instance="other"))
        with ScriptedWorker(address) as garbage:
            garbage.send_bytes(b"GET / HTTP/1.1\r\n\r\n")
            assert "a frame of 1195725856 bytes is over the limit of 4194304" in garbage.expect_error()
        with ScriptedWorker(address) as silent:
            silent.close()
        assert worker.vote(b"1", span)
        worker.decide(b"1", True)
    assert output.committed == b"a"


def test_a_frame_over_the_limit_is_refused_before_its_bytes_arrive(serve: Serve) -> None:
    with serve(Recorder(), frame_size_max=100) as address, ScriptedWorker(address) as worker:
        worker.greet()
        worker.send_bytes((101).to_bytes(4, "big"))
        assert worker.expect_error() == "a frame of 101 bytes is over the limit of 100 (state Streaming)"


def test_a_malformed_frame_ends_its_session_with_a_reason(serve: Serve) -> None:
    with serve(Recorder()) as address, ScriptedWorker(address) as worker:
        worker.greet()
        worker.send_bytes(b"\0\0\0\x02\x03\x01")
        assert worker.expect_error() == "NOTIFY: stream_id: 8 bytes expected, 1 are left (state Streaming)"


def test_frames_in_the_wrong_state_are_errors_that_name_both(serve: Serve) -> None:
    with serve(Recorder()) as address:
        with ScriptedWorker(address) as worker:
            worker.send(Notify(1, "output"))
            assert worker.expect_error() == "NOTIFY is not legal in state Connected"
        with ScriptedWorker(address) as worker:
            worker.send(hello())
            worker.expect(Ok)
            worker.write([b"a"])
            assert worker.expect_error() == "MESSAGE is not legal for stream 1 in state New"
        with ScriptedWorker(address) as worker:
            worker.greet()
            worker.send_bytes(encode(Ok(1)))
            assert "OK is not for the initiator of a sink's session to send" in worker.expect_error()


def test_more_uncommitted_bytes_than_the_limit_end_the_session(serve: Serve, output: Output) -> None:
    with serve(DataFile(output.path), uncommitted_bytes_max=1000) as address, ScriptedWorker(address) as worker:
        worker.greet()
        for number in range(3):
            worker.deliver(b"%d" % number, [b"x" * 800])
        worker.write([b"x" * 800])
        worker.write([b"x" * 200])
        assert "(uncommitted_bytes_max)" in worker.expect_error()
    assert output.all == b"x" * 2400


def test_a_flood_of_empty_messages_is_bounded_as_well(serve: Serve) -> None:
    with serve(Recorder(), uncommitted_bytes_max=100_000) as address, ScriptedWorker(address) as worker:
        worker.greet()
        worker.write([b""] * 10_000)
        assert "(uncommitted_bytes_max)" in worker.expect_error()


def test_a_silent_peer_is_closed(serve: Serve) -> None:
    with serve(Recorder(), handshake_seconds=0.2) as address, ScriptedWorker(address) as worker:
        assert worker.expect_error() == "no HELLO within 0.2 s (state Connected)"


def test_a_session_may_be_idle(serve: Serve) -> None:
    with serve(Recorder(), handshake_seconds=1) as address, ScriptedWorker(address) as worker:
        worker.greet()
        worker._socket.settimeout(1.2)
        with pytest.raises(TimeoutError):
            worker.next()
        assert worker.uncommitted() == ()


def test_silent_strangers_do_not_keep_the_worker_out(serve: Serve) -> None:
    with serve(Recorder()) as address, ExitStack() as strangers, ScriptedWorker(address) as first:
        first.greet()
        waiting = [strangers.enter_context(ScriptedWorker(address)) for _ in range(CONNECTIONS_MAX)]
        waiting[0].expect_close()
        first.deliver(b"1", [b"a"])
        with ScriptedWorker(address) as second:
            second.greet()
            waiting[1].expect_close()


def test_an_error_from_the_worker_ends_the_session_and_what_it_sent(serve: Serve) -> None:
    recorder = Recorder()
    with serve(recorder) as address, ScriptedWorker(address) as worker:
        worker.greet()
        worker.write([b"a"])
        worker.send(Error("enough"))
        worker.expect_close()
        with ScriptedWorker(address) as again:
            again.greet()
            assert recorder.staged == []


@pytest.mark.slow
def test_a_worker_that_does_not_read_its_answers_is_not_read_either(serve: Serve) -> None:
    with serve(Recorder()) as address, ScriptedWorker(address) as worker:
        worker.greet()
        worker._socket.settimeout(1)
        with pytest.raises(Cut):
            worker.send_bytes(encode(ListUncommitted(1)) * 1_000_000)
        with ScriptedWorker(address) as again:
            again.greet()


def test_one_state_directory_is_for_one_sink(kind: str, tmp_path: Path) -> None:
    sink = KINDS[kind]("127.0.0.1:0", Recorder(), state=tmp_path / "state")
    running = RunningSink(sink)
    with pytest.raises(RequestError, match="running already"):
        RunningSink(sink)
    with pytest.raises(StoreInUse) as raised:
        RunningSink(KINDS[kind]("127.0.0.1:0", Recorder(), state=tmp_path / "state"))
    assert "separate state directory" in raised.value.hint
    running.stop()
    RunningSink(sink).stop()


def test_an_address_that_is_taken_is_an_error_and_leaves_the_state_free(kind: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        sink = KINDS[kind](f"127.0.0.1:{taken.getsockname()[1]}", Recorder(), state=tmp_path / "state")
        with pytest.raises(OSError, match="in use"):
            RunningSink(sink)
    RunningSink(sink).stop()


def test_impossible_limits_are_refused(tmp_path: Path) -> None:
    for size in (0, 16 * 2**20):
        with pytest.raises(RequestError, match="frame_size_max"):
            Sink("127.0.0.1:0", Recorder(), state=tmp_path, frame_size_max=size)
