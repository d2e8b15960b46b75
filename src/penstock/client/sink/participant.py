"""What the author of a sink gives to the SDK: a participant in two-phase commit, or only a place for bytes."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

from penstock.client.source.message import Message


@dataclass(frozen=True, slots=True)
class Transaction:
    """One epoch's bytes of the output, from `start` up to and without `end`. Its id is opaque, and never used again.

    Offsets count the bytes of payloads since the output began: they are the ids of messages.
    """

    id: bytes
    start: int
    end: int


class Participant(Protocol):
    """Takes part in two-phase commit. The SDK calls one method at a time, and keeps the log of votes and decisions.

    For each transaction: `write` any number of times, `prepare`, then `commit` or `abort`. Between a yes and the
    decision there may lie a crash, a new process and any length of time. Whatever a method raises ends the sink: the
    worker is told, the transaction is aborted or stays in doubt, and the next run recovers.
    """

    def write(self, messages: Sequence[Message]) -> None:
        """Messages in order, as they arrive: none twice, none left out. Nothing of them may be visible yet. A message's
        id is its offset.
        """

    def prepare(self, transaction: Transaction) -> bool:
        """All messages of the transaction were written. True: they are durable, and `commit` will succeed, even after a
        crash. False: the transaction shall be tried again later; `abort` follows at once.
        """

    def commit(self, transaction: Transaction) -> None:
        """Make it visible, durably. It is called again, with the last transaction that was committed, when a crash came
        before the SDK had noted that it was done; that may even be when messages after it were written. So compare
        the id with one that is stored in the same step as the messages, or do what can be done twice.
        """

    def abort(self, transaction: Transaction) -> None:
        """Discard everything at and after `transaction.start`. It may be called again, and for nothing at all. The id
        is empty where there was no vote: what is left of a lost connection, or of the last run.
        """


class AsyncParticipant(Protocol):
    """A Participant for `AsyncSink`. Each method is a coroutine function, or a plain one that is called in a thread."""

    def write(self, messages: Sequence[Message]) -> Awaitable[None] | None:
        """As `Participant.write`."""

    def prepare(self, transaction: Transaction) -> Awaitable[bool] | bool:
        """As `Participant.prepare`."""

    def commit(self, transaction: Transaction) -> Awaitable[None] | None:
        """As `Participant.commit`."""

    def abort(self, transaction: Transaction) -> Awaitable[None] | None:
        """As `Participant.abort`."""


@runtime_checkable
class Data(Protocol):
    """A place for bytes, where the SDK does the rest. What lies behind the committed size is not committed (yet)."""

    def write_at(self, offset: int, data: bytes) -> None:
        """Put all of these bytes there, right behind those that were written before."""

    def sync(self) -> None:
        """Make everything that was written durable. An OSError that says "no room" is a vote of no; any other error,
        here as in the other methods, ends the sink.
        """

    def truncate(self, offset: int) -> None:
        """Remove everything from this offset on; there may be nothing."""

    def size(self) -> int:
        """How many bytes there are."""


Encode: TypeAlias = Callable[[Sequence[Message]], bytes]
"""What is written of messages. The bytes of one message must not depend on its neighbours."""


def payloads(messages: Sequence[Message]) -> bytes:
    """The payloads, one right behind the other."""
    return b"".join([message.payload for message in messages])


def lines(messages: Sequence[Message]) -> bytes:
    """Each payload, and the end of a line."""
    return b"".join([part for message in messages for part in (message.payload, b"\n")])
