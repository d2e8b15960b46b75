"""Participants and storage for bytes, behind the one interface that `transactions` uses."""

import errno
import logging
from collections.abc import Callable, Sequence
from inspect import iscoroutinefunction
from typing import Any, Protocol

from penstock.client.sink.participant import AsyncParticipant, Data, Encode, Participant, Transaction
from penstock.client.source.message import Message
from penstock.core.errors import Damaged, RequestError

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
