"""One worker's connection to a sink, without I/O: pass received bytes to `receive`, get bytes to send from `take`."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.client.sink.participant import Steps
from penstock.client.sink.transactions import Transactions
from penstock.core.errors import ProtocolError
from penstock.core.types import Buffer
from penstock.protocol.connector import (
    EXACT_POSITION_CREDITS,
    OUTPUT_STREAM,
    Ack,
    Acked,
    Decoder,
    EndOfStream,
    Error,
    Frame,
    Hello,
    HelloCheck,
    ListUncommitted,
    Message,
    Notify,
    NotifyAck,
    Ok,
    Phase1,
    Phase2,
    Reply,
    ReplyUncommitted,
    Role,
    Round,
    Session,
    Side,
    State,
    Stream,
    StreamState,
    Use,
    error_frame,
)
from penstock.protocol.connector.codec import Received

logger = logging.getLogger("penstock.sink")

_ANY_MESSAGE = Message(OUTPUT_STREAM, 0, 0, b"", b"")
"""A placeholder: whether messages are allowed now does not depend on their content."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What is the same for all sessions."""

    cookie: bytes = field(repr=False)
    program: str | None
    instance: str | None
    frame_size_max: int


class Desk:
    """Admits one session at a time. A worker that reconnects replaces its last session, which may be half-open."""

    def __init__(self, terms: Terms, transactions: Transactions) -> None:
        self.terms = terms
        self.transactions = transactions
        self._current: SinkSession | None = None

    def admit(self, session: "SinkSession", hello: Hello) -> Steps[None]:
        """Raises ProtocolError for any other peer; then the present session continues."""
        for name, expected, actual in (
            ("program", self.terms.program, hello.program),
            ("instance", self.terms.instance, hello.instance),
        ):
            if expected is not None and actual != expected:
                raise ProtocolError(f"HELLO: unexpected {name} {actual!r:.100}")
        yield from self.transactions.bind(hello.instance)
        old, self._current = self._current, session
        if old is not None:
            logger.warning("%s: replaced by %s, which is the same instance", old.peer, session.peer)
            old.close()
            old.on_replaced()
            yield from self.transactions.discard()

    def leave(self, session: "SinkSession") -> Steps[None]:
        """Data of the session that was not voted on is void. Does nothing for a session that was replaced or has
        left.
        """
        if session is self._current:
            self._current = None
            yield from self.transactions.discard()


class SinkSession:
    """Frames in, calls and answers out. A mistake of the peer ends only its session, with an ERROR that names frame and
    state; exceptions come only from the calls.
    """

    def __init__(self, desk: Desk, peer: str) -> None:
        self.peer = peer
        self.on_replaced: Callable[[], object] = lambda: None
        """Called when the same instance has reconnected: the peer of this session is gone."""
        self._desk = desk
        self._transactions = desk.transactions
        self._session = Session(Use.SINK, Role.ACCEPTOR)
        check = HelloCheck(Use.SINK, desk.terms.cookie)
        self._decoder = Decoder(Use.SINK, hello=check, frame_size_max=desk.terms.frame_size_max)
        self._round = Round()
        self._stream = Stream(OUTPUT_STREAM)
        self._out: list[bytes] = []

    @property
    def is_greeted(self) -> bool:
        return self._session.state is State.STREAMING

    @property
    def is_over(self) -> bool:
        """Whether nothing more is sent, except what `take` still returns; received bytes are to be discarded."""
        return self._session.is_over

    def take(self) -> list[bytes]:
        """The bytes to send; each is returned once."""
        out, self._out = self._out, []
        return out

    def receive(self, data: Buffer) -> Steps[None]:
        try:
            yield from self._receive(data)
        except ProtocolError as error:
            self.fail(str(error))
        if self._session.is_over:
            yield from self._desk.leave(self)

    def ended(self) -> Steps[None]:
        """The connection is gone."""
        self.close()
        yield from self._desk.leave(self)

    def close(self) -> None:
        """End the session without an ERROR."""
        self._session.close()

    def fail(self, reason: str) -> None:
        """Send an ERROR, the last frame."""
        if self._session.is_over:
            return
        state = self._session.state.value
        text = reason if "in state " in reason else f"{reason} (state {state})"
        logger.warning("%s: %s", self.peer, text)
        self._out.append(self._session.send(error_frame(ProtocolError(text))))

    def _receive(self, data: Buffer) -> Steps[None]:
        """Handles consecutive messages together."""
        if self.is_over:
            return
        frames = self._decoder.feed(data)
        while True:
            messages = self._decoder.take_messages(OUTPUT_STREAM)
            if messages:
                yield from self._messages(messages)
            frame = next(frames, None)
            if frame is None:
                return
            self._session.receive(frame)
            yield from self._handle(frame)
            if self._session.is_over:
                return

    def _messages(self, messages: list[Received]) -> Steps[None]:
        self._session.check_messages()
        self._round.receive(_ANY_MESSAGE)
        self._stream.messages(messages[-1][0], Side.THEIRS)
        yield from self._transactions.write(messages)

    def _handle(self, frame: Frame) -> Steps[None]:
        match frame:
            case Hello():
                yield from self._desk.admit(self, frame)
                logger.info("%s: a session of %r (%s)", self.peer, frame.instance, frame.program)
                self._send(Ok(EXACT_POSITION_CREDITS))
            case Notify():
                self._notify(frame)
            case EndOfStream():
                self._end(frame)
            case ListUncommitted():
                self._round.receive(frame)
                self._send(ReplyUncommitted(frame.rtag, self._transactions.uncommitted))
            case Phase1():
                self._round.receive(frame)
                self._send(Reply(frame.txn_id, (yield from self._transactions.vote(frame))))
            case Phase2():
                self._round.receive(frame)
                yield from self._transactions.decide(frame)
                if frame.commit:
                    self._acknowledge_end()
            case Message():
                raise ProtocolError(f"MESSAGE: stream {frame.stream_id} is not open, only stream 1 can be")
            case Error():
                logger.warning("%s reports: %s", self.peer, frame.text)
            case _:
                raise AssertionError(f"unexpected {frame}: the session machine should have refused it")

    def _notify(self, frame: Notify) -> None:
        if frame.stream_id != OUTPUT_STREAM:
            raise ProtocolError(f"NOTIFY: stream {frame.stream_id}: a sink has only stream {OUTPUT_STREAM}")
        self._stream.notify(Side.THEIRS)
        accepts = self._stream.state is StreamState.NOTIFIED
        offset = self._transactions.received
        self._stream.notify_ack(accepts, offset, Side.OURS)
        self._send(NotifyAck(accepts, OUTPUT_STREAM, offset))

    def _end(self, frame: EndOfStream) -> None:
        if frame.stream_id != OUTPUT_STREAM:
            raise ProtocolError(f"EOS_MESSAGE: stream {frame.stream_id} is not open, only stream 1 can be")
        self._stream.end(Side.THEIRS)
        self._acknowledge_end()

    def _acknowledge_end(self) -> None:
        """The end of an output is acknowledged when all of it is committed."""
        if self._stream.state is StreamState.CLOSING and self._transactions.is_settled:
            last_id = self._stream.last_id
            self._stream.ack(last_id, Side.OURS)
            self._send(Ack(0, (Acked(OUTPUT_STREAM, last_id),)))

    def _send(self, frame: Frame) -> None:
        if isinstance(frame, Reply | ReplyUncommitted):
            self._round.send(frame)
        self._out.append(self._session.send(frame))
