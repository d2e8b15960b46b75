"""A source that is sent to another worker: scripted workers, real sockets, all kinds of sources."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock.client import Message as SentMessage
from penstock.client.source.failures import Lost, parse_addresses
from penstock.client.source.session import RESTARTS_MAX, Reconnecting
from penstock.core.address import Address
from penstock.core.errors import RequestError, Unavailable
from penstock.protocol.connector import (
    NOTHING_YET,
    Ack,
    Acked,
    EndOfStream,
    Hello,
    Message,
    Migrate,
    MigrateAck,
    Notify,
    NotifyAck,
    Ok,
    Restart,
)
from tests.client.source.scripted_worker import SECONDS_MAX, Peer, ScriptedWorker
from tests.support.ports import free_port

MakeSource = Callable[..., Any]

LAST = 5


def numbers(after: int | None) -> Iterator[SentMessage]:
    for number in range(0 if after is None else after + 1, LAST + 1):
        yield SentMessage(number, b"%d" % number)


def endless(after: int | None) -> Iterator[SentMessage | None]:
    """Messages 0 to LAST, then nothing for now."""
    yield from numbers(after)
    while True:
        yield None


def receive(peer: Peer, first: int, last: int) -> None:
    assert [peer.expect(Message).message_id for _ in range(first, last + 1)] == list(range(first, last + 1))


def finish(peer: Peer, after: int = NOTHING_YET) -> None:
    """Serve one stream to its end."""
    peer.greet(100)
    stream_id = peer.expect(Notify).stream_id
    peer.send(NotifyAck(True, stream_id, after))
    receive(peer, 0 if after == NOTHING_YET else after + 1, LAST)
    peer.expect(EndOfStream)
    peer.send(Ack(0, (Acked(stream_id, LAST),)))
    peer.expect_close()


def migrate_to(worker: ScriptedWorker) -> Migrate:
    return Migrate("127.0.0.1", worker.port)


def test_a_source_announces_that_it_knows_migrate(make_source: MakeSource) -> None:
    said: list[Hello] = []

    def listen(peer: Peer) -> None:
        said.append(peer.greet(100))
        stream_id = peer.expect(Notify).stream_id
        peer.send(NotifyAck(True, stream_id, LAST))
        peer.expect(EndOfStream)
        peer.send(Ack(0, (Acked(stream_id, LAST),)))
        peer.expect_close()

    with ScriptedWorker(listen) as worker:
        source = make_source(worker.address)
        source.stream("one", numbers)
        source.run()
    assert said[0].version == "0.0.1+migrate"


def test_the_steps_of_a_migration_are_taken_in_order_and_what_was_not_stored_is_sent_again(
    make_source: MakeSource,
) -> None:
    order: list[str] = []
    has_answered, is_migrated = threading.Event(), threading.Event()

    def old(peer: Peer) -> None:
        peer.greet(100)
        stream_id = peer.expect(Notify).stream_id
        peer.send(NotifyAck(True, stream_id, NOTHING_YET))
        receive(peer, 0, LAST)
        peer.send(migrate_to(new))
        assert peer.expect(EndOfStream).stream_id == stream_id
        order.append("EOS")
        assert not peer.has_more(), "it waits for the acknowledgements"
        order.append("ACK")
        peer.send(Ack(0, (Acked(stream_id, 1),)), Ack(0))
        peer.expect(MigrateAck)
        assert has_answered.is_set()
        order.append("MIGRATE_ACK")
        is_migrated.set()

    def after(peer: Peer) -> None:
        peer.expect(Hello)
        order.append("HELLO")
        has_answered.set()
        peer.send(Ok(100))
        stream_id = peer.expect(Notify).stream_id
        assert is_migrated.wait(SECONDS_MAX)
        assert order == ["EOS", "ACK", "HELLO", "MIGRATE_ACK"]
        peer.send(NotifyAck(True, stream_id, 3))
        receive(peer, 4, LAST)
        stop()
        peer.expect_close()

    with ScriptedWorker(after) as new, ScriptedWorker(old) as worker:
        source = make_source(worker.address)
        stop = source.stop
        stream = source.stream("one", endless)
        source.run()
    assert worker.connections == new.connections == 1
    assert stream.acknowledged == 1
    assert not stream.is_done


def test_a_stream_whose_last_message_is_acknowledged_does_not_wait_for_the_empty_ack(make_source: MakeSource) -> None:
    def old(peer: Peer) -> None:
        peer.greet(100)
        stream_id = peer.expect(Notify).stream_id
        peer.send(NotifyAck(True, stream_id, NOTHING_YET))
        receive(peer, 0, LAST)
        peer.send(migrate_to(new))
        peer.expect(EndOfStream)
        peer.send(Ack(0, (Acked(stream_id, LAST),)))
        peer.expect(MigrateAck)

    def after(peer: Peer) -> None:
        peer.greet(100)
        peer.expect(Notify)
        stop()
        peer.expect_close()

    with ScriptedWorker(after) as new, ScriptedWorker(old) as worker:
        source = make_source(worker.address)
        stop = source.stop
        source.stream("one", endless)
        source.run()


def test_a_stream_that_was_not_open_yet_is_ended_when_it_opens(make_source: MakeSource) -> None:
    def old(peer: Peer) -> None:
        peer.greet(100)
        stream_id = peer.expect(Notify).stream_id
        peer.send(migrate_to(new), NotifyAck(True, stream_id, NOTHING_YET))
        while not isinstance(frame := peer.next(), MigrateAck):
            assert frame == EndOfStream(stream_id)

    with ScriptedWorker(finish) as new, ScriptedWorker(old) as worker:
        source = make_source(worker.address)
        source.stream("one", numbers)
        source.run()


def test_at_the_wrong_worker_a_source_is_sent_on_before_ok(make_source: MakeSource) -> None:
    def wrong(peer: Peer) -> None:
        peer.expect(Hello)
        peer.send(migrate_to(new))
        peer.expect(MigrateAck)

    with ScriptedWorker(finish) as new, ScriptedWorker(wrong) as worker:
        source = make_source(worker.address)
        source.stream("one", numbers)
        source.run()
    assert worker.connections == 1


def test_if_nobody_answers_at_the_new_address_the_source_goes_back(make_source: MakeSource) -> None:
    def silent(peer: Peer) -> None:
        peer.greet(100)
        peer.expect(Notify)
        peer.send(Migrate("127.0.0.1", nobody), Ack(0))
        peer.expect_close()

    nobody = free_port()
    with ScriptedWorker(silent, finish) as worker:
        source = make_source(worker.address)
        source.stream("one", numbers)
        source.run()
    assert worker.connections == 2


def test_if_the_new_worker_closes_before_its_ok_the_source_goes_back(make_source: MakeSource) -> None:
    def old(peer: Peer) -> None:
        peer.greet(100)
        peer.expect(Notify)
        peer.send(migrate_to(new), Ack(0))
        peer.expect_close()

    def closes(peer: Peer) -> None:
        peer.expect(Hello)

    with ScriptedWorker(closes) as new, ScriptedWorker(old, finish) as worker:
        source = make_source(worker.address)
        source.stream("one", numbers)
        source.run()


def test_if_the_old_worker_is_gone_the_source_knows_the_new_one(make_source: MakeSource) -> None:
    def old(peer: Peer) -> None:
        peer.greet(100)
        peer.expect(Notify)
        peer.send(migrate_to(new))  # and is gone

    with ScriptedWorker(finish) as new, ScriptedWorker(old) as worker:
        source = make_source(worker.address)
        source.stream("one", numbers)
        source.run()
    assert (worker.connections, new.connections) == (1, 1)


def test_a_restart_with_an_address_is_followed(make_source: MakeSource) -> None:
    def old(peer: Peer) -> None:
        peer.greet(0)
        peer.send(Restart(new.address))

    with ScriptedWorker(finish) as new, ScriptedWorker(old) as worker:
        source = make_source(worker.address)
        source.stream("one", numbers)
        source.run()
    assert worker.connections == 1


def test_workers_that_send_a_source_in_a_circle_are_an_error(make_source: MakeSource) -> None:
    def send_on(to: Callable[[], ScriptedWorker]) -> Callable[[Peer], None]:
        def conversation(peer: Peer) -> None:
            peer.expect(Hello)
            peer.send(migrate_to(to()))
            peer.next()

        return conversation

    with ScriptedWorker(send_on(lambda: second)) as first, ScriptedWorker(send_on(lambda: first)) as second:
        source = make_source(first.address, retry_seconds=0.0)
        source.stream("one", numbers)
        with pytest.raises(Lost, match="in a circle"):
            source.run()
    assert first.connections + second.connections >= RESTARTS_MAX


# Seeds.


def test_seeds_are_tried_in_order(make_source: MakeSource) -> None:
    with ScriptedWorker(finish) as worker:
        seeds = f"127.0.0.1:{free_port()}, 127.0.0.1:{free_port()},{worker.address}"
        source = make_source(seeds)
        source.stream("one", numbers)
        source.run()


def test_a_seed_that_closes_before_its_ok_is_not_tried_twice_in_a_row(make_source: MakeSource) -> None:
    def stopping(peer: Peer) -> None:
        peer.expect(Hello)

    with ScriptedWorker(stopping) as first, ScriptedWorker(finish) as second:
        source = make_source(f"{first.address},{second.address}")
        source.stream("one", numbers)
        source.run()
    assert (first.connections, second.connections) == (1, 1)


def test_without_any_answer_the_error_is_raised_when_the_time_is_over(make_source: MakeSource) -> None:
    source = make_source(f"127.0.0.1:{free_port()},127.0.0.1:{free_port()}", retry_seconds=0.2)
    source.stream("one", numbers)
    with pytest.raises(Unavailable, match="cannot be reached"):
        source.run()


def test_seeds_are_addresses_with_commas_between_them() -> None:
    assert parse_addresses("a:1, b ,a:1") == (Address("a", 1), Address("b", 7100))
    for text in ("", "a:1,", "a:1,b:x"):
        with pytest.raises(RequestError, match="is not an address"):
            parse_addresses(text)


def test_after_a_migrate_the_order_is_the_new_address_the_old_one_and_the_seeds() -> None:
    a, b, c = Address("a", 1), Address("b", 1), Address("c", 1)
    again = Reconnecting([a, b], 60.0)
    again.not_connected()
    assert again.address == b
    again.moved(c)
    for expected in (c, b, a, c):
        assert again.address == expected
        again.not_connected()
