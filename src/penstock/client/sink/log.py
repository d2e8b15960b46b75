"""The durable transaction log of a sink: votes, decisions, and whose they are.

One small file that is written anew when it is full, and at every start: the state as its first record, then a record
for each thing that happens. Its space is set aside beforehand, so that a decision can be written on a full disk.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from penstock.client.sink.log_record import BadLog, decode_records, encode_record
from penstock.client.sink.log_state import LogState, Record
from penstock.client.sink.participant import Transaction
from penstock.core.errors import Damaged, RequestError, StoreInUse
from penstock.store.files import File, Files
from penstock.store.real_files import RealFiles

LOG = "log"
NEW_LOG = "log.new"

LOG_BYTES = 2**18
"""The size of the file: thousands of transactions between two times that it is written anew."""

TXN_ID_BYTES_MAX = 1024
"""Of a transaction's id, and of an instance's name: the wire has room for 65,535 bytes, the log has not for 64 such."""

ROUND_BYTES_MAX = 8 * 1024
"""Room for all the records of one round, and more."""


class TransactionLog:
    """Open, and locked: no second process can open it. An error while it writes is final: open it anew."""

    def __init__(self, files: Files) -> None:
        """Damaged for a log that cannot be trusted, StoreInUse for one that is open already."""
        self._files = files
        self._file: File | None = None
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
        """For another round. If not: `make_room` before it."""
        return self._end + ROUND_BYTES_MAX <= LOG_BYTES

    def append(self, record: Record) -> None:
        """Durable when this returns."""
        self._write(record).sync()
        self._durable = self._number

    def append_lazily(self, record: Record) -> None:
        """Durable with the next one; survives an end of the process at once."""
        self._write(record)

    def make_room(self) -> None:
        """Write the file anew. OSError when there is no room for that; then the old file goes on."""
        data = encode_record(self._number, self._number, self.state)
        file = self._create()
        file.allocate(LOG_BYTES)
        file.write(0, (data,))
        file.sync()
        self._files.rename(NEW_LOG, LOG)
        self._files.sync()
        self._close_file()
        self._file, self._end = file, len(data)
        self._number += 1
        self._durable = self._number

    def close(self) -> None:
        self._close_file()
        self._files.close()

    def _write(self, record: Record) -> File:
        assert self._file is not None, "the log is closed"
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
    """What of a sink's output is committed: always whole transactions, from the beginning."""

    offset: int
    """In bytes of payloads."""
    size: int
    """In bytes of the data, where the sink was given a place for bytes."""
    transaction: Transaction | None
    """The last one."""


def open_log(directory: str | os.PathLike[str]) -> TransactionLog:
    """The log of this state directory, which is made where there is none. StoreInUse if another sink runs on it."""
    try:
        return TransactionLog(RealFiles(Path(directory)))
    except StoreInUse as error:
        hint = "Stop the other sink, or give this one a state directory of its own."
        raise StoreInUse(str(error), hint) from None


def read_committed(directory: str | os.PathLike[str]) -> CommittedPrefix:
    """What a sink with this state directory has committed; also while it runs. RequestError if there is none."""
    try:
        files = RealFiles(Path(directory), create=False)
    except FileNotFoundError:
        raise RequestError(f"there is no state directory {directory}", "Start the sink once.") from None
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


_DAMAGED = "Restore the state directory together with the data, or remove both and deliver to the sink anew."
