"""The session of a source without a socket: any order of what a worker may do and of what the source has to send."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.client.source.feed import IteratorFeed
from penstock.client.source.message import SourceStream
from penstock.client.source.session import BATCH_BYTES, STEADY_SECONDS, Outflow, SourceSession, Terms
from penstock.core.address import Address
from penstock.protocol.connector import (
    MIGRATING_VERSION,
    SOURCE_VERSION,
    Ack,
    Acked,
    Decoder,
    EndOfStream,
    Frame,
    Hello,
    Message,
    Migrate,
    Notify,
    NotifyAck,
    Ok,
    Use,
    encode,
)

TERMS = Terms(Hello(SOURCE_VERSION, b"", "p", "s"), 4 << 20, 30.0, 60.0)
ADDRESS = Address("h", 1)


class Conversation:
    """A session, what it has sent, and a worker that grants and acknowledges as it is told."""

    def __init__(self, *streams: SourceStream) -> None:
        self.now = 0.0
        self.session = SourceSession(TERMS, ADDRESS, 0.0)
        self.outflow = Outflow(self.session, lambda: self.now)
        self.credit = 0
        self.last: dict[int, int] = {}
        self.ended: set[int] = set()
        self._decoder = Decoder(Use.SOURCE)
        for stream in streams:
            self.session.add(stream, 0.0)

    def reply(self, *frames: Frame) -> None:
        for frame in frames:
            self.credit += getattr(frame, "credits", 0)
            self.session.receive(encode(frame), self.now)

    def turn(self) -> None:
        self.session.poll(self.now)
        for stream in self.session.opened:
            self.outflow.add(IteratorFeed(stream, 1.0, lambda: self.now))
        self.session.opened = []
        self.outflow.fill(BATCH_BYTES)
        for frame in self._decoder.feed(b"".join(self.session.take())):
            self._sent(frame)

    def _sent(self, frame: Frame) -> None:
        match frame:
            case Notify():
                self.credit -= 1
                self.reply(NotifyAck(True, frame.stream_id, 2**64 - 1))
            case Message():
                assert self.credit > 0
                self.credit -= 1
                assert frame.message_id > self.last.get(frame.stream_id, -1)
                self.last[frame.stream_id] = frame.message_id
            case EndOfStream():
                self.ended.add(frame.stream_id)


def stream_of(number: int, count: int) -> SourceStream:
    return SourceStream(f"stream {number}", number, lambda after: [(n, b"x") for n in range(count)])


def all_done(*streams: SourceStream) -> bool:
    return all(stream.is_done for stream in streams)


@given(st.lists(st.integers(0, 20), max_size=5), st.lists(st.integers(0, 9), max_size=50))
def test_whatever_the_credits_everything_is_sent_in_order(counts: list[int], grants: list[int]) -> None:
    streams = [stream_of(number, count) for number, count in enumerate(counts)]
    conversation = Conversation(*streams)
    conversation.reply(Ok(0))
    for grant in [*grants, *[3] * (sum(counts) + 10)]:
        conversation.turn()
        conversation.reply(Ack(grant, tuple(Acked(number, last) for number, last in conversation.last.items())))
    conversation.turn()
    conversation.reply(Ack(0, tuple(Acked(number, last) for number, last in conversation.last.items())))
    assert conversation.last == {number: count - 1 for number, count in enumerate(counts) if count}
    assert all_done(*streams)


def test_a_stream_is_done_only_when_its_last_message_is_acknowledged() -> None:
    stream = stream_of(1, 10)
    conversation = Conversation(stream)
    conversation.reply(Ok(100))
    for _ in range(3):
        conversation.turn()
    assert conversation.ended == {1}
    conversation.reply(Ack(0, (Acked(1, 8),)))
    assert not all_done(stream)
    conversation.reply(Ack(0, (Acked(1, 9), Acked(1, 9))))
    assert all_done(stream)
    assert conversation.session.acked == {stream: 9}


def test_acknowledgements_never_go_backwards_even_over_connections() -> None:
    stream = stream_of(1, 10)
    for told, moved in ((7, {stream: 7}), (3, {}), (9, {stream: 9})):
        conversation = Conversation(stream)
        conversation.reply(Ok(100))
        for _ in range(3):
            conversation.turn()
        conversation.reply(Ack(0, (Acked(1, told),)))
        assert conversation.session.acked == moved


def test_a_connection_was_useful_if_a_stream_advanced_or_it_lasted() -> None:
    session = Conversation(stream_of(1, 1)).session
    assert not session.was_useful(1000.0)
    session.receive(encode(Ok(1)), 1000.0)
    assert not session.was_useful(1000.0 + STEADY_SECONDS / 2)
    assert session.was_useful(1000.0 + STEADY_SECONDS)


def test_an_end_that_crosses_with_migrate_is_repeated_at_the_new_worker() -> None:
    """The old worker takes it for the answer to MIGRATE, and acknowledges what it has stored."""
    stream = SourceStream("north", 1, lambda _: iter(()))
    session = SourceSession(Terms(Hello(MIGRATING_VERSION, b"", "p", "s"), 4 << 20, 30.0, 60.0), ADDRESS, 0.0)
    session.receive(encode(Ok(10)), 0.0)
    session.add(stream, 0.0)
    session.poll(0.0)
    session.receive(encode(NotifyAck(True, 1, 2**64 - 1)), 0.0)
    session.send(stream, [(5, 0, b"", b"x")])
    session.end(stream)
    session.receive(encode(Migrate("other", 2)), 1.0)
    session.receive(encode(Ack(0, (Acked(1, 5),))), 2.0)
    session.take()
    assert session.may_leave(2.0)
    assert not stream.is_done


def test_a_stream_that_the_worker_opens_after_migrate_is_ended_before_we_leave() -> None:
    stream = SourceStream("north", 1, lambda _: iter(()))
    session = SourceSession(Terms(Hello(MIGRATING_VERSION, b"", "p", "s"), 4 << 20, 30.0, 60.0), ADDRESS, 0.0)
    session.receive(encode(Ok(10)), 0.0)
    session.add(stream, 0.0)
    session.poll(0.0)
    session.take()
    session.receive(encode(Migrate("other", 2)), 1.0)
    assert not session.may_leave(1.0)
    session.receive(encode(NotifyAck(True, 1, 2**64 - 1)), 1.0)
    assert session.take() == [encode(EndOfStream(1))]
