"""Bulk coding in plain Python: the oracle of the kernels' tests, and their stand-in where numba is not installed."""

from array import array
from collections.abc import Iterable, Iterator, Sequence

from penstock.core.types import Buffer
from penstock.protocol.segment.frame import EVENT, HEADER, HEADER_SIZE
from penstock.protocol.stored.bulk.columns import (
    ALL,
    BUFFER_SIZE_MAX,
    Bytes,
    Column,
    Encoded,
    Events,
    Wanted,
    check_bytes,
    check_lengths,
    damaged,
    no_metadata,
    too_large,
)
from penstock.protocol.stored.event import HEAD, KEY_START, LENGTH_MAX, LENGTH_MIN, NO_TIME, SHORT_MAX
from penstock.protocol.stored.metadata import Origin, decode_origin, encode_metadata
from penstock.protocol.stored.names import Kind

_SIGN, _U64_MASK = 2**63, 2**64 - 1


def decode(data: Buffer, offset: int = 0, kind: Kind = Kind.STORED, wanted: Wanted = ALL) -> Events:
    """The whole events at the start of `data`, which lies at `offset` in its segment, where an event begins.

    An event whose end is not there is left: `end` of the result says where it begins. Raises Damaged, with the offset,
    when something there is no event of this kind; nothing is given of the events before it.
    """
    assert len(data) <= BUFFER_SIZE_MAX
    view = memoryview(data)
    if kind is Kind.RAW:
        return _decode_raw(view, offset, wanted)
    found = _Found()
    end = 0
    for start, end in _whole(view, offset, kind):
        if end - start > HEADER_SIZE:
            found.add(view[start:end], offset + start)
    return found.events(offset + end, wanted)


def _whole(view: memoryview, offset: int, kind: Kind) -> Iterator[tuple[int, int]]:
    """Where each of the whole events begins and ends."""
    at = 0
    while len(view) - at >= HEADER_SIZE:
        tag, size = HEADER.unpack_from(view, at)
        if tag != EVENT or not 0 <= size <= LENGTH_MAX:
            raise damaged(kind, f"type {tag}, length {size}", offset + at)
        if kind is Kind.STORED and 0 < size < LENGTH_MIN:
            raise damaged(kind, f"{size} bytes are too few", offset + at)
        if size > len(view) - at - HEADER_SIZE:
            break
        yield at, at + HEADER_SIZE + size
        at += HEADER_SIZE + size


def _decode_raw(view: memoryview, offset: int, wanted: Wanted) -> Events:
    spans = [*_whole(view, offset, Kind.RAW)]
    values = _gather(view[start + HEADER_SIZE : end] for start, end in spans) if wanted.values else None
    end = spans[-1][1] if spans else 0
    return Events(array("q", [offset + start for start, _ in spans]), offset + end, values=values)


class _Found:
    """The parts of stored events, as they are found."""

    def __init__(self) -> None:
        self._offsets, self._stream_ids, self._event_ids, self._times = (array("q") for _ in range(4))
        self._keys: list[memoryview] = []
        self._metadata: list[memoryview] = []
        self._values: list[memoryview] = []

    def add(self, event: memoryview, offset: int) -> None:
        """A whole event, at least as long as it must be. Raises Damaged."""
        _, _, stream_id, event_id, event_time, key_size = HEAD.unpack_from(event)
        key_end = KEY_START + key_size
        if key_end + 2 > len(event):
            raise damaged(Kind.STORED, f"a key of {key_size} bytes does not fit", offset)
        metadata_end = key_end + 2 + int.from_bytes(event[key_end : key_end + 2], "big")
        if metadata_end > len(event):
            raise damaged(Kind.STORED, f"metadata of {metadata_end - key_end - 2} bytes do not fit", offset)
        self._offsets.append(offset)
        self._stream_ids.append(_signed(stream_id))
        self._event_ids.append(_signed(event_id))
        self._times.append(event_time)
        self._keys.append(event[KEY_START:key_end])
        self._metadata.append(event[key_end + 2 : metadata_end])
        self._values.append(event[metadata_end:])

    def events(self, end: int, wanted: Wanted) -> Events:
        """Raises Damaged for metadata that is no map."""
        numbers = (self._stream_ids, self._event_ids, self._times, self._times.count(NO_TIME))
        keys = _gather(self._keys) if wanted.keys else None
        values = _gather(self._values) if wanted.values else None
        origins = _origins(self._metadata, self._offsets) if wanted.origins else (None, None)
        metadata = _gather(self._metadata) if wanted.metadata else None
        return Events(self._offsets, end, *numbers, keys, values, *origins, metadata)


def _origins(metadata: Sequence[memoryview], offsets: Column) -> tuple[Bytes | None, Bytes | None]:
    if not any(metadata):
        return None, None
    origins = []
    for piece, offset in zip(metadata, offsets, strict=True):
        try:
            origins.append(decode_origin(piece))
        except ValueError as error:
            raise damaged(Kind.STORED, f"metadata: {error}", offset) from None
    return _gather(origin.source for origin in origins), _gather(origin.stream for origin in origins)


def _gather(pieces: Iterable[Buffer]) -> Bytes:
    parts = [*pieces]
    offsets = array("i", [0])
    for part in parts:
        offsets.append(offsets[-1] + len(part))
    return Bytes(offsets, b"".join(parts))


def _signed(number: int) -> int:
    return number - 2 * _SIGN if number >= _SIGN else number


def encode(
    values: Bytes,
    *,
    keys: Bytes | None = None,
    event_times: Column | None = None,
    stream_ids: Column | None = None,
    event_ids: Column | None = None,
    sources: Bytes | None = None,
    streams: Bytes | None = None,
    metadata: Bytes | None = None,
) -> Encoded:
    """Rows as stored events, in their order.

    A column that is None stands for empty keys, no times (NO_TIME), ids of 0, no origin. There are no nulls: an empty
    source or stream is one that is not told. Ids are u64 or the same bits as i64. `sources` and `streams` are UTF-8.
    `metadata` are empty, or maps in msgpack whose keys are str: the origin is put before their pairs, and takes the
    place of one that is among them.

    Raises LimitExceeded, with the number of the row, when one is too large to be stored, and RequestError for metadata
    that are no such map; nothing is given then.
    """
    count = len(values)
    check_lengths(count, (keys, event_times, stream_ids, event_ids, sources, streams, metadata))
    for column in (values, keys, sources, streams, metadata):
        check_bytes(column)
    merged = [
        _metadata(row, Origin(_row(sources, row), _row(streams, row)), _row(metadata, row)) for row in range(count)
    ]
    parts: list[Buffer] = []
    starts = array("q", [0])
    for row in range(count):
        key, value = _row(keys, row), _row(values, row)
        told = merged[row]
        size = LENGTH_MIN + len(key) + len(told) + len(value)
        _check_sizes(row, len(key), len(told), size)
        ids = (_number(stream_ids, row, 0) & _U64_MASK, _number(event_ids, row, 0) & _U64_MASK)
        parts.append(HEAD.pack(EVENT, size, *ids, _number(event_times, row, NO_TIME), len(key)))
        parts += (key, len(told).to_bytes(2, "big"), told, value)
        starts.append(starts[-1] + HEADER_SIZE + size)
    return Encoded(memoryview(b"".join(parts)), starts)


def _metadata(row: int, origin: Origin, others: bytes) -> bytes:
    try:
        return encode_metadata(origin, others)
    except ValueError as error:
        raise no_metadata(row, str(error)) from None


def _check_sizes(row: int, key: int, metadata: int, event: int) -> None:
    if key > SHORT_MAX:
        raise too_large(row, "key", key)
    if metadata > SHORT_MAX:
        raise too_large(row, "metadata", metadata)
    if event > LENGTH_MAX:
        raise too_large(row, "event", event)


def _row(column: Bytes | None, row: int) -> bytes:
    return b"" if column is None else column.row(row)


def _number(column: Column | None, row: int, otherwise: int) -> int:
    return otherwise if column is None else int(column[row])
