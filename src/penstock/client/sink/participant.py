"""What the author of a sink provides: a participant in two-phase commit, or only storage for bytes."""

import errno
import logging
import os
from collections.abc import Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar, runtime_checkable

from penstock.client.source.message import Message
from penstock.client.steps import run_steps
from penstock.core.durable_files import sync_directory
from penstock.core.errors import Damaged, RequestError
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
# The core is written as generators, see `penstock.client.steps`.

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Effect:
    """A call of the author's code, or of the transaction log."""

    call: Callable[..., Any]
    args: tuple[Any, ...] = ()


Steps: TypeAlias = Generator[Effect, Any, T]


def perform(steps: Steps[T]) -> T:
    """Perform all steps here and now."""
    return run_steps(steps, lambda effect: effect.call(*effect.args))


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


# Participants and storage for bytes, behind the one interface that `transactions` uses.

logger = logging.getLogger("penstock.sink")

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
"""Temporary, unlike other disk failures: the vote is no, and the transaction is retried later."""

METHODS = ("write", "prepare", "commit", "abort")


class Target(Protocol):
    """The four methods are called as documented in `Participant`; in an asyncio sink each may be a coroutine
    function.
    """

    mark: int
    """Where the target's own bytes end now. It is stored with every vote."""

    def write(self, messages: Sequence[Message], /) -> Any: ...

    def prepare(self, transaction: Transaction, /) -> Any: ...

    def commit(self, transaction: Transaction, /) -> Any: ...

    def abort(self, transaction: Transaction, /) -> Any: ...

    def resume(self, mark: int, is_new: bool) -> None:
        """Continue at this mark: everything after it is void. `is_new`: there was never a session."""


class ParticipantTarget:
    """The author's own class, which manages its own bytes."""

    mark = 0

    def __init__(self, participant: Participant | AsyncParticipant) -> None:
        self.write: Callable[[Sequence[Message]], Any] = participant.write
        self.prepare: Callable[[Transaction], Any] = participant.prepare
        self.commit: Callable[[Transaction], Any] = participant.commit
        self.abort: Callable[[Transaction], Any] = participant.abort

    def resume(self, mark: int, is_new: bool) -> None:
        """Nothing to do: the participant knows its own position."""


class DataTarget:
    """Storage for bytes. They are written to their final place, and committed by the log alone, which records how many
    count.

    If the storage is full, the vote is no: the bytes are removed again, and there may be room later.
    """

    def __init__(self, data: Data, encode: Encode) -> None:
        self._data = data
        self._encode = encode
        self._is_full = False
        self.mark = 0

    def write(self, messages: Sequence[Message]) -> None:
        if self._is_full:
            return
        encoded = self._encode(messages)
        try:
            self._data.write_at(self.mark, encoded)
        except OSError as error:
            self._note_full(error)
        self.mark += len(encoded)

    def prepare(self, transaction: Transaction) -> bool:  # noqa: ARG002 (it is whatever was written)
        try:
            if not self._is_full:
                self._data.sync()
        except OSError as error:
            self._note_full(error)
        return not self._is_full

    def commit(self, transaction: Transaction) -> None:
        """Nothing to do: the log has recorded it."""

    def abort(self, transaction: Transaction) -> None:
        """`resume` follows, with the mark."""

    def resume(self, mark: int, is_new: bool) -> None:
        size = self._data.size()
        if is_new and size:
            raise RequestError(
                f"the data has {size} bytes, but the state directory records none",
                "Restore the state directory, or move the data away to start from scratch.",
            )
        if size < mark:
            raise Damaged(
                f"the data has {size} bytes, but the state directory records {mark}",
                "Restore the data; or remove both and let the worker send its output again.",
            )
        self._data.truncate(mark)
        self.mark = mark
        self._is_full = False

    def _note_full(self, error: OSError) -> None:
        if error.errno not in NO_ROOM:
            raise error
        logger.warning("no room for the transaction: %s", error)
        self._is_full = True


def target_of(given: Participant | AsyncParticipant | Data, encode: Encode, *, can_await: bool) -> Target:
    """Raises RequestError for anything else, or for asynchronous methods in a blocking sink."""
    if isinstance(given, Data):
        return DataTarget(given, encode)
    methods = [getattr(given, name, None) for name in METHODS]
    if not all(map(callable, methods)):
        raise RequestError(
            f"{type(given).__name__} implements neither the participant methods nor those of a data file",
            f"It needs the methods {', '.join(METHODS)}; or write_at, sync, truncate, size.",
        )
    if not can_await and any(map(iscoroutinefunction, methods)):
        raise RequestError(f"{type(given).__name__} has asynchronous methods", "Use AsyncSink.")
    return ParticipantTarget(given)
