"""What the author of a sink provides: a participant in two-phase commit, or only storage for bytes."""

import os
from collections.abc import Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar, runtime_checkable

from penstock.client.source.message import Message
from penstock.core.durable_files import sync_directory
from penstock.core.types import Buffer
from penstock.store.files import RealFile


@dataclass(frozen=True, slots=True)
class Transaction:
    """One epoch's bytes of the output, from `start` up to but excluding `end`. Its id is opaque, and never reused.

    Offsets count the bytes of payloads since the start of the output: they are the ids of messages.
    """

    id: bytes
    start: int
    end: int


class Participant(Protocol):
    """Takes part in two-phase commit. The SDK calls one method at a time, and keeps the log of votes and decisions.

    For each transaction: `write` any number of times, `prepare`, then `commit` or `abort`. Between a yes and the
    decision there may be a crash, a new process and any length of time. An exception in any method ends the sink: the
    worker receives the error, the transaction is aborted or stays in doubt, and the next run recovers.
    """

    def write(self, messages: Sequence[Message]) -> None:
        """Messages in order, as they arrive: no duplicates, no gaps. They must not be visible yet. A message's id is
        its offset.
        """

    def prepare(self, transaction: Transaction) -> bool:
        """All messages of the transaction were written. True: they are durable, and `commit` will succeed, even after a
        crash. False: the transaction is to be retried later; `abort` follows at once.
        """

    def commit(self, transaction: Transaction) -> None:
        """Make it visible, durably. It is called again with the last committed transaction if a crash happened before
        the SDK had recorded its completion, possibly after later messages were written. So compare the id with one
        that is stored atomically with the messages, or make the operation idempotent.
        """

    def abort(self, transaction: Transaction) -> None:
        """Discard everything at and after `transaction.start`. It may be called again, or when there is nothing to
        discard. The id is empty if there was no vote: for data left by a lost connection, or by the last run.
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
    """Storage for bytes; the SDK does the rest. Bytes after the committed size are not committed (yet)."""

    def write_at(self, offset: int, data: bytes) -> None:
        """Write all of these bytes there, directly after those written before."""

    def sync(self) -> None:
        """Make everything that was written durable. An OSError for "no room" is a no vote; any other error, here as in
        the other methods, ends the sink.
        """

    def truncate(self, offset: int) -> None:
        """Remove everything from this offset on, if there is anything."""

    def size(self) -> int:
        """How many bytes there are."""


Encode: TypeAlias = Callable[[Sequence[Message]], bytes]
"""Encodes messages to the bytes that are written. The bytes of a message must not depend on its neighbours."""


def payloads(messages: Sequence[Message]) -> bytes:
    """The payloads, concatenated."""
    return b"".join([message.payload for message in messages])


def lines(messages: Sequence[Message]) -> bytes:
    """Each payload, followed by a newline."""
    return b"".join([part for message in messages for part in (message.payload, b"\n")])


# Effects: calls that write, wait and sync, which the core of a sink requests and the shells perform.
#
# The core is written as generators: each yields an Effect, and is sent what the call returned, or thrown what it
# raised. So the same code decides for the blocking sink and for the asyncio one, and nothing in it waits.

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Effect:
    """A call of the author's code, or of the transaction log."""

    call: Callable[..., Any]
    args: tuple[Any, ...] = ()


Steps: TypeAlias = Generator[Effect, Any, T]


def perform(steps: Steps[T]) -> T:
    """Perform all steps here and now. What is not an Exception, such as Ctrl-C, ends them in the middle."""
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


# A plain file as storage for a sink's bytes.


class DataFile:
    """A file, created if missing. `sync` is an fsync; the umask determines who may read a new file.

    Bytes after the committed size are not committed: see `read_committed`.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._file = RealFile(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode=0o666))
        sync_directory(self.path.absolute().parent)

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
