"""What a sink remembers beside its table: how far it is, and the vote that is in doubt.

It is one small object, replaced by compare-and-set. Who opens the sink writes its own mark: a worker that was replaced
meanwhile finds another version, and can neither vote nor commit any more.
"""

from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated
from uuid import uuid4

import msgspec

from penstock.bucket.objects import Bucket, NoSuchObject, ObjectExists, VersionChanged
from penstock.connectors.lake.files import DataFile
from penstock.connectors.sink_api import Position, SinkLost, Transaction
from penstock.core.errors import BucketUnavailable, UnreadableFormat

FORMAT = 1
_KEY = "record"


class VoteRecord(msgspec.Struct, frozen=True):
    """A yes vote: everything that a commit needs."""

    transaction: str
    epoch: int
    start: int
    end: int
    version: int
    """Counts the votes of this sink: the number under which the table knows the epoch."""
    files: tuple[DataFile, ...]
    schema: bytes = b""
    """The table's columns with this epoch, as Arrow's IPC format has them; empty if it has no files."""

    @property
    def id(self) -> bytes:
        return self.transaction.encode()

    @property
    def position(self) -> Position:
        return Position(self.id, self.end)

    def is_of(self, transaction: Transaction) -> bool:
        return (self.id, self.start, self.end) == (transaction.id, transaction.start, transaction.end)


class SinkState(msgspec.Struct, frozen=True):
    format: Annotated[int, msgspec.Meta(ge=1)] = FORMAT
    owner: str = ""
    """The mark of the process that opened the sink last."""
    sink: str = ""
    """Its name, for people."""
    transaction: str = ""
    """The last one that was committed."""
    end: int = 0
    version: int = 0
    """Of the last vote."""
    in_doubt: VoteRecord | None = None
    schema: bytes = b""
    """The columns of all files so far, for tables that have no schema of their own."""

    @property
    def committed(self) -> Position:
        return Position(self.transaction.encode(), self.end)


@dataclass(slots=True)
class Record:
    """The state as this process has last read or written it."""

    _bucket: Bucket
    state: SinkState
    _version: str

    @classmethod
    def open(cls, bucket: Bucket, sink: str) -> "Record":
        """Takes the sink over from whoever has it. Raises UnreadableFormat, SinkLost or BucketFailed."""
        with suppress(ObjectExists):
            state = SinkState(owner=_mark(), sink=sink)
            if not _is_there(bucket):
                return cls(bucket, state, bucket.create(_KEY, [msgspec.json.encode(state)]))
        found = bucket.get(_KEY)
        record = cls(bucket, _decoded(found.data, bucket.url), found.version)
        record.write(msgspec.structs.replace(record.state, owner=_mark()))
        return record

    def write(self, state: SinkState) -> None:
        """Raises SinkLost if another process has taken the sink over. A reply that was lost counts as the write."""
        data = msgspec.json.encode(state)
        try:
            self._version = self._bucket.replace(_KEY, data, self._version)
        except (VersionChanged, BucketUnavailable) as error:
            found = self._bucket.get(_KEY)
            if found.data != data:
                raise self._lost(error) from error
            self._version = found.version
        self.state = state

    def check(self) -> None:
        """Raises SinkLost if another process has taken the sink over."""
        found = self._bucket.get(_KEY)
        if _decoded(found.data, self._bucket.url).owner != self.state.owner:
            raise self._lost(None)

    def _lost(self, error: Exception | None) -> SinkLost:
        if isinstance(error, BucketUnavailable):
            return SinkLost(str(error), error.hint)
        return SinkLost(f"{self._bucket.url}: another process has opened this sink", "Stop the other worker.")


def _mark() -> str:
    return uuid4().hex


def _is_there(bucket: Bucket) -> bool:
    try:
        bucket.get(_KEY)
    except NoSuchObject:
        return False
    return True


def _decoded(data: bytes, url: str) -> SinkState:
    try:
        state = msgspec.json.decode(data, type=SinkState)
    except msgspec.DecodeError as error:
        raise SinkLost(f"{url}/{_KEY} is damaged: {error}", _START_OVER) from error
    if state.format != FORMAT:
        raise UnreadableFormat(f"the record of a sink in {url}", state.format, FORMAT, _START_OVER)
    return state


_START_OVER = "Use another table for the sink; or delete its folder there, and bind it again."
