"""What the author of a sink gives to the SDK: a participant in two-phase commit, or only a place for bytes."""

import os
from collections.abc import Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar, runtime_checkable

from penstock.client.source.message import Message
from penstock.core.types import Buffer
from penstock.store.files import RealFile


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
    worker receives the error, the transaction is aborted or stays in doubt, and the next run recovers.
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


# What the middle of a sink wants done, for the shells to do: calls that write, wait and sync.
#
# The middle is written as generators: each yields an Effect, is sent what the call returned, or is thrown what it
# raised. So one and the same code decides for the blocking sink and for the asyncio one, and nothing in it waits.

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Effect:
    """A call of the author's code, or of the transaction log."""

    call: Callable[..., Any]
    args: tuple[Any, ...] = ()


Steps: TypeAlias = Generator[Effect, Any, T]


def perform(steps: Steps[T]) -> T:
    """Do all of it here and now. What is not an Exception, Ctrl-C for one, ends it in the middle."""
    try:
        effect = next(steps)
        while True:
            try:
                result = effect.call(*effect.args)
            except Exception as error:
                effect = steps.throw(error)
            else:
                effect = steps.send(result)
    except StopIteration as end:
        value: T = end.value
        return value


# A plain file as the place for a sink's bytes.


class DataFile:
    """A file that is made where there is none. `sync` is an fsync; who may read a new one is the umask's affair.

    What it holds behind the committed size is not committed: see `read_committed`.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._file = RealFile(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode=0o666))
        _sync_directory(self.path.absolute().parent)

    def write_at(self, offset: int, data: Buffer) -> None:
        self._file.write(offset, (data,))

    def sync(self) -> None:
        self._file.sync()

    def truncate(self, offset: int) -> None:
        self._file.truncate(offset)

    def size(self) -> int:
        return self._file.size()

    def close(self) -> None:
        self._file.close()


def _sync_directory(directory: Path) -> None:
    """So that the name of a new file survives, as its bytes do."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
