"""What goes into bulk coding and comes out of it.

A column is a numpy array or an `array.array`: both have a length, indices, `tolist()` and the buffer protocol.
"""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, Protocol

from penstock.core.errors import Damaged, LimitExceeded, RequestError
from penstock.core.types import Buffer
from penstock.protocol.stored.event import LENGTH_MAX, SHORT_MAX
from penstock.protocol.stored.names import Kind

BUFFER_SIZE_MAX = 2**31 - 1
"""Bytes that are decoded at once: the offsets of a column of bytes have 32 bits, as Spark wants them."""


class Column(Protocol):
    """Numbers, one for each event."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Any]: ...

    def __getitem__(self, index: int, /) -> Any: ...

    def tolist(self) -> list[int]:
        """As Python's ints."""


@dataclass(frozen=True, slots=True, eq=False)
class Bytes:
    """Byte strings, as Arrow lays them out: row i is `data[offsets[i] : offsets[i + 1]]`.

    `offsets` has one number more than there are rows; the first need not be 0. There are no nulls in it.
    """

    offsets: Column
    data: Buffer

    @classmethod
    def of(cls, rows: Sequence[Buffer]) -> "Bytes":
        """A copy of these rows."""
        return cls(array("q", accumulate(map(len, rows), initial=0)), b"".join(rows))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def row(self, index: int) -> bytes:
        return bytes(memoryview(self.data)[int(self.offsets[index]) : int(self.offsets[index + 1])])

    def rows(self) -> list[bytes]:
        ends = self.offsets.tolist()
        first = ends[0]
        data = bytes(memoryview(self.data)[first : ends[-1]])  # a slice of bytes costs a third of one of a view
        return [data[start - first : end - first] for start, end in pairwise(ends)]


class Wanted(NamedTuple):
    """What to copy out of the events: what is not wanted costs nothing. The numbers are always there."""

    keys: bool = True
    values: bool = True
    origins: bool = True
    metadata: bool = False


ALL = Wanted()


@dataclass(frozen=True, slots=True, eq=False)
class Events:
    """The whole events at the start of a buffer; they share no memory with it.

    Of raw events there are offsets and values alone: the other columns are None, and so is what was not wanted.
    """

    offsets: Column
    """Where each begins in its segment: i64."""
    end: int
    """Where in the segment the next event begins: the place to read on from."""
    stream_ids: Column | None = None
    """i64: the bits of the u64."""
    event_ids: Column | None = None
    """i64: the bits of the u64."""
    event_times: Column | None = None
    """In microseconds, or NO_TIME."""
    without_time: int = 0
    """How many have no time."""
    keys: Bytes | None = None
    values: Bytes | None = None
    sources: Bytes | None = None
    """The origins' sources; "" for an event that tells none. None if there is no metadata in any of the events."""
    streams: Bytes | None = None
    """The names of the origins' streams, as `sources`."""
    metadata: Bytes | None = None
    """As they lie in the events, empty or a map in msgpack."""

    def __len__(self) -> int:
        return len(self.offsets)


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """Stored events, one behind the other."""

    data: memoryview
    starts: Column
    """Where each begins in `data`, and at last where the last one ends: the places where the buffer may be cut."""

    def __len__(self) -> int:
        return len(self.starts) - 1


def damaged(kind: Kind, what: str, offset: int) -> Damaged:
    """What to raise for bytes that are not what the segment should hold."""
    return Damaged(
        f"no {kind.value} event starts at offset {offset}: {what}",
        "Read whole events, from an offset where one starts.",
    )


def too_large(row: int, what: str, size: int) -> LimitExceeded:
    """What to raise for a row that cannot be stored."""
    limit = LENGTH_MAX if what == "event" else SHORT_MAX
    return LimitExceeded(
        f"row {row}: its {what} would have {size:,} bytes, the limit is {limit:,}",
        "Store large objects elsewhere, and a reference to them here.",
    )


def no_metadata(row: int, why: str) -> RequestError:
    """What to raise for metadata that nobody could read again."""
    return RequestError(f"row {row}: its metadata cannot be stored: {why}", "Use a MessagePack map with str keys.")


def check_lengths(count: int, columns: "tuple[Column | Bytes | None, ...]") -> None:
    """ValueError unless all the columns that are there have so many rows."""
    for column in columns:
        if column is not None and len(column) != count:
            raise ValueError(f"a column has {len(column)} rows, the values have {count}")
