"""Stored events and columns in plain Python: what the kernels must agree with, byte for byte and word for word."""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from penstock.core.types import Buffer
from penstock.protocol.segment.frame import EVENT, HEADER, HEADER_SIZE
from penstock.protocol.stored.bulk.codec import (
    ALL,
    BUFFER_SIZE_MAX,
    Bytes,
    Column,
    Encoded,
    Events,
    Wanted,
    check_lengths,
    damaged,
    no_metadata,
    too_large,
)
from penstock.protocol.stored.event import HEAD, KEY_START, LENGTH_MAX, LENGTH_MIN, NO_TIME, SHORT_MAX, SOURCE, STREAM
from penstock.protocol.stored.names import Kind


class Origin(NamedTuple):
    """UTF-8; empty where it is not told."""

    source: bytes = b""
    stream: bytes = b""


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


def check_bytes(column: Bytes | None) -> None:
    """ValueError unless the offsets grow, inside of the data."""
    if column is None:
        return
    offsets = column.offsets.tolist()
    if not offsets or offsets[0] < 0 or offsets[-1] > len(column.data) or sorted(offsets) != offsets:
        raise ValueError("the offsets of a column do not fit its data")


# Metadata, walked item by item: msgpack's library would unpack it, and loses how its bytes lie.

_FIXED = {0xC0: 0, 0xC2: 0, 0xC3: 0, 0xCA: 4, 0xCB: 8}
_FIXED |= {0xCC + n: 1 << (n & 3) for n in range(8)}
_FIXED |= {0xD4 + n: 1 + (1 << n) for n in range(5)}
"""Lead byte → bytes behind it, for what always has the same size: nil, booleans, numbers, small extensions."""

_STR = {0xD9: 1, 0xDA: 2, 0xDB: 4}
_SIZED = _STR | {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xC7: 1, 0xC8: 2, 0xC9: 4}
_EXTENSIONS = (0xC7, 0xC8, 0xC9)
_COUNTED = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}
"""Lead byte → width of the count, and items for each of it: arrays and maps."""


def encode_metadata(origin: Origin, others: bytes) -> bytes:
    """Metadata with this origin, and behind it the pairs of another map, as they are: but for an origin there whose
    place it takes. Empty if there is nothing to tell. Raises ValueError unless `others` are empty or one map in
    msgpack, whose keys are str.
    """
    told = {key.encode(): value for key, value in zip((SOURCE, STREAM), origin, strict=True) if value}
    pairs = [_packed(key) + _packed(value) for key, value in told.items()]
    pairs += [pair for key, pair in _pairs(others) if key not in told]
    if not pairs:
        return b""
    return _map_head(len(pairs)) + b"".join(pairs)


def _map_head(count: int) -> bytes:
    """More pairs than two bytes can count would never fit into an event's metadata: their sum is what is refused."""
    return bytes((0x80 + count,)) if count < 16 else b"\xde" + (count & 0xFFFF).to_bytes(2, "big")


def _pairs(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Each key, and the bytes that it has together with its value."""
    if not data:
        return
    items = _top_items(data)
    for key in items:
        value = next(items)
        if key.text is None:
            raise ValueError("a key is not a str")
        yield key.text, data[key.start : value.end]


def _packed(text: bytes) -> bytes:
    """A str: its length in as few bytes as possible, then itself."""
    size = len(text)
    if size < 32:
        return bytes((0xA0 + size,)) + text
    lead, width = next((lead, width) for lead, width in _STR.items() if size < 256**width)
    return bytes((lead,)) + size.to_bytes(width, "big") + text


def decode_origin(metadata: Buffer) -> Origin:
    """The origin that metadata tells; a `source` or `stream` that is no str tells nothing.

    Raises ValueError unless the bytes are one map in msgpack and nothing else, or empty.
    """
    if not metadata:
        return Origin()
    found = {SOURCE.encode(): b"", STREAM.encode(): b""}
    items = _top_items(bytes(metadata))
    for key in items:
        value = next(items)
        if key.text in found:
            found[key.text] = value.text or b""
    return Origin(*found.values())


class _Item(NamedTuple):
    end: int
    """Where the next item begins: the first one inside, if this is an array or a map."""
    inside: int
    text: bytes | None = None


class _TopItem(NamedTuple):
    """A key or a value of the map, with all that is inside of it; its text if it is a str."""

    start: int
    end: int
    text: bytes | None


def _top_items(data: bytes) -> Iterator[_TopItem]:
    """Keys and values of the map, in turn."""
    if not (0x80 <= data[0] <= 0x8F or data[0] in (0xDE, 0xDF)):
        raise ValueError("it is not a map")
    top = _item(data, 0)
    at = top.end
    for _ in range(top.inside):
        item = _item(data, at)
        start, at = at, _skip(data, item)
        yield _TopItem(start, at, item.text)
    if at != len(data):
        raise ValueError(f"{len(data) - at} bytes follow the map")


def _skip(data: bytes, item: _Item) -> int:
    """Where the item and all that is inside of it ends."""
    at, open_items = item.end, item.inside
    while open_items:
        inner = _item(data, at)
        at, open_items = inner.end, open_items - 1 + inner.inside
    return at


def _item(data: bytes, at: int) -> _Item:
    lead = _big_endian(data, at, 1)
    at += 1
    if lead <= 0x7F or lead >= 0xE0:
        return _Item(at, 0)
    if lead <= 0x8F:
        return _Item(at, 2 * (lead & 15))
    if lead <= 0x9F:
        return _Item(at, lead & 15)
    if lead <= 0xBF:
        return _text(data, at, lead & 31)
    if lead in _FIXED:
        return _Item(_end(data, at, _FIXED[lead]), 0)
    return _long_item(data, lead, at)


def _long_item(data: bytes, lead: int, at: int) -> _Item:
    """What says its own length."""
    if lead in _COUNTED:
        width, items = _COUNTED[lead]
        return _Item(at + width, items * _big_endian(data, at, width))
    if lead not in _SIZED:
        raise ValueError(f"byte {lead:#x} is not valid MessagePack")
    width = _SIZED[lead]
    size = _big_endian(data, at, width)
    if lead in _STR:
        return _text(data, at + width, size)
    return _Item(_end(data, at + width, size + (lead in _EXTENSIONS)), 0)


def _text(data: bytes, at: int, size: int) -> _Item:
    end = _end(data, at, size)
    return _Item(end, 0, data[at:end])


def _big_endian(data: bytes, at: int, width: int) -> int:
    return int.from_bytes(data[at : _end(data, at, width)], "big")


def _end(data: bytes, at: int, size: int) -> int:
    if size > len(data) - at:
        raise ValueError("it is cut off")
    return at + size
