"""The durable transaction log of a sink: votes, decisions, and the worker instance they belong to.

One small file that is rewritten when it is full, and at every start: the state as its first record, then a record
per event. Its space is allocated in advance, so that a decision can be written on a full disk.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import Any, NamedTuple, TypeAlias

import msgpack
from crc32c import crc32c

from penstock.client.sink.participant import Transaction
from penstock.core.errors import Damaged, RequestError, StoreInUse, UnreadableFormat
from penstock.store.files import File, Files, RealFiles

# The state of the transaction log, as a fold over its records. No I/O.

ENDED_MAX = 64
"""Transactions whose end is remembered. A worker repeats a decision only until a list without the transaction, or a
later vote, proves that it arrived: one would be enough."""


class Bound(NamedTuple):
    """The log belongs to this instance of a worker from now on: offsets of another one mean other bytes."""

    instance: str


class Voted(NamedTuple):
    """A yes vote: the transaction is in doubt. `mark` is where the target's bytes end, including it."""

    txn_id: bytes
    start: int
    end: int
    mark: int


class Refused(NamedTuple):
    """A no vote: the transaction is aborted."""

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
    """The effect of all earlier records; as a record, the first one of every file."""

    instance: str | None = None
    last: Voted | None = None
    """The last transaction that was committed."""
    is_applied: bool = True
    """Whether the participant's `commit` of it has returned."""
    in_doubt: Voted | None = None
    """Voted yes, and not decided yet. There is never more than one: no round starts before the last one has ended."""
    ended: tuple[Ended, ...] = ()
    """The latest ended transactions, oldest first."""

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
        """The last transaction whose bytes count; everything after it is void."""
        return self.in_doubt or self.last

    def end_of(self, txn_id: bytes) -> Ended | None:
        """How this transaction ended, if it is remembered."""
        return next((ended for ended in reversed(self.ended) if ended.txn_id == txn_id), None)

    def after(self, record: "Record") -> "LogState":
        """Raises ValueError for a record that is not valid in this state."""
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
        raise ValueError(f"{record} cannot follow: in doubt: {self.in_doubt}, last committed: {self.last}")

    def _is_in_doubt(self, txn_id: bytes) -> bool:
        return self.in_doubt is not None and self.in_doubt.txn_id == txn_id

    def _ended(self, txn_id: bytes, was_committed: bool) -> "LogState":
        return self._replace(ended=(*self.ended, Ended(txn_id, was_committed))[-ENDED_MAX:])


Record: TypeAlias = LogState | Bound | Voted | Refused | Committed | Aborted | Applied


# The bytes of the transaction log (docs/sinks.md).
#
# A record is `4s "PSNK" · u32 length of the body · u64 number · u64 durable · u32 crc32c · body`, big-endian; the
# checksum covers length, number, durable and body. The body is a msgpack array: a number for the kind, then its fields
# in the order of the class. Numbers increase by one, over all files of a log; all records below *durable* were synced
# when this one was written. The first record of a file is the state. Zeros follow the last one.

FORMAT = 2
"""Format 1 was written before 0.1; epochs in its transaction ids are not numbered like Spark's batches."""

MAGIC = b"PSNK"
HEADER = Struct(">4sIQQI")
_CHECKED = Struct(">IQQ")

KINDS: dict[int, type[Bound | Voted | Refused | Committed | Aborted | Applied]] = {
    1: Bound,
    2: Voted,
    3: Refused,
    4: Committed,
    5: Aborted,
    6: Applied,
}
"""Kind 0 is the state, after the number of the format."""

_KIND_OF = {record: kind for kind, record in KINDS.items()}


_START_OVER = "Start with a new state directory, and with no data of the old one."


class BadLog(ValueError):
    """What is wrong, and where."""

    def __init__(self, offset: int, problem: str) -> None:
        super().__init__(f"offset {offset}: {problem}")


class _Sealed(NamedTuple):
    number: int
    durable: int
    body: bytes


def encode_record(number: int, durable: int, record: Record) -> bytes:
    fields = (0, FORMAT, *record) if isinstance(record, LogState) else (_KIND_OF[type(record)], *record)
    body: bytes = msgpack.packb(fields)
    checksum = crc32c(body, crc32c(_CHECKED.pack(len(body), number, durable)))
    return HEADER.pack(MAGIC, len(body), number, durable, checksum) + body


def decode_records(data: bytes) -> Iterator[tuple[int, Record]]:
    """Numbers and records. What follows the first bad record is a torn tail, which nothing relied on; it is left out.
    Raises BadLog if a good record after it proves that it was durable, and for a file whose first record is bad;
    UnreadableFormat for a log that another version wrote.
    """
    at = 0
    number: int | None = None
    while (found := _record_at(data, at)) is not None and number in (None, found.number):
        yield found.number, _decode_body(at, found.body)
        at += HEADER.size + len(found.body)
        number = found.number + 1
    if number is None:
        raise BadLog(0, "this is not the beginning of a sink's transaction log")
    _check_tail(data, at, number)


def _record_at(data: bytes, at: int) -> _Sealed | None:
    """The record at this position, if it is valid."""
    if at + HEADER.size > len(data):
        return None
    magic, length, number, durable, checksum = HEADER.unpack_from(data, at)
    body = data[at + HEADER.size : at + HEADER.size + length]
    if magic != MAGIC or len(body) != length:
        return None
    is_sound = crc32c(body, crc32c(_CHECKED.pack(length, number, durable))) == checksum
    return _Sealed(number, durable, body) if is_sound else None


def _check_tail(data: bytes, end: int, number: int) -> None:
    at = end
    while (at := data.find(MAGIC, at)) >= 0:
        later = _record_at(data, at)
        if later is not None and later.durable > number:
            raise BadLog(end, f"record {number} is damaged, and was durable when record {later.number} was written")
        at += 1


def _decode_body(at: int, body: bytes) -> Record:
    kind: Any = None
    try:
        kind, *fields = msgpack.unpackb(body, use_list=False)
        return _state(*fields) if kind == 0 else KINDS[kind](*fields)
    except (KeyError, TypeError, ValueError) as error:
        raise BadLog(at, f"a record of kind {kind} that this version does not read: {error}") from None


def _state(form: int, *fields: Any) -> LogState:
    if form != FORMAT:
        raise UnreadableFormat("the transaction log of the sink", form, FORMAT, _START_OVER)
    instance, last, is_applied, in_doubt, ended = fields
    return LogState(
        instance,
        None if last is None else Voted(*last),
        is_applied,
        None if in_doubt is None else Voted(*in_doubt),
        tuple(Ended(*one) for one in ended),
    )


LOG = "log"
NEW_LOG = "log.new"

LOG_BYTES = 2**18
"""The size of the file: enough for thousands of transactions between rewrites."""

TXN_ID_BYTES_MAX = 1024
"""Of a transaction's id, and of an instance's name. The wire allows 65,535 bytes; the log has no room for 64 of
those.
"""

ROUND_BYTES_MAX = 8 * 1024
"""Room for all the records of one round, and more."""


class TransactionLog:
    """Open, and locked against other processes. An error while writing is final: open the log again."""

    def __init__(self, files: Files, size: int = LOG_BYTES) -> None:
        """Raises Damaged for a log that cannot be trusted, StoreInUse for one that is already open."""
        self._files = files
        self._size = size
        self._file: File | None = None
        self._has_durable_name = False
        files.lock()
        try:
            self.state, self._number = _load(files)
            self._durable = self._number
            self.make_room()
        except BaseException:
            files.close()
            raise

    @property
    def has_room(self) -> bool:
        """Whether there is room for another round. If not, call `make_room` first."""
        return self._has_durable_name and self._end + ROUND_BYTES_MAX <= self._size

    def append(self, record: Record) -> None:
        """Durable when this returns."""
        self._write(record).sync()
        self._durable = self._number

    def append_lazily(self, record: Record) -> None:
        """Durable with the next `append`; survives the end of the process at once."""
        self._write(record)

    def make_room(self) -> None:
        """Rewrite the file. Raises OSError if the disk has no room for that; this may be called again.

        The new file is the log from the rename on: the old one has no name any more, and a vote in it would be lost.
        Until the directory is synced a power cut may bring the old one back, so nothing is appended before that.
        """
        data = encode_record(self._number, self._number, self.state)
        file = self._create()
        file.allocate(self._size)
        file.write(0, (data,))
        file.sync()
        self._files.rename(NEW_LOG, LOG)
        self._close_file()
        self._file, self._end = file, len(data)
        self._number += 1
        self._durable = self._number
        self._has_durable_name = False
        self._files.sync()
        self._has_durable_name = True

    def close(self) -> None:
        self._close_file()
        self._files.close()

    def _write(self, record: Record) -> File:
        assert self._file is not None, "the log is closed"
        if not self._has_durable_name:
            self.make_room()
        following = self.state.after(record)
        data = encode_record(self._number, self._durable, record)
        self._file.write(self._end, (data,))
        self._end += len(data)
        self._number += 1
        self.state = following
        return self._file

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _create(self) -> File:
        if NEW_LOG in self._files.list():
            self._files.remove(NEW_LOG)
        return self._files.create(NEW_LOG)


@dataclass(frozen=True, slots=True)
class CommittedPrefix:
    """The committed part of a sink's output: always whole transactions, from the start."""

    offset: int
    """In bytes of payloads."""
    size: int
    """In bytes of the data, if the sink writes to a `Data`."""
    transaction: Transaction | None
    """The last committed transaction."""


def open_log(directory: str | os.PathLike[str]) -> TransactionLog:
    """The log of this state directory, which is created if missing. Raises StoreInUse if another sink runs on it."""
    try:
        return TransactionLog(RealFiles(Path(directory)))
    except StoreInUse as error:
        hint = "Stop the other sink, or use a separate state directory for each."
        raise StoreInUse(str(error), hint) from None


def read_committed(directory: str | os.PathLike[str]) -> CommittedPrefix:
    """What a sink with this state directory has committed, even while it runs. Raises RequestError if there is none."""
    try:
        files = RealFiles(Path(directory), create=False)
    except FileNotFoundError:
        raise RequestError(f"state directory {directory} not found", "Start the sink once.") from None
    try:
        return committed_prefix(_load(files)[0])
    finally:
        files.close()


def committed_prefix(state: LogState) -> CommittedPrefix:
    last = state.last
    transaction = None if last is None else Transaction(last.txn_id, last.start, last.end)
    return CommittedPrefix(state.offset, state.mark, transaction)


def _load(files: Files) -> tuple[LogState, int]:
    """The state, and the number of the next record."""
    if LOG not in files.list():
        return LogState(), 0
    file = files.open(LOG)
    try:
        data = file.read(0, file.size())
    finally:
        file.close()
    state, number = LogState(), 0
    try:
        for number, record in decode_records(data):  # noqa: B007 (the last one counts)
            state = state.after(record)
    except BadLog as error:
        raise Damaged(f"the sink's transaction log: {error}", _DAMAGED) from None
    except ValueError as error:
        raise Damaged(f"the sink's transaction log: record {number}: {error}", _DAMAGED) from None
    return state, number + 1


_DAMAGED = "Restore the state directory together with the data, or remove both and deliver to the sink from scratch."
