"""What the transaction log says, as a fold over its records. No I/O."""

from typing import NamedTuple, TypeAlias

ENDED_MAX = 64
"""Transactions whose end is remembered. A worker repeats a decision only until a list without the transaction, or a
later vote, proves that it arrived: one would do."""


class Bound(NamedTuple):
    """The log belongs to this instance of a worker from now on: offsets of another one mean other bytes."""

    instance: str


class Voted(NamedTuple):
    """A vote of yes: the transaction is in doubt. `mark` is where the target's bytes end with it."""

    txn_id: bytes
    start: int
    end: int
    mark: int


class Refused(NamedTuple):
    """A vote of no: the transaction is aborted."""

    txn_id: bytes


class Committed(NamedTuple):
    """The worker's decision on the one in doubt."""

    txn_id: bytes


class Aborted(NamedTuple):
    """The worker's decision on the one in doubt."""

    txn_id: bytes


class Applied(NamedTuple):
    """The participant's `commit` of this transaction has returned."""

    txn_id: bytes


class Ended(NamedTuple):
    txn_id: bytes
    was_committed: bool


class LogState(NamedTuple):
    """All that counts of what came before; as a record, the first one of every file."""

    instance: str | None = None
    last: Voted | None = None
    """The last transaction that was committed."""
    is_applied: bool = True
    """Whether the participant's `commit` of it has returned."""
    in_doubt: Voted | None = None
    """Voted yes, and not decided yet. There is never more than one: no round begins before the last one has ended."""
    ended: tuple[Ended, ...] = ()
    """The latest ones, oldest first."""

    @property
    def offset(self) -> int:
        """The bytes of the output that are committed."""
        return 0 if self.last is None else self.last.end

    @property
    def mark(self) -> int:
        """The bytes of the target that are committed."""
        return 0 if self.last is None else self.last.mark

    @property
    def latest(self) -> Voted | None:
        """Behind it nothing counts."""
        return self.in_doubt or self.last

    def end_of(self, txn_id: bytes) -> Ended | None:
        """How this transaction ended, if it is remembered."""
        return next((ended for ended in reversed(self.ended) if ended.txn_id == txn_id), None)

    def after(self, record: "Record") -> "LogState":
        """ValueError for a record that cannot come now."""
        match record:
            case LogState():
                return record
            case Bound(instance=instance):
                return self._replace(instance=instance)
            case Voted() if self.in_doubt is None:
                return self._replace(in_doubt=record)
            case Refused() if self.in_doubt is None:
                return self._ended(record.txn_id, False)
            case Committed() if self._is_in_doubt(record.txn_id):
                return self._ended(record.txn_id, True)._replace(last=self.in_doubt, is_applied=False, in_doubt=None)
            case Aborted() if self._is_in_doubt(record.txn_id):
                return self._ended(record.txn_id, False)._replace(in_doubt=None)
            case Applied() if self.last is not None and self.last.txn_id == record.txn_id:
                return self._replace(is_applied=True)
        raise ValueError(f"{record} cannot follow: in doubt is {self.in_doubt}, committed last was {self.last}")

    def _is_in_doubt(self, txn_id: bytes) -> bool:
        return self.in_doubt is not None and self.in_doubt.txn_id == txn_id

    def _ended(self, txn_id: bytes, was_committed: bool) -> "LogState":
        return self._replace(ended=(*self.ended, Ended(txn_id, was_committed))[-ENDED_MAX:])


Record: TypeAlias = LogState | Bound | Voted | Refused | Committed | Aborted | Applied
