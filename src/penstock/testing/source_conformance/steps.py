"""The steps of a scenario: what a worker does in a connection, and what it then waits for."""

from dataclasses import dataclass, replace
from typing import ClassVar

from penstock.protocol.connector import Ack, Acked, Error, Restart, encode
from penstock.testing.source_conformance.connection import Connection, Step
from penstock.testing.source_conformance.rules import Rule, Violation
from penstock.testing.source_conformance.streams import StreamLog

QUIET_SECONDS = 0.3
"""How long the worker checks that nothing comes that must not. A late violation goes unnoticed, but no client is blamed
for being slow.
"""


def _needs(connection: Connection, what: str) -> None:
    """Raises Violation if the program under test can no longer send enough messages for this step."""
    if connection.has_ended_all:
        raise Violation(f"the program's streams are too short: they ended before {what}")


@dataclass(frozen=True, slots=True)
class AwaitHello(Step):
    awaits: ClassVar[str] = "HELLO"
    rule: ClassVar[Rule] = Rule.HELLO

    def is_done(self, connection: Connection) -> bool:
        return connection.hello is not None


@dataclass(frozen=True, slots=True)
class Greet(AwaitHello):
    """HELLO is answered with OK."""

    def is_done(self, connection: Connection) -> bool:
        if connection.hello is None:
            return False
        connection.greet()
        return True


@dataclass(frozen=True, slots=True)
class Refuse(Step):
    """ERROR, and no other frame."""

    awaits: ClassVar[str] = "the end of the connection after ERROR"
    rule: ClassVar[Rule] = Rule.ERROR
    text: str

    def begin(self, connection: Connection) -> None:
        connection.send(Error(self.text))

    def is_done(self, connection: Connection) -> bool:
        return connection.is_closed


@dataclass(frozen=True, slots=True)
class AwaitNotify(Step):
    awaits: ClassVar[str] = "NOTIFY"
    rule: ClassVar[Rule] = Rule.NOTIFIES

    def is_done(self, connection: Connection) -> bool:
        return bool(connection.asked)


@dataclass(frozen=True, slots=True)
class Answer(Step):
    """Answer the NOTIFYs that were left without an answer."""

    rule: ClassVar[Rule] = Rule.NOTIFIES

    def begin(self, connection: Connection) -> None:
        connection.manner = replace(connection.manner, answers=True)
        for log in connection.asked:
            connection.accept(log)


@dataclass(frozen=True, slots=True)
class AwaitStreams(Step):
    """Wait until every stream that the client ever had is open."""

    awaits: ClassVar[str] = "NOTIFY of every stream"
    rule: ClassVar[Rule] = Rule.RECONNECTS

    def is_done(self, connection: Connection) -> bool:
        return connection.has_accepted_all


@dataclass(frozen=True, slots=True)
class AwaitRepeatedNotify(AwaitStreams):
    """The client asks for each stream again until it is accepted."""

    rule: ClassVar[Rule] = Rule.ASKS_AGAIN


@dataclass(frozen=True, slots=True)
class Take(Step):
    """Wait for so many messages on this connection."""

    awaits: ClassVar[str] = "messages"
    rule: ClassVar[Rule] = Rule.USES_CREDITS
    messages: int

    def is_done(self, connection: Connection) -> bool:
        if connection.messages >= self.messages:
            return True
        _needs(connection, f"{self.messages} messages had come in one connection")
        return False


@dataclass(frozen=True, slots=True)
class RunDry(Step):
    """The client has used all its credits, and then sends nothing for a while."""

    awaits: ClassVar[str] = "messages, as many as there are credits for"
    rule: ClassVar[Rule] = Rule.USES_CREDITS

    def is_done(self, connection: Connection) -> bool:
        if connection.credits > 0:
            _needs(connection, "all credits were used")
            return False
        return connection.quiet_seconds >= QUIET_SECONDS


@dataclass(frozen=True, slots=True)
class Grant(Step):
    """The client may now send so many messages, even if its NOTIFYs have overdrawn its credits."""

    rule: ClassVar[Rule] = Rule.USES_CREDITS
    messages: int

    def begin(self, connection: Connection) -> None:
        connection.grant(self.messages + max(-connection.credits, 0))
        connection.begin_quiet()


@dataclass(frozen=True, slots=True)
class GrantEach(Grant):
    """Grant so many credits for each of its streams."""

    def begin(self, connection: Connection) -> None:
        connection.grant(self.messages * len(connection.logs) + max(-connection.credits, 0))


@dataclass(frozen=True, slots=True)
class Quiet(Step):
    """For a while, nothing may come."""

    rule: ClassVar[Rule] = Rule.WAITS_FOR_ACKS

    def begin(self, connection: Connection) -> None:
        connection.begin_quiet()

    def is_done(self, connection: Connection) -> bool:
        return connection.quiet_seconds >= QUIET_SECONDS


@dataclass(frozen=True, slots=True)
class AwaitEnds(Step):
    """The client has ended all its streams."""

    awaits: ClassVar[str] = "EOS_MESSAGE of every stream"
    rule: ClassVar[Rule] = Rule.ENDS

    def is_done(self, connection: Connection) -> bool:
        return connection.has_ended_all


@dataclass(frozen=True, slots=True)
class AwaitEndsWithoutCredit(AwaitEnds):
    rule: ClassVar[Rule] = Rule.END_WITHOUT_CREDIT


@dataclass(frozen=True, slots=True)
class AwaitMigrateEnds(AwaitEnds):
    rule: ClassVar[Rule] = Rule.MIGRATE_ENDS


@dataclass(frozen=True, slots=True)
class AckFirst(Step):
    """Only the first message of each stream that has ended is acknowledged."""

    rule: ClassVar[Rule] = Rule.WAITS_FOR_ACKS

    def begin(self, connection: Connection) -> None:
        connection.grant(0, [one for log in connection.ending if (one := self._first(connection, log))])

    def _first(self, connection: Connection, log: StreamLog) -> Acked | None:
        first = log.following(None)
        return None if first is None or log.count < 2 else connection.acknowledge(log, first)


@dataclass(frozen=True, slots=True)
class AckEnds(AckFirst):
    """The end of each stream is acknowledged."""

    def begin(self, connection: Connection) -> None:
        connection.grant(0, [connection.acknowledge_end(log) for log in connection.ending])


@dataclass(frozen=True, slots=True)
class AckStored(AckFirst):
    """Acknowledge what is stored, then send an empty ACK: no more will follow."""

    def begin(self, connection: Connection) -> None:
        acked = [
            connection.acknowledge(log, log.stored)
            for log in connection.ending
            if log.stored is not None and log.stored != log.acked
        ]
        if acked:
            connection.grant(0, acked)
        connection.grant(0)


@dataclass(frozen=True, slots=True)
class TakeAll(Step):
    """All streams to their ends."""

    awaits: ClassVar[str] = "the remaining messages, and the end of every stream"
    rule: ClassVar[Rule] = Rule.ENDS

    def is_done(self, connection: Connection) -> bool:
        return bool(connection.logs) and all(log.is_done for log in connection.logs)


@dataclass(frozen=True, slots=True)
class AwaitClose(Step):
    awaits: ClassVar[str] = "the end of the connection"
    rule: ClassVar[Rule] = Rule.RESTART

    def is_done(self, connection: Connection) -> bool:
        return connection.is_closed


@dataclass(frozen=True, slots=True)
class SendRestart(AwaitClose):
    """RESTART, with the address of a worker."""

    worker: int | None = None

    def begin(self, connection: Connection) -> None:
        connection.send(Restart("" if self.worker is None else str(connection.addresses[self.worker])))


@dataclass(frozen=True, slots=True)
class SendMigrate(Step):
    """MIGRATE to another worker."""

    rule: ClassVar[Rule] = Rule.MIGRATE_ENDS
    worker: int

    def begin(self, connection: Connection) -> None:
        connection.migrate(self.worker)


@dataclass(frozen=True, slots=True)
class AwaitMigrateAck(Step):
    awaits: ClassVar[str] = "MIGRATE_ACK"
    rule: ClassVar[Rule] = Rule.MIGRATE_ACK

    def is_done(self, connection: Connection) -> bool:
        return connection.has_migrated


@dataclass(frozen=True, slots=True)
class AwaitReturn(AwaitClose):
    """Nothing answers at the new address: the client gives it up, and this connection."""

    rule: ClassVar[Rule] = Rule.MIGRATE_FAILS


@dataclass(frozen=True, slots=True)
class Drop(Step):
    """The worker closes: with `reset`, like a machine that crashes; with `half`, in the middle of a frame."""

    rule: ClassVar[Rule] = Rule.RECONNECTS
    reset: bool = False
    half: bool = False

    def begin(self, connection: Connection) -> None:
        if self.half:
            frame = encode(Ack(1, (Acked(1, 1),)))
            connection.send_bytes(frame[: len(frame) // 2])
        connection.end(reset=self.reset)
