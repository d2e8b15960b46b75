"""How connections and sources end: ERROR, RESTART, close, silence, refusals, `fail`, `stop`."""

import itertools
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from penstock.client import Refused, SourceFailed
from penstock.core.errors import ProtocolError, RequestError, Unavailable
from penstock.protocol.connector import (
    Ack,
    Acked,
    Error,
    Hello,
    Message,
    Notify,
    NotifyAck,
    Ok,
    Restart,
    announce_window,
    encode,
)
from tests.client.scripted_peer import Cut
from tests.client.source.model_worker import ModelWorker
from tests.client.source.scripted_worker import Conversation, Peer, ScriptedWorker
from tests.client.source.test_streams import MakeSource, numbers
from tests.support.waiting import until


def run_one(make_source: MakeSource, address: str, **options: Any) -> Any:
    source = make_source(address, **options)
    stream = source.stream("s", numbers(10))
    source.run()
    return stream


def endless(after: int | None) -> Iterator[tuple[int, bytes]]:
    for number in itertools.count(0 if after is None else after + 1):
        yield number, b"x" * 1000


@contextmanager
def nobody() -> Iterator[str]:
    """An address that is taken, and where nobody listens."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{unused.getsockname()[1]}"


def read_to_the_end(peer: Peer) -> list[Any]:
    frames = []
    try:
        while True:
            frames.append(peer.next())
    except Cut:
        return frames


def test_the_hello_carries_what_the_source_was_given(make_source: MakeSource) -> None:
    said: list[Hello] = []

    def refuse(peer: Peer) -> None:
        said.append(peer.expect(Hello))
        peer.send(Error("HELLO: the cookie is wrong"))

    with ScriptedWorker(refuse) as worker:
        with pytest.raises(Refused, match="the cookie is wrong") as raised:
            run_one(make_source, worker.address, source="orders", program="p", cookie=b"secret")
        assert worker.connections == 1
    assert said == [Hello("0.0.1+migrate", b"secret", announce_window("p"), "orders")]
    assert "cookie" in raised.value.hint
    assert "secret" not in str(raised.value)


def test_an_error_while_streaming_is_final_even_when_we_are_writing(make_source: MakeSource) -> None:
    def refuse(peer: Peer) -> None:
        peer.greet(100_000)
        notify = peer.expect(Notify)
        peer.send(NotifyAck(True, notify.stream_id, 2**64 - 1))
        for _ in range(50):
            peer.expect(Message)
        peer.send(Error("enough"))  # and closes, with bytes unread

    for _ in range(5):
        with ScriptedWorker(refuse) as worker:
            source = make_source(worker.address)
            source.stream("s", endless)
            with pytest.raises(Refused, match="enough"):
                source.run()
            assert worker.connections == 1


def test_restart_goes_to_the_address_and_an_empty_one_means_the_same(make_source: MakeSource) -> None:
    model = ModelWorker()
    with ScriptedWorker(model) as target:

        def to_other(peer: Peer) -> None:
            peer.greet(10)
            peer.send(Restart(target.address))

        def to_same(peer: Peer) -> None:
            peer.greet(10)
            peer.send(Restart())

        with ScriptedWorker(to_same, to_other) as first:
            run_one(make_source, first.address)
            assert first.connections == 2
        assert target.connections == 1
    assert model.ids("s") == list(range(1, 11))


def test_acks_that_come_with_a_restart_are_reported(make_source: MakeSource) -> None:
    model = ModelWorker()

    def serve(peer: Peer) -> None:
        peer.greet(10)
        notify = peer.expect(Notify)
        peer.send(NotifyAck(True, notify.stream_id, 4), Ack(1, (Acked(notify.stream_id, 4),)), Restart())

    acks: list[int] = []
    with ScriptedWorker(serve, model) as worker:
        run_one(make_source, worker.address, on_ack=lambda _, last: acks.append(last))
    assert acks[0] == 4
    assert acks == sorted(acks)


def test_when_nobody_is_at_the_new_address_the_old_one_is_tried_again(make_source: MakeSource) -> None:
    model = ModelWorker()
    with nobody() as address:

        def restart(peer: Peer) -> None:
            peer.greet(10)
            peer.send(Restart(address))

        with ScriptedWorker(restart, model) as worker:
            run_one(make_source, worker.address)
    assert model.ids("s") == list(range(1, 11))


def test_a_refused_notify_is_repeated_until_it_is_accepted(make_source: MakeSource) -> None:
    model = ModelWorker(refusals=3)
    with ScriptedWorker(model) as worker:
        run_one(make_source, worker.address)
        assert worker.connections == 1
    assert model.notified == ["s"] * 4
    assert model.ids("s") == list(range(1, 11))


def test_a_stream_that_stays_in_use_is_finally_an_error(make_source: MakeSource) -> None:
    with (
        ScriptedWorker(ModelWorker(refusals=10_000)) as worker,
        pytest.raises(Unavailable, match="in use by another"),
    ):
        run_one(make_source, worker.address, retry_seconds=0.3)


def test_after_a_reconnect_the_worker_reports_where_to_continue(make_source: MakeSource) -> None:
    """The new point of reference counts, be it above what was acknowledged or below."""
    asked: list[int | None] = []

    def factory(after: int | None) -> Iterator[tuple[int, bytes]]:
        asked.append(after)
        return iter([(n, b"") for n in range(10)])

    def open_at(point: int) -> Conversation:
        def serve(peer: Peer) -> None:
            peer.greet(100)
            notify = peer.expect(Notify)
            peer.send(NotifyAck(True, notify.stream_id, point))
            for _ in range(9 - point if point < 10 else 10):
                peer.expect(Message)
            if point == 3:
                peer.next()  # EOS
                peer.send(Ack(1, (Acked(notify.stream_id, 9),)))
                peer.expect_close()

        return serve

    with ScriptedWorker(open_at(2**64 - 1), open_at(7), open_at(3)) as worker:
        source = make_source(worker.address)
        stream = source.stream("s", factory)
        source.run()
    assert asked == [None, 7, 3]
    assert (stream.sent, stream.first_stored, stream.stored) == (10 + 2 + 6, None, 3)


@pytest.mark.parametrize(
    ("frame", "text"),
    [
        (NotifyAck(True, 1, 0), "was not opened by this program"),
        (Ack(1, ((Acked(1, 0)),)), "was not opened by this program"),
        (Ok(1), "OK is not legal"),
        (Restart("nowhere:at:all"), "RESTART"),
    ],
)
def test_what_a_worker_must_not_send_is_final(make_source: MakeSource, frame: Any, text: str) -> None:
    heard: list[Any] = []

    def serve(peer: Peer) -> None:
        peer.greet(10)
        peer.send_bytes(encode(frame))
        heard.extend(read_to_the_end(peer))

    with ScriptedWorker(serve) as worker:
        with pytest.raises(ProtocolError, match=text):
            run_one(make_source, worker.address)
        assert worker.connections == 1
    if not isinstance(frame, Restart):
        assert isinstance(heard[-1], Error)


@pytest.mark.parametrize("point", [0, 17, 2**64 - 1])
def test_an_ack_of_what_was_not_sent_is_final(make_source: MakeSource, point: int) -> None:
    def serve(peer: Peer) -> None:
        peer.greet(0)
        notify = peer.expect(Notify)
        peer.send(NotifyAck(True, notify.stream_id, 2**64 - 1), Ack(0, (Acked(notify.stream_id, point),)))
        read_to_the_end(peer)

    acks: list[Any] = []
    with ScriptedWorker(serve) as worker, pytest.raises(ProtocolError, match="was never sent"):
        run_one(make_source, worker.address, on_ack=lambda *told: acks.append(told))
    assert acks == []


def test_a_server_that_is_not_a_worker_is_recognized(make_source: MakeSource) -> None:
    def serve(peer: Peer) -> None:
        peer.send_bytes(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with ScriptedWorker(serve) as worker, pytest.raises(ProtocolError) as raised:
        run_one(make_source, worker.address)
    assert "connector port" in raised.value.hint


def test_a_worker_that_is_silent_or_gone_is_retried_for_the_given_time(make_source: MakeSource) -> None:
    def silent(peer: Peer) -> None:
        peer.expect(Hello)
        peer.expect_close()

    with ScriptedWorker(silent) as worker:
        with pytest.raises(Unavailable, match="not answered"):
            run_one(make_source, worker.address, timeout_seconds=0.1, retry_seconds=0.3)
        until(lambda: worker.connections > 1)
    began = time.monotonic()
    with nobody() as address, pytest.raises(Unavailable, match="cannot be reached"):
        run_one(make_source, address, retry_seconds=0.5)
    assert time.monotonic() - began >= 0.5


def test_without_retries_the_first_close_is_an_error(make_source: MakeSource) -> None:
    with ScriptedWorker(lambda peer: None) as worker:
        with pytest.raises(Unavailable):
            run_one(make_source, worker.address, retry_seconds=0)
        assert worker.connections == 1


def test_what_an_iterator_raises_is_reported_to_the_worker_and_raised(make_source: MakeSource) -> None:
    events: list[str] = []

    def broken(after: int | None) -> Iterator[Any]:
        yield 1, b"fine"
        while not events:
            yield None
        raise ZeroDivisionError("division by zero")

    def other(after: int | None) -> Iterator[None]:
        events.append("begun")
        try:
            while True:
                yield None
        finally:
            events.append("closed")

    model = ModelWorker()
    with ScriptedWorker(model) as worker:
        source = make_source(worker.address)
        source.stream("broken", broken)
        source.stream("other", other)
        with pytest.raises(ZeroDivisionError):
            source.run()
    assert model.errors == ["ZeroDivisionError: division by zero"]
    until(lambda: events == ["begun", "closed"])


def test_what_on_ack_raises_is_reported_to_the_worker_and_raised(make_source: MakeSource) -> None:
    model = ModelWorker()
    with ScriptedWorker(model) as worker, pytest.raises(ZeroDivisionError):
        run_one(make_source, worker.address, on_ack=lambda _, last: last // 0)
    assert model.errors[0].startswith("ZeroDivisionError")


def test_fail_sends_an_error_behind_what_was_sent(make_source: MakeSource) -> None:
    model = ModelWorker()
    with ScriptedWorker(model) as worker:
        source = make_source(worker.address)

        def factory(after: int | None) -> Iterator[Any]:
            yield from ((n, b"x" * 100) for n in range(1000))
            while len(model.stored["s"]) < 1000:
                yield None
            source.fail("the file has gone " + "x" * 2000)
            yield None

        source.stream("s", factory)
        with pytest.raises(SourceFailed, match="the file has gone"):
            source.run()
    assert model.ids("s") == list(range(1000))
    assert model.errors == [("the file has gone " + "x" * 2000)[:1024]]


@pytest.mark.parametrize("order", ["stop", "fail"])
def test_calls_from_another_thread_take_effect_at_once(make_source: MakeSource, order: str) -> None:
    """While it waits for a worker, and while it waits for credits."""

    def never(peer: Peer) -> None:
        peer.greet(0)
        read_to_the_end(peer)

    for conversation in (never, lambda peer: None):
        with ScriptedWorker(conversation) as worker:
            source = make_source(worker.address, retry_seconds=60)
            source.stream("s", endless)
            threading.Timer(0.2, lambda source=source: source.fail("no") if order == "fail" else source.stop()).start()
            began = time.monotonic()
            if order == "fail":
                with pytest.raises(SourceFailed):
                    source.run()
            else:
                source.run()
            assert time.monotonic() - began < 30


def test_streams_may_be_added_while_it_runs_and_are_discovered(make_source: MakeSource) -> None:
    model = ModelWorker()
    with ScriptedWorker(model) as worker:
        source = make_source(worker.address)

        def first(after: int | None) -> Iterator[Any]:
            source.stream("second", numbers(5))
            yield 1, b""

        def find() -> Iterator[tuple[str, Any]]:
            yield "found", numbers(7)
            if model.ended.count("found") == 1 and "second" in model.ended:
                source.stop()

        source.stream("first", first)
        source.discover(find)
        source.run()
    assert (model.ids("second"), model.ids("found")) == ([1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6, 7])


def test_a_source_runs_once_at_a_time_and_again_later(make_source: MakeSource) -> None:
    model = ModelWorker()
    with ScriptedWorker(model) as worker:
        source = make_source(worker.address)
        refused: list[Exception] = []

        def factory(after: int | None) -> Iterator[Any]:
            try:
                source._prepare()
            except RequestError as error:
                refused.append(error)
            return iter(())

        source.stream("s", factory)
        source.run()
        source.run()
        source.stream("t", numbers(3))
        source.run()
    assert len(refused) == 1
    assert model.ids("t") == [1, 2, 3]
