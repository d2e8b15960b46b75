"""Messages about table segments: maps of keys to values, each with a version (versioned dialect only).

A version is the offset at which the entry was written. A request names the version that it expects of a key, or one of
the two numbers below.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.core.types import Buffer
from penstock.protocol.segment.messages import NO_REQUEST, Failure, Reply, Request

ANY_VERSION = -(2**63)
"""Expected of a key: whatever it is, and even if the key does not exist."""

NO_VERSION = -1
"""Expected of a key: that it does not exist. In a reply: that it does not."""

NO_OFFSET = -1
"""Of an update: the length of the table does not matter."""


class TableKey(NamedTuple):
    key: Buffer
    version: int = ANY_VERSION


class TableEntry(NamedTuple):
    key: Buffer
    version: int
    value: Buffer


@dataclass(frozen=True, slots=True)
class CreateTable(Request):
    """Answered by SegmentCreated."""

    segment: str
    token: str = field(default="", repr=False)
    request_id: int = NO_REQUEST


@dataclass(frozen=True, slots=True)
class DeleteTable(Request):
    """Answered by SegmentDeleted."""

    segment: str
    must_be_empty: bool = False
    token: str = field(default="", repr=False)
    request_id: int = NO_REQUEST


@dataclass(frozen=True, slots=True)
class UpdateTable(Request):
    """All entries or none. `offset`: where the table must end, or NO_OFFSET."""

    segment: str
    entries: tuple[TableEntry, ...]
    offset: int = NO_OFFSET
    token: str = field(default="", repr=False)
    request_id: int = NO_REQUEST


@dataclass(frozen=True, slots=True)
class TableUpdated(Reply):
    """The new versions, in the order of the entries."""

    versions: tuple[int, ...]
    request_id: int = NO_REQUEST


@dataclass(frozen=True, slots=True)
class RemoveTableKeys(Request):
    """All keys or none."""

    segment: str
    keys: tuple[TableKey, ...]
    offset: int = NO_OFFSET
    token: str = field(default="", repr=False)
    request_id: int = NO_REQUEST


@dataclass(frozen=True, slots=True)
class TableKeysRemoved(Reply):
    segment: str
    request_id: int = NO_REQUEST


@dataclass(frozen=True, slots=True)
class ReadTable(Request):
    segment: str
    keys: tuple[TableKey, ...]
    token: str = field(default="", repr=False)
    request_id: int = NO_REQUEST


@dataclass(frozen=True, slots=True)
class TableRead(Reply):
    """One entry for each key, in their order; a key that does not exist has NO_VERSION and an empty value."""

    segment: str
    entries: tuple[TableEntry, ...]
    request_id: int = NO_REQUEST


@dataclass(frozen=True, slots=True)
class ReadTableKeys(Request):
    """About `count` of them. `continuation`: of the reply before, empty for the first."""

    segment: str
    count: int
    continuation: Buffer = b""
    token: str = field(default="", repr=False)
    request_id: int = NO_REQUEST


@dataclass(frozen=True, slots=True)
class TableKeysRead(Reply):
    """No keys: there are no more."""

    segment: str
    keys: tuple[TableKey, ...]
    continuation: Buffer = b""
    request_id: int = NO_REQUEST


@dataclass(frozen=True, slots=True)
class ReadTableEntries(Request):
    """As ReadTableKeys."""

    segment: str
    count: int
    continuation: Buffer = b""
    token: str = field(default="", repr=False)
    request_id: int = NO_REQUEST


@dataclass(frozen=True, slots=True)
class TableEntriesRead(Reply):
    """No entries: there are no more."""

    segment: str
    entries: tuple[TableEntry, ...]
    continuation: Buffer = b""
    request_id: int = NO_REQUEST


@dataclass(frozen=True, slots=True)
class ReadTableDelta(Request):
    """What has changed from a position on: that of the reply before, 0 for the first."""

    segment: str
    position: int
    count: int
    token: str = field(default="", repr=False)
    request_id: int = NO_REQUEST


@dataclass(frozen=True, slots=True)
class TableDeltaRead(Reply):
    """The last change of each key, in order; no entries: nothing has changed. A key that was removed has its last value
    and NO_VERSION. `should_clear`: changes between the requested position and the first entry are gone. `position`:
    where the next request continues.
    """

    segment: str
    entries: tuple[TableEntry, ...]
    should_clear: bool
    reached_end: bool
    position: int
    request_id: int = NO_REQUEST


@dataclass(frozen=True, slots=True)
class TableNotEmpty(Failure):
    segment: str
    stack_trace: str = ""
    request_id: int = NO_REQUEST


@dataclass(frozen=True, slots=True)
class TableKeyDoesNotExist(Failure):
    """A version was expected of a key that does not exist."""

    segment: str
    stack_trace: str = ""
    request_id: int = NO_REQUEST


@dataclass(frozen=True, slots=True)
class TableKeyBadVersion(Failure):
    """A key has another version than the expected one."""

    segment: str
    stack_trace: str = ""
    request_id: int = NO_REQUEST
