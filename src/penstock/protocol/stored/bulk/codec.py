"""Stored events to columns and back: the only decoder and encoder of stored events, on top of the kernels.

The kernels check no bounds of the arrays that they write to: the arrays are allocated here, large enough for whatever
the bytes may contain.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, overload

import msgpack
import numpy as np
from numpy.typing import NDArray

from penstock.core.errors import Damaged, LimitExceeded, RequestError
from penstock.core.types import Buffer
from penstock.protocol.segment.frame import HEADER, HEADER_SIZE
from penstock.protocol.stored.bulk import encode_kernel, kernel
from penstock.protocol.stored.event import (
    HEAD,
    KEY_START,
    LENGTH_MAX,
    LENGTH_MIN,
    NO_TIME,
    SHORT_MAX,
    SOURCE,
    STREAM,
    StoredEvent,
)
from penstock.protocol.stored.names import Kind

# Input and output of bulk coding.
#
# A column is a numpy array or an `array.array`: both have a length, indices, `tolist()` and the buffer protocol.

BUFFER_SIZE_MAX = 2**31 - 1
"""Bytes that are decoded at once: the offsets of a column of bytes have 32 bits, as Spark requires."""


_MAPS_KEPT = 256
"""Parsed maps of streams, each at most 64 KiB: a stream has the same metadata again and again."""


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

    `offsets` has one number more than there are rows; the first need not be 0. There are no nulls.
    """

    offsets: Column
    data: Buffer

    @classmethod
    def of(cls, rows: Sequence[Buffer]) -> "Bytes":
        """A copy of these rows."""
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(np.fromiter(map(len, rows), np.int64, len(rows)), out=offsets[1:])
        return cls(offsets, b"".join(rows))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, rows: int) -> bytes: ...

    @overload
    def __getitem__(self, rows: slice) -> "Bytes": ...

    def __getitem__(self, rows: int | slice) -> "bytes | Bytes":
        """A row, or those from a row up to another, which are not copied."""
        if isinstance(rows, int):
            return self.row(rows)
        start, stop, _ = rows.indices(len(self))
        return Bytes(np.asarray(self.offsets)[start : max(start, stop) + 1], self.data)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.rows())

    @property
    def size(self) -> int:
        """Bytes of all rows."""
        return int(self.offsets[-1]) - int(self.offsets[0])

    def sizes(self) -> NDArray[np.int64]:
        """The bytes of each row."""
        return np.diff(np.asarray(self.offsets))

    def row(self, index: int) -> bytes:
        return bytes(memoryview(self.data)[int(self.offsets[index]) : int(self.offsets[index + 1])])

    def rows(self) -> list[bytes]:
        ends = self.offsets.tolist()
        first = ends[0]
        if first == ends[-1]:  # as keys often are
            return [b""] * len(self)
        data = bytes(memoryview(self.data)[first : ends[-1]])  # a slice of bytes costs a third of one of a view
        return [data[start - first : end - first] for start, end in pairwise(ends)]


class Wanted(NamedTuple):
    """What to copy out of the events: unwanted columns cost nothing. The numbers are always included."""

    keys: bool = True
    values: bool = True
    origins: bool = True
    metadata: bool = False


ALL = Wanted()


@dataclass(frozen=True, slots=True, eq=False)
class Events:
    """The whole events at the start of a buffer; they share no memory with it.

    Raw events have only offsets and values: the other columns are None, and so are unwanted ones.
    """

    offsets: Column
    """Where each event starts in its segment: i64."""
    end: int
    """Where the next event starts in the segment: where to continue reading."""
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
    """The origins' sources; "" for an event without one. None if there is no metadata in any of the events."""
    streams: Bytes | None = None
    """The names of the origins' streams, as `sources`."""
    metadata: Bytes | None = None
    """As in the events: empty, or a msgpack map."""

    def __len__(self) -> int:
        return len(self.offsets)


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """Stored events, one after the other."""

    data: memoryview
    starts: Column
    """Where each event starts in `data`, and where the last one ends: the positions where the buffer may be split."""

    def __len__(self) -> int:
        return len(self.starts) - 1


def damaged(kind: Kind, what: str, offset: int) -> Damaged:
    """The error for bytes that are not what the segment should contain."""
    return Damaged(
        f"no {kind.value} event starts at offset {offset}: {what}",
        "Read whole events, from an offset where one starts.",
    )


def too_large(row: int, what: str, size: int) -> LimitExceeded:
    """The error for a row that cannot be stored."""
    limit = LENGTH_MAX if what == "event" else SHORT_MAX
    return LimitExceeded(
        f"row {row}: its {what} would have {size:,} bytes, the limit is {limit:,}",
        "Store large objects elsewhere, and a reference to them here.",
    )


def no_metadata(row: int, why: str) -> RequestError:
    """The error for metadata that could not be read back."""
    return RequestError(f"row {row}: its metadata cannot be stored: {why}", "Use a MessagePack map with str keys.")


def check_lengths(count: int, columns: "tuple[Column | Bytes | None, ...]") -> None:
    """Raises ValueError unless all columns that are not None have this many rows."""
    for column in columns:
        if column is not None and len(column) != count:
            raise ValueError(f"a column has {len(column)} rows, the values have {count}")


_LABELS = np.frombuffer((SOURCE + STREAM).encode(), np.uint8)
_EMPTY = np.empty(0, np.uint8)
_WHAT = {encode_kernel.LARGE_KEY: "key", encode_kernel.LARGE_METADATA: "metadata", encode_kernel.LARGE_EVENT: "event"}


def decode(data: Buffer, offset: int = 0, kind: Kind = Kind.STORED, wanted: Wanted = ALL) -> Events:
    """The whole events at the start of `data`, which is at `offset` in its segment, where an event starts.

    An incomplete event is left out: `end` of the result is where it starts. Raises Damaged, with the offset, if
    something there is not an event of this kind; the events before it are not returned either. Reads nothing outside
    `data`, whatever the bytes.
    """
    assert len(data) <= BUFFER_SIZE_MAX
    array = _bytes(data)
    return _decode_raw(array, offset, wanted) if kind is Kind.RAW else _decode_stored(array, offset, wanted)


def _decode_stored(data: NDArray[np.uint8], offset: int, wanted: Wanted) -> Events:
    room = len(data) // (HEADER_SIZE + LENGTH_MIN) + 1
    numbers = np.empty((4, room), np.int64)
    ends = np.empty((2, room), np.int32)
    count, end, why, without_time, metadata = kernel.scan(data, offset, *numbers, *ends)
    if why != kernel.WELL:
        raise damaged(Kind.STORED, _what_is_wrong(data.data[end:], why), offset + end)
    offsets, stream_ids, event_ids, times = numbers[:, :count]
    key_offsets, value_offsets = ends[:, : count + 1]
    keys = values = sources = streams = metadata_bytes = None
    if wanted.keys:
        keys = Bytes(key_offsets, (out := np.empty(key_offsets[count], np.uint8)).data)
        kernel.gather_keys(data, offset, offsets, key_offsets, out)
    if wanted.values:
        values = Bytes(value_offsets, (out := np.empty(value_offsets[count], np.uint8)).data)
        kernel.gather_values(data, offset, offsets, key_offsets, value_offsets, out)
    if wanted.origins and metadata:
        sources, streams = _origins(data, offset, offsets, key_offsets)
    if wanted.metadata:
        starts, metadata_ends = np.empty(count, np.int64), np.empty(count + 1, np.int32)
        kernel.scan_metadata(data, offset, offsets, key_offsets, starts, metadata_ends)
        metadata_bytes = _gathered(data, starts, metadata_ends)
    ids = (stream_ids, event_ids, times)
    return Events(offsets, offset + end, *ids, without_time, keys, values, sources, streams, metadata_bytes)


def _origins(
    data: NDArray[np.uint8], offset: int, offsets: NDArray[np.int64], key_offsets: NDArray[np.int32]
) -> tuple[Bytes, Bytes]:
    count = len(offsets)
    starts, ends = np.empty((2, count), np.int64), np.empty((2, count + 1), np.int32)
    row = kernel.scan_origins(data, offset, offsets, key_offsets, _LABELS, tuple(starts), tuple(ends))
    if row < count:
        raise damaged(
            Kind.STORED, f"metadata: {why_no_map(_metadata_at(data.data, offsets[row] - offset))}", int(offsets[row])
        )
    sources, streams = (_gathered(data, start, end) for start, end in zip(starts, ends, strict=True))
    return sources, streams


def _gathered(data: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int32]) -> Bytes:
    out = np.empty(ends[-1], np.uint8)
    kernel.gather(data, starts, ends, out)
    return Bytes(ends, out.data)


def _decode_raw(data: NDArray[np.uint8], offset: int, wanted: Wanted) -> Events:
    room = len(data) // HEADER_SIZE + 1
    offsets, ends = np.empty(room, np.int64), np.empty(room, np.int32)
    count, end, why = kernel.scan_raw(data, offset, offsets, ends)
    if why != kernel.WELL:
        raise damaged(Kind.RAW, _what_is_wrong(data.data[end:], why), offset + end)
    offsets, ends = offsets[:count], ends[: count + 1]
    values = None
    if wanted.values:
        values = Bytes(ends, (out := np.empty(ends[count], np.uint8)).data)
        kernel.gather_raw(data, offset, offsets, ends, out)
    return Events(offsets, offset + end, values=values)


def _what_is_wrong(event: memoryview, why: int) -> str:
    """What is wrong with the event that a scan stopped at."""
    tag, size = HEADER.unpack_from(event)
    if why == kernel.NO_EVENT:
        return f"type {tag}, length {size}"
    if why == kernel.TOO_FEW:
        return f"{size} bytes are too few"
    key_size: int = HEAD.unpack_from(event)[-1]
    if why == kernel.KEY:
        return f"a key of {key_size} bytes does not fit"
    return f"metadata of {_short(event, KEY_START + key_size)} bytes do not fit"


def _metadata_at(data: memoryview, at: int) -> bytes:
    """The metadata of the event at `at`, whose lengths a scan has checked."""
    start = at + KEY_START + _short(data, at + KEY_START - 2)
    return bytes(data[start + 2 : start + 2 + _short(data, start)])


def _short(data: memoryview, at: int) -> int:
    return int.from_bytes(data[at : at + 2], "big")


def why_no_map(data: bytes, keys_are_text: bool = False) -> str:
    """What is wrong with metadata that a kernel has refused: the kernel only returns the row."""
    if data[0] & 0xF0 != 0x80 and data[0] & 0xFE != 0xDE:
        return "it is not a map"
    unpacker = msgpack.Unpacker(max_map_len=2**32)
    unpacker.feed(data)
    try:
        for _ in range(unpacker.read_map_header()):
            lead = data[unpacker.tell() :][:1]
            unpacker.skip()
            unpacker.skip()
            if keys_are_text and not _begins_text(lead):
                return "a key is not a str"
    except msgpack.OutOfData:
        return "it is cut off"
    except msgpack.FormatError:
        return "byte 0xc1 is not valid MessagePack"
    except msgpack.StackError:
        return "it is nested too deeply"
    return f"{len(data) - unpacker.tell()} bytes follow the map"


def _begins_text(lead: bytes) -> bool:
    return b"\xa0" <= lead <= b"\xbf" or b"\xd9" <= lead <= b"\xdb"


def encode(
    values: Bytes,
    *,
    keys: Bytes | None = None,
    event_times: Column | None = None,
    stream_ids: Column | None = None,
    event_ids: Column | None = None,
    sources: Bytes | None = None,
    streams: Bytes | None = None,
    metadata: Bytes | bytes | None = None,
) -> Encoded:
    """Rows as stored events, in their order.

    A column that is None means empty keys, no times (NO_TIME), ids of 0, no origin. There are no nulls: an empty source
    or stream means that there is none. Ids are u64 or the same bits as i64. `sources` and `streams` are UTF-8.
    `metadata` are empty, or msgpack maps whose keys are str: the origin is written before their pairs, and replaces
    one that is among them. A single map is that of every row; then there is no origin.

    Raises LimitExceeded, with the number of the row, when one is too large to be stored, and RequestError for metadata
    that are not such a map; then nothing is returned.
    """
    count = len(values)
    each = None if isinstance(metadata, bytes) else metadata
    check_lengths(count, (keys, event_times, stream_ids, event_ids, sources, streams, each))
    texts = (values, keys, sources, streams)
    offsets = tuple(_offsets(column, count) for column in texts)
    if isinstance(metadata, bytes):
        assert (sources, streams) == (None, None), "an origin replaces what is in the metadata of a row"
        pair_offsets, pair_data, counts = _same_pairs(metadata)
    else:
        pair_offsets, pair_data, counts = _pairs(metadata, offsets[2:], count)
    offsets = (*offsets, pair_offsets)
    data = (*(_EMPTY if column is None else _bytes(column.data) for column in texts), pair_data)
    starts = np.empty(count + 1, np.int64)
    problem, row, size = encode_kernel.measure(offsets, tuple(map(len, data)), counts, starts)
    if problem != encode_kernel.WELL:
        raise _refusal(problem, row, size)
    out = np.empty(starts[count], np.uint8)
    numbers = (_numbers(stream_ids, count, 0), _numbers(event_ids, count, 0), _numbers(event_times, count, NO_TIME))
    encode_kernel.write(offsets, data, counts, numbers, _LABELS, starts, out)
    return Encoded(out.data, starts)


def encode_events(events: Sequence[StoredEvent]) -> bytes:
    """These events, one after the other, as `parse_event` reads them. Raises as `encode` does."""
    times = [NO_TIME if event.event_time is None else event.event_time for event in events]
    return bytes(
        encode(
            Bytes.of([event.payload for event in events]),
            keys=Bytes.of([event.key for event in events]),
            event_times=np.array(times, np.int64),
            stream_ids=np.array([event.stream_id for event in events], np.uint64),
            event_ids=np.array([event.event_id for event in events], np.uint64),
            metadata=Bytes.of([msgpack.packb(event.metadata) if event.metadata else b"" for event in events]),
        ).data
    )


def _pairs(
    metadata: Bytes | None, origins: tuple[NDArray[np.int64], ...], count: int
) -> tuple[NDArray[np.int64], NDArray[np.uint8], NDArray[np.int64]]:
    """The maps' pairs, without the origins, which are stored separately: their offsets, their bytes, and their number
    in each row.
    """
    counts, ends = np.zeros(count, np.int64), np.zeros(count + 1, np.int64)
    if metadata is None:
        return ends, _EMPTY, counts
    data, offsets = _bytes(metadata.data), _offsets(metadata, count)
    if offsets[0] < 0 or offsets[-1] > len(data) or (np.diff(offsets) < 0).any():
        raise _refusal(encode_kernel.OFFSETS, 0, 0)
    out = np.empty(offsets[-1] - offsets[0], np.uint8)
    row = kernel.gather_pairs(data, offsets, _LABELS, origins, out, ends, counts)
    if row < count:
        raise no_metadata(row, why_no_map(metadata.row(row), keys_are_text=True))
    return ends, out, counts


@lru_cache(_MAPS_KEPT)
def _same_pairs(metadata: bytes) -> tuple[NDArray[np.int64], NDArray[np.uint8], NDArray[np.int64]]:
    """Like `_pairs`, for rows with the same map: the kernels take the one row for each of them."""
    none = np.zeros(2, np.int64)
    return _pairs(Bytes.of([metadata]) if metadata else None, (none, none), 1)


def _refusal(problem: int, row: int, size: int) -> LimitExceeded | ValueError:
    if problem == encode_kernel.OFFSETS:
        return ValueError("the offsets of a column do not fit its data")
    return too_large(row, _WHAT[problem], size)


def _bytes(data: Buffer) -> NDArray[np.uint8]:
    return np.frombuffer(data, np.uint8) if len(data) else _EMPTY


def _offsets(column: Bytes | None, count: int) -> NDArray[np.int64]:
    return np.zeros(count + 1, np.int64) if column is None else np.ascontiguousarray(column.offsets, np.int64)


def _numbers(column: Column | None, count: int, otherwise: int) -> NDArray[np.int64]:
    if column is None:
        return np.full(count, otherwise, np.int64)
    numbers = np.ascontiguousarray(column)
    return numbers.view(np.int64) if numbers.dtype == np.uint64 else numbers.astype(np.int64, copy=False)
