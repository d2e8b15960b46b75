"""The worker's side of one connection of a scenario: it serves the client, and detects what it does wrong."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from penstock.core.address import Address
from penstock.core.errors import ProtocolError
from penstock.protocol.connector import (
    MIGRATING_VERSION,
    NOTHING_YET,
    SOURCE_VERSION,
    Ack,
    Acked,
    Decoder,
    EndOfStream,
    Error,
    Frame,
    Hello,
    Message,
    Migrate,
    MigrateAck,
    Notify,
    NotifyAck,
    Ok,
    Role,
    Session,
    Side,
    State,
    Stream,
    StreamState,
    Use,
)
from penstock.testing.source_conformance.rules import Finding, Rule, Violation
from penstock.testing.source_conformance.streams import StreamLog

# What a connection asks of its socket.


@dataclass(frozen=True, slots=True)
class Send:
    connection: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Close:
    """Send nothing more; with `reset`, like a machine that has crashed."""

    connection: int
    reset: bool = False


Effect: TypeAlias = Send | Close


@dataclass(frozen=True, slots=True)
class Manner:
    """How the worker serves one connection."""

    credits: int = 50
    returns_credits: bool = True
    acks_every: int = 1
    """Send an ACK after every so many messages; 0: never."""
    acks_ends: bool = True
    """Whether the end of a stream is acknowledged immediately."""
    answers: bool = True
    """Whether NOTIFY is answered immediately."""
    refusals: int = 0
    """How many NOTIFYs are refused first."""
    lost: int = 0
    """How many messages at the end of each stream are not stored when the connection ends."""
    piece_bytes: int = 0
    """How many bytes are sent at a time; 0: whole frames."""


class Step:
    """One thing that the worker does, or waits for."""

    awaits: ClassVar[str] = "nothing"
    """What the client has to do, in words for reports."""
    rule: ClassVar[Rule]
    """The rule that a client breaks if it does not do it."""

    def begin(self, _connection: "Connection") -> None:
        """Do what the worker does in this step."""

    def is_done(self, _connection: "Connection") -> bool:
        """Whether what it waits for has happened. Raises Violation if it can no longer happen."""
        return True


@dataclass(slots=True)
class Shared:
    """What all connections of a scenario have in common."""

    logs: dict[int, StreamLog]
    findings: list[Finding]
    effects: list[Effect]

    def warn(self, rule: Rule, text: str, connection: int) -> None:
        """Add a warning, once for each rule."""
        if all(finding.rule is not rule for finding in self.findings):
            self.findings.append(Finding(text, rule, connection + 1))


class Connection:
    """Received bytes go in, effects come out. Raises Violation for what ends the scenario."""

    def __init__(
        self, number: int, manner: Manner, steps: Sequence[Step], addresses: Sequence[Address], shared: Shared
    ) -> None:
        self.number = number
        self.manner = manner
        self.addresses = addresses
        """The workers, as this client reaches them. Nothing listens at the last address."""
        self.shared = shared
        self.credits = 0
        """What the client may still spend; negative after NOTIFYs without credit."""
        self.messages = 0
        self.hello: Hello | None = None
        self.now = 0.0
        """The time of the event that is being handled."""
        self.is_closed = False
        """The client has closed it."""
        self.is_ended = False
        """We have ended it: what still arrives is discarded."""
        self.has_migrated = False
        """MIGRATE_ACK has arrived."""
        self._session = Session(Use.SOURCE, Role.ACCEPTOR)
        self._decoder = Decoder(Use.SOURCE)
        self._streams: dict[int, Stream] = {}
        self._opened_at: dict[int, int | None] = {}
        """The last stored id that NOTIFY_ACK reported, by stream."""
        self._last: dict[int, int] = {}
        """The last message since then, by stream."""
        self._quiet_since = 0.0
        self._steps = list(steps)
        self._has_begun = False
        self._refusals = manner.refusals

    # Its steps.

    @property
    def step(self) -> Step | None:
        """The current step; None after the last one."""
        return self._steps[0] if self._steps else None

    @property
    def is_greeted(self) -> bool:
        return self._session.state not in (State.CONNECTED, State.HANDSHAKE)

    @property
    def quiet_seconds(self) -> float:
        """The time since the last bytes came, or since `begin_quiet`."""
        return self.now - self._quiet_since

    def begin_quiet(self) -> None:
        self._quiet_since = self.now

    def advance(self) -> None:
        """Continue with the first step that still waits for something."""
        while self._steps:
            step = self._steps[0]
            if not self._has_begun:
                self._has_begun = True
                step.begin(self)
            if not step.is_done(self):
                return
            self._steps.pop(0)
            self._has_begun = False

    def replace_steps(self, steps: Sequence[Step]) -> None:
        """Drop the remaining steps, and continue with these."""
        self._steps, self._has_begun = list(steps), False

    # What it sends.

    def send(self, *frames: Frame) -> None:
        self.send_bytes(b"".join(self._session.send(frame) for frame in frames))

    def send_bytes(self, data: bytes) -> None:
        size = self.manner.piece_bytes or len(data) or 1
        self.shared.effects += (Send(self.number, data[at : at + size]) for at in range(0, len(data), size))

    def end(self, *, reset: bool = False) -> None:
        self.is_ended = True
        self._session.close()
        self.shared.effects.append(Close(self.number, reset))

    def fail(self, text: str) -> None:
        """End the connection as a worker does after a client's mistake."""
        if not self._session.is_over and not self.is_ended:
            self.send(Error(text))
        self.end()

    def greet(self) -> None:
        self.credits += self.manner.credits
        self.send(Ok(self.manner.credits))

    def grant(self, count: int, acked: Sequence[Acked] = ()) -> None:
        self.credits += count
        self.send(Ack(count, tuple(acked)))

    def migrate(self, worker: int) -> None:
        self.send(Migrate(self.addresses[worker].host, self.addresses[worker].port))

    # Its streams.

    @property
    def logs(self) -> list[StreamLog]:
        """Of all streams that the client ever had."""
        return list(self.shared.logs.values())

    @property
    def asked(self) -> list[StreamLog]:
        """Streams with a NOTIFY that is not answered yet."""
        return self._in(StreamState.NOTIFIED)

    @property
    def open(self) -> list[StreamLog]:
        return self._in(StreamState.ACTIVE)

    @property
    def ending(self) -> list[StreamLog]:
        """Streams whose end is not acknowledged yet."""
        return self._in(StreamState.CLOSING)

    @property
    def has_accepted_all(self) -> bool:
        """Whether every stream that the client ever had was opened in this connection."""
        return bool(self.logs) and all(log.stream_id in self._opened_at for log in self.logs)

    @property
    def has_ended_all(self) -> bool:
        """Whether the client has ended each of its streams, here or before."""
        return bool(self.logs) and all(log.is_done or self._has_ended(log) for log in self.logs)

    def _has_ended(self, log: StreamLog) -> bool:
        stream = self._streams.get(log.stream_id)
        was_open = log.stream_id in self._opened_at
        return was_open and stream is not None and stream.state in (StreamState.CLOSING, StreamState.INACTIVE)

    def last_sent(self, log: StreamLog) -> int | None:
        """The id after which the client continues the stream."""
        return self._last.get(log.stream_id, self._opened_at[log.stream_id])

    def acknowledge(self, log: StreamLog, point_of_reference: int) -> Acked:
        """The entry of an ACK by which the stream is complete up to here."""
        self._streams[log.stream_id].ack(point_of_reference, Side.OURS)
        log.acked = point_of_reference
        return Acked(log.stream_id, point_of_reference)

    def acknowledge_end(self, log: StreamLog) -> Acked:
        last = self._streams[log.stream_id].last_id
        log.stored = last
        log.is_done = True
        return self.acknowledge(log, last)

    def accept(self, log: StreamLog) -> None:
        """Send NOTIFY_ACK, and return the credit that the NOTIFY has cost."""
        self._streams[log.stream_id].notify_ack(True, log.point_of_reference, Side.OURS)
        self._opened_at[log.stream_id] = log.stored
        self._last.pop(log.stream_id, None)
        self.send(NotifyAck(True, log.stream_id, log.point_of_reference))
        if self.manner.returns_credits:
            self.grant(1)

    def refuse(self, log: StreamLog) -> None:
        self._refusals = max(self._refusals - 1, 0)
        self._streams[log.stream_id].notify_ack(False, 0, Side.OURS)
        self.send(NotifyAck(False, log.stream_id, 0))
        self.grant(1)

    def _in(self, state: StreamState) -> list[StreamLog]:
        return [self.shared.logs[stream.stream_id] for stream in self._streams.values() if stream.state is state]

    # What it receives.

    def receive(self, data: bytes) -> None:
        if self.is_ended or self._session.is_over:
            return  # it was sent before the client could know
        self.begin_quiet()
        try:
            for frame in self._decoder.feed(data):
                self._take(frame)
        except ProtocolError as error:
            rule = Rule.FRAME_SIZE if "over the limit" in str(error) else Rule.MALFORMED
            raise Violation(str(error), rule) from None

    def _take(self, frame: Frame) -> None:
        if isinstance(frame, Error):
            raise Violation(f"the client reported an error: {frame.text}")
        self._check_session(frame)
        match frame:
            case Hello():
                self._greeted(frame)
            case Notify():
                self._notify(frame)
            case Message():
                self._message(frame)
            case EndOfStream():
                self._end_of_stream(frame)
            case MigrateAck():
                self.has_migrated = True

    def _check_session(self, frame: Frame) -> None:
        before = self._session.state
        try:
            self._session.receive(frame)
        except ProtocolError as error:
            rules = {State.CONNECTED: Rule.HELLO, State.HANDSHAKE: Rule.WAITS_FOR_OK}
            raise Violation(str(error), rules.get(before, Rule.LEGAL)) from None

    def _greeted(self, hello: Hello) -> None:
        if hello.version not in (SOURCE_VERSION, MIGRATING_VERSION):
            raise Violation(f"the version in HELLO is {hello.version!r:.40}", Rule.VERSION)
        self.hello = hello

    def _notify(self, notify: Notify) -> None:
        stream = self._streams.setdefault(notify.stream_id, Stream(notify.stream_id))
        try:
            stream.notify(Side.THEIRS)
        except ProtocolError as error:
            raise Violation(str(error), Rule.NOTIFY_ONCE) from None
        self.credits -= 1
        log = self.shared.logs.setdefault(notify.stream_id, StreamLog(notify.stream_id, notify.name))
        if self._refusals or stream.state is StreamState.REOPENING:
            self.refuse(log)
        elif self.manner.answers:
            self.accept(log)

    def _message(self, message: Message) -> None:
        log = self._open_log(message, message.stream_id)
        if self.credits <= 0:
            raise Violation(f"message {message.message_id} of stream {log.name!r} has no credit", Rule.CREDIT)
        self.credits -= 1
        last = self._check_id(log, message.message_id)
        log.take(message, last)
        self._streams[log.stream_id].messages(message.message_id, Side.THEIRS)
        self._last[log.stream_id] = message.message_id
        self.messages += 1
        self._settle(log, message.message_id)

    def _open_log(self, frame: Frame, stream_id: int) -> StreamLog:
        log, stream = self.shared.logs.get(stream_id), self._streams.get(stream_id)
        if log is None or stream is None:
            raise Violation(f"{frame.wire_name} of stream {stream_id} without NOTIFY", Rule.NOTIFIES)
        if stream.state is not StreamState.ACTIVE:
            raise Violation(f"{frame.wire_name} of stream {log.name!r}, which is not open", Rule.OPEN)
        return log

    def _check_id(self, log: StreamLog, message_id: int) -> int | None:
        """Returns the id that it comes after. A message that is stored already takes the stream back to there."""
        if message_id == NOTHING_YET:
            raise Violation(f"stream {log.name!r}: 2^64−1 is the id of a message", Rule.RESERVED_ID)
        last, stored = self._last.get(log.stream_id), self._opened_at[log.stream_id]
        if last is not None and message_id <= last:
            raise Violation(f"stream {log.name!r}: message {message_id} came after {last}", Rule.IDS_GROW)
        if last is None and stored is not None and message_id <= stored:
            text = f"stream {log.name!r}: message {message_id} came again, but {stored} was stored"
            self.shared.warn(Rule.NO_DUPLICATES, text, self.number)
            return message_id - 1
        return stored if last is None else last

    def _settle(self, log: StreamLog, message_id: int) -> None:
        """Store it, return its credit, and acknowledge it, as `manner` says."""
        is_more = log.store(message_id, self.manner.lost)
        is_due = self.manner.acks_every and self.messages % self.manner.acks_every == 0
        acked = [self.acknowledge(log, log.stored)] if is_due and is_more and log.stored is not None else []
        if self.manner.returns_credits or acked:
            self.grant(int(self.manner.returns_credits), acked)

    def _end_of_stream(self, frame: EndOfStream) -> None:
        log = self._open_log(frame, frame.stream_id)
        stream = self._streams[frame.stream_id]
        if self._session.state is not State.MIGRATING:
            log.check_end(self.last_sent(log))
        stream.end(Side.THEIRS)
        if self._session.state is State.MIGRATING:
            return  # the stream is released, and has not ended
        if stream.state is StreamState.INACTIVE:  # it never had a message: there is nothing to acknowledge
            log.is_done = True
        elif self.manner.acks_ends:
            self.grant(0, [self.acknowledge_end(log)])
