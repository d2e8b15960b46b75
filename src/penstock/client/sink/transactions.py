"""What a sink has received and voted, and what the worker decided, over all sessions: which frames cause which
calls.
"""

import errno
import logging
from collections.abc import Callable
from functools import partial
from operator import add

from penstock.client.sink.log import (
    TXN_ID_BYTES_MAX,
    Aborted,
    Applied,
    Bound,
    Committed,
    Refused,
    TransactionLog,
    Voted,
)
from penstock.client.sink.participant import NO_ROOM, Effect, Steps, Target, Transaction
from penstock.client.source.message import Message
from penstock.core.errors import ProtocolError, RequestError
from penstock.protocol.connector import OUTPUT_STREAM, Phase1, Phase2
from penstock.protocol.connector.codec import MESSAGE_HEAD, Received

logger = logging.getLogger("penstock.sink")

_message: Callable[[Received], Message] = partial(tuple.__new__, Message)
"""As `Message._make`, without a call of Python code for each message."""

OnCommit = Callable[[Transaction], object]


class Transactions:
    """Guarantees: a vote is durable before it is sent, and data before the vote; a decision is durable before it is
    applied; data that was not voted on is discarded with its session. So the committed prefix is always whole
    transactions, in order.

    A ProtocolError changes nothing: it is the worker's fault, and its session ends.
    """

    def __init__(
        self, log: TransactionLog, target: Target, uncommitted_bytes_max: int, on_commit: OnCommit | None = None
    ) -> None:
        self._log = log
        self._target = target
        self._uncommitted_bytes_max = uncommitted_bytes_max
        self._on_commit = on_commit
        self._uncommitted_bytes = 0
        self.received = 0
        """The next offset: everything before it was received, committed or not."""

    @property
    def uncommitted(self) -> tuple[bytes, ...]:
        """The transactions in doubt."""
        in_doubt = self._log.state.in_doubt
        return () if in_doubt is None else (in_doubt.txn_id,)

    @property
    def is_settled(self) -> bool:
        """Whether everything received is committed."""
        return not self._uncommitted_bytes and not self.uncommitted

    def recover(self) -> Steps[None]:
        """To be called first: finish what the last run left unfinished."""
        state = self._log.state
        if state.last is not None and not state.is_applied:
            yield from self._apply(state.last)
        yield from self._rewind()

    def bind(self, instance: str) -> Steps[None]:
        """Accept this instance's output, and from now on no other's."""
        bound = self._log.state.instance
        if bound is None:
            if len(instance.encode()) > TXN_ID_BYTES_MAX:
                raise ProtocolError(f"HELLO: the instance's name is longer than {TXN_ID_BYTES_MAX} bytes")
            yield Effect(self._log.append, (Bound(instance),))
        elif bound != instance:
            raise ProtocolError(f"HELLO: this sink is bound to {bound!r}, and refuses {instance!r}")

    def write(self, given: list[Received]) -> Steps[None]:
        """Write messages of the output. Skips those already received; raises ProtocolError for a gap."""
        if self.uncommitted:
            raise ProtocolError(f"MESSAGE: transaction {self.uncommitted[0]!r} is in doubt: expected its PHASE2")
        messages, received, size = self._sort_out(given)
        if size > self._uncommitted_bytes_max:
            raise ProtocolError(
                f"MESSAGE: {size} uncommitted bytes exceed this sink's limit of "
                f"{self._uncommitted_bytes_max} (uncommitted_bytes_max): the epochs are too large for it"
            )
        if messages:
            # Before the call: if it fails half-way, the next `discard` still knows that there is something to discard.
            self.received, self._uncommitted_bytes = received, size
            yield Effect(self._target.write, (messages,))

    def vote(self, frame: Phase1) -> Steps[bool]:
        """The answer to PHASE1, durable."""
        transaction = self._transaction(frame)
        if (yield from self._can_commit(transaction)):
            voted = Voted(transaction.id, transaction.start, transaction.end, self._target.mark)
            yield Effect(self._log.append, (voted,))
            return True
        logger.warning("transaction %r: the vote is no", transaction.id)
        if (yield from self._has_room()):
            yield Effect(self._log.append, (Refused(transaction.id),))
        yield from self._abort(transaction)
        return False

    def decide(self, frame: Phase2) -> Steps[None]:
        """Apply PHASE2. Does nothing if it is already applied, or if it aborts a transaction unknown here."""
        in_doubt = self._log.state.in_doubt
        if in_doubt is None or in_doubt.txn_id != frame.txn_id:
            self._check_repeated(frame)
        elif frame.commit:
            yield Effect(self._log.append, (Committed(frame.txn_id),))
            yield from self._apply(in_doubt)
            self._uncommitted_bytes = 0
        else:
            yield Effect(self._log.append, (Aborted(frame.txn_id),))
            yield from self._abort(_transaction_of(in_doubt))

    def discard(self) -> Steps[None]:
        """A session has ended: what it sent and was not voted on is void."""
        if self._uncommitted_bytes and not self.uncommitted:
            yield from self._rewind()

    def _sort_out(self, given: list[Received]) -> tuple[list[Message], int, int]:
        """The new messages, and what `received` and the uncommitted size would be after them."""
        ids, sizes = [one[0] for one in given], [len(one[1]) for one in given]
        ends = [*map(add, ids, sizes)]
        if ids != [self.received, *ends[:-1]]:  # some are not new, as after a lost connection
            return self._sort_out_each(given)
        size = MESSAGE_HEAD.size * len(given) + sum(sizes) + sum([len(one[3]) for one in given])
        return [*map(_message, given)], ends[-1], self._uncommitted_bytes + size

    def _sort_out_each(self, given: list[Received]) -> tuple[list[Message], int, int]:
        messages: list[Message] = []
        received, size = self.received, self._uncommitted_bytes
        for one in given:
            message_id, payload, _, key = one
            end = message_id + len(payload)
            if message_id == received:
                messages.append(_message(one))
                received = end
                size += MESSAGE_HEAD.size + len(key) + len(payload)
            elif end > received:
                raise ProtocolError(_misplaced(message_id, end, received))
        return messages, received, size

    def _transaction(self, frame: Phase1) -> Transaction:
        """The transaction to vote on. Raises ProtocolError unless it ends where the data ends and omits none of it."""
        if not 0 < len(frame.txn_id) <= TXN_ID_BYTES_MAX:
            raise ProtocolError(
                f"PHASE1: transaction id has {len(frame.txn_id)} bytes, expected 1 to {TXN_ID_BYTES_MAX}"
            )
        if self.uncommitted:
            raise ProtocolError(f"PHASE1: transaction {self.uncommitted[0]!r} is in doubt: expected its PHASE2")
        if self._log.state.end_of(frame.txn_id) is not None:
            raise ProtocolError(f"PHASE1: the transaction id {frame.txn_id!r} was already used")
        start, end = _whole(frame) if frame.ranges else (self.received, self.received)
        committed = self._log.state.offset
        if start > committed or end < self.received:
            raise ProtocolError(
                f"PHASE1: its bytes are {start} to {end}, but bytes up to {committed} are committed and "
                f"up to {self.received} received"
            )
        return Transaction(frame.txn_id, committed, end)

    def _can_commit(self, transaction: Transaction) -> Steps[bool]:
        if transaction.end != self.received:
            logger.warning(
                "transaction %r: %d bytes of it are missing", transaction.id, transaction.end - self.received
            )
            return False
        if not (yield from self._has_room()):
            return False
        answer: object = yield Effect(self._target.prepare, (transaction,))
        if not isinstance(answer, bool):
            raise RequestError(f"prepare returned {answer!r:.100}", "Return True or False: the vote.")
        return answer

    def _has_room(self) -> Steps[bool]:
        """Whether the log has room for this round to its end."""
        if not self._log.has_room:
            try:
                yield Effect(self._log.make_room)
            except OSError as error:
                if error.errno not in NO_ROOM:
                    raise
                logger.warning("no room for the log: %s", error.strerror or errno.errorcode[error.errno])
                return False
        return True

    def _check_repeated(self, frame: Phase2) -> None:
        ended = self._log.state.end_of(frame.txn_id)
        if ended is None and frame.commit:
            raise ProtocolError(f"PHASE2: commits {frame.txn_id!r}, on which there was no vote")
        if ended is not None and ended.was_committed != frame.commit:
            was = "committed" if ended.was_committed else "aborted"
            raise ProtocolError(f"PHASE2: transaction {frame.txn_id!r} was already {was}")

    def _apply(self, committed: Voted) -> Steps[None]:
        transaction = _transaction_of(committed)
        yield Effect(self._target.commit, (transaction,))
        yield Effect(self._log.append_lazily, (Applied(committed.txn_id),))
        if self._on_commit is not None:
            self._on_commit(transaction)

    def _rewind(self) -> Steps[None]:
        """Return to the last vote: what arrived after it is void."""
        if not self.uncommitted:
            committed = self._log.state.offset
            yield from self._abort(Transaction(b"", committed, max(self.received, committed)))
        else:
            yield from self._resume()

    def _abort(self, transaction: Transaction) -> Steps[None]:
        yield Effect(self._target.abort, (transaction,))
        yield from self._resume()

    def _resume(self) -> Steps[None]:
        state = self._log.state
        latest = state.latest
        yield Effect(self._target.resume, (0 if latest is None else latest.mark, state.instance is None))
        self.received = 0 if latest is None else latest.end
        self._uncommitted_bytes = 0


def _transaction_of(voted: Voted) -> Transaction:
    return Transaction(voted.txn_id, voted.start, voted.end)


def _whole(frame: Phase1) -> tuple[int, int]:
    """The ranges merged into one."""
    start = end = frame.ranges[0].start
    for part in frame.ranges:
        if part.stream_id != OUTPUT_STREAM or part.start != end or part.end < end:
            raise ProtocolError(f"PHASE1: {part} does not follow {end} of stream {OUTPUT_STREAM}")
        end = part.end
    return start, end


def _misplaced(start: int, end: int, received: int) -> str:
    if start > received:
        return f"MESSAGE: id {start} leaves a gap of {start - received} bytes after {received}"
    return f"MESSAGE: bytes {start} to {end} overlap the {received} already received"
