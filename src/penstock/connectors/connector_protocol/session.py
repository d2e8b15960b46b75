"""Our end of one connection to a connector sink, without I/O: input is passed to `receive`, and `take` returns what
must be sent.
"""

from penstock.connectors.sink_api import CheckReport, Position, SinkLost, SinkReport, Transaction, accept_any
from penstock.core.errors import ProtocolError
from penstock.core.types import Buffer
from penstock.protocol.connector import (
    EXACT_POSITION_CREDITS,
    NOTHING_YET,
    OUTPUT_STREAM,
    Ack,
    Decoder,
    EndOfStream,
    Error,
    Frame,
    Hello,
    ListUncommitted,
    Message,
    Notify,
    NotifyAck,
    Ok,
    Phase1,
    Phase2,
    Range,
    Reply,
    ReplyUncommitted,
    Restart,
    Role,
    Round,
    RoundState,
    Session,
    Side,
    Stream,
    StreamState,
    Use,
    error_frame,
)

RTAG = 1
"""The tag of the one list that a session requests."""

STREAM_NAME = "output"

TEXT_SIZE_MAX = 500
"""Characters of a sink's ERROR that the status shows."""

SECRET_SIZE_MIN = 4
"""A shorter cookie is not a secret, and removing it from a text would only make that unreadable."""

_BROKEN = "See the log of the sink program: it received the same text in an ERROR."

_DATA = Message(OUTPUT_STREAM, 0, 0, b"", b"")


class OutputSession:
    """Guarantees: whatever the sink lists is decided before anything else is sent; no data while a round is open.

    A transaction that the sink lists is committed if it is `decided`, else aborted: *presumed abort*. What the sink
    reports is passed to `check` before that. The offset in its NOTIFY_ACK counts only if the credits in its OK announce
    that it is exact. ACKs and answers to PHASE2 are tolerated, and so is a vote that arrives after its round was
    aborted.
    """

    def __init__(self, where: str, hello: Hello, decided: bytes, check: CheckReport = accept_any) -> None:
        self._where = where
        self._cookie = hello.cookie
        self._decided = decided
        self._check = check
        self._is_exact = False
        self._offset: int | None = None
        """How far the sink is, with what is in doubt, if that is exact."""
        self._listed: tuple[bytes, ...] | None = None
        self._session = Session(Use.SINK, Role.INITIATOR)
        self._decoder = Decoder(Use.SINK)
        self._round = Round()
        self._stream = Stream(OUTPUT_STREAM)
        self._is_opened = self._has_settled = False
        self._vote: bool | None = None
        self._has_unvoted = False
        self._is_end_acknowledged = False
        self.reported = ""
        """The text of the sink's ERROR, cut and without the cookie; "" if it has sent none."""
        self.moved_to = ""
        """The address in the sink's RESTART; "" if it has sent none."""
        self._out: list[bytes] = []
        self._stream.notify(Side.OURS)
        for frame in (hello, Notify(OUTPUT_STREAM, STREAM_NAME), ListUncommitted(RTAG)):
            self._send(frame)

    @property
    def is_ready(self) -> bool:
        """Whether the handshake is done, and nothing of an earlier session is in doubt."""
        return self._has_settled

    @property
    def is_settled(self) -> bool:
        """Whether everything that was sent has been decided."""
        return self.is_ready and not self._has_unvoted and self._round.state is RoundState.IDLE

    @property
    def can_begin(self) -> bool:
        """Whether an epoch may start: all earlier ones are settled, and the output has not ended."""
        return self.is_settled and self._stream.state is StreamState.ACTIVE

    @property
    def asked(self) -> bytes | None:
        """The transaction whose PHASE1 has been sent, and whose PHASE2 has not."""
        return self._round.txn_id

    @property
    def vote(self) -> bool | None:
        """The vote on the last transaction that was asked about; None until it arrives."""
        return self._vote

    @property
    def is_end_acknowledged(self) -> bool:
        return self._is_end_acknowledged

    def take(self) -> list[bytes]:
        """What must be sent; each part is returned only once."""
        out, self._out = self._out, []
        return out

    def receive(self, data: Buffer) -> None:
        """Raises SinkLost, with the reason for people, when the sink has ended the session or violated the protocol;
        then `take` returns the last data to send.
        """
        try:
            for frame in self._decoder.feed(data):
                self._session.receive(frame)
                self._handle(frame)
        except ProtocolError as error:
            self._out = [self._session.send(error_frame(error))]
            raise SinkLost(f"the sink at {self._where} violates the protocol: {error}", _BROKEN) from None
        except SinkLost:
            self._out = []
            raise

    def data(self, last_id: int) -> None:
        """MESSAGE frames up to this id are sent, bypassing `take`. Raises LocalProtocolError while a round is open."""
        self._round.send(_DATA)
        self._stream.messages(last_id, Side.OURS)
        self._has_unvoted = True

    def ask(self, transaction: Transaction) -> None:
        """Sends PHASE1."""
        ranges = (Range(OUTPUT_STREAM, transaction.start, transaction.end),)
        self._send(Phase1(transaction.id, ranges))
        self._has_unvoted, self._vote = False, None

    def decide(self, txn_id: bytes, commit: bool) -> None:
        """Sends PHASE2."""
        self._send(Phase2(txn_id, commit))

    def end(self) -> None:
        """Sends EOS_MESSAGE: the session accepts no more epochs. Does nothing the second time."""
        if self._stream.state is StreamState.ACTIVE:
            self._stream.end(Side.OURS)
            self._send(EndOfStream(OUTPUT_STREAM))

    def _handle(self, frame: Frame) -> None:
        match frame:
            case Ok(credits=credits):
                self._is_exact = credits == EXACT_POSITION_CREDITS
            case NotifyAck():
                self._opened(frame)
            case ReplyUncommitted():
                self._round.receive(frame)
                self._listed = frame.txn_ids
                self._settle()
            case Reply():
                self._voted(frame)
            case Ack():
                self._acknowledged(frame)
            case Restart(address=address):
                self.moved_to = address
                to = f", at {address!r:.300}" if address else ""
                raise SinkLost(f"the sink at {self._where} asks the worker to connect again{to}")
            case Error(text=text):
                self.reported = self._shown(text)
                raise SinkLost(f"the sink at {self._where} reports: {self.reported}")
            case _:
                raise AssertionError(f"the session machine lets {frame} through")

    def _opened(self, frame: NotifyAck) -> None:
        if frame.stream_id != OUTPUT_STREAM:
            raise ProtocolError(f"NOTIFY_ACK: stream {frame.stream_id} was not asked for")
        self._stream.notify_ack(frame.success, NOTHING_YET, Side.THEIRS)
        if not frame.success:
            raise SinkLost(f"the sink at {self._where} is not accepting output now (it refused NOTIFY)")
        self._is_opened = True
        self._offset = frame.point_of_reference if self._is_exact else None
        self._settle()

    def _settle(self) -> None:
        """When both answers have arrived: decide what the sink lists, if its data fits ours."""
        if not self._is_opened or self._listed is None:
            return
        self._report(self._listed)
        for txn_id in self._listed:
            self._send(Phase2(txn_id, bool(txn_id) and txn_id == self._decided))
        self._has_settled = True

    def _report(self, listed: tuple[bytes, ...]) -> None:
        """The offset includes what is in doubt: the sink does not report where that starts."""
        for txn_id in listed:
            self._check(SinkReport(None, Position(txn_id, self._offset)))
        if not listed:
            self._check(SinkReport(Position(None, self._offset)))

    def _voted(self, frame: Reply) -> None:
        """A REPLY for any other transaction answers its PHASE2, or is too late."""
        is_vote = frame.txn_id == self._round.txn_id
        self._round.receive(frame)
        if is_vote:
            self._vote = frame.commit

    def _acknowledged(self, frame: Ack) -> None:
        for stream_id, point in frame.acked:
            if stream_id == OUTPUT_STREAM:
                has_ended = self._stream.state in (StreamState.CLOSING, StreamState.INACTIVE)
                last_id = self._stream.last_id
                self._is_end_acknowledged |= has_ended and (last_id == NOTHING_YET or point >= last_id)
                self._stream.ack(point, Side.THEIRS)

    def _shown(self, text: str) -> str:
        """The sink's text without our cookie, which it may have repeated."""
        cookie = self._cookie.decode("utf-8", "backslashreplace")
        hidden = text.replace(cookie, "(cookie)") if len(self._cookie) >= SECRET_SIZE_MIN else text
        return hidden if len(hidden) <= TEXT_SIZE_MAX else hidden[:TEXT_SIZE_MAX] + "…"

    def _send(self, frame: Frame) -> None:
        if isinstance(frame, ListUncommitted | Phase1 | Phase2):
            self._round.send(frame)
        self._out.append(self._session.send(frame))
