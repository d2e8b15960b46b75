"""An event's origin in its metadata: read and written without unpacking the rest of the map."""

from collections.abc import Iterator
from typing import NamedTuple

from penstock.core.types import Buffer
from penstock.protocol.stored.event import SOURCE, STREAM

_FIXED = {0xC0: 0, 0xC2: 0, 0xC3: 0, 0xCA: 4, 0xCB: 8}
_FIXED |= {0xCC + n: 1 << (n & 3) for n in range(8)}
_FIXED |= {0xD4 + n: 1 + (1 << n) for n in range(5)}
"""Lead byte → bytes behind it, for what always has the same size: nil, booleans, numbers, small extensions."""

_STR = {0xD9: 1, 0xDA: 2, 0xDB: 4}
_SIZED = _STR | {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xC7: 1, 0xC8: 2, 0xC9: 4}
_EXTENSIONS = (0xC7, 0xC8, 0xC9)
_COUNTED = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}
"""Lead byte → width of the count, and items for each of it: arrays and maps."""


class Origin(NamedTuple):
    """UTF-8; empty where it is not told."""

    source: bytes = b""
    stream: bytes = b""


def encode_origin(origin: Origin) -> bytes:
    """Metadata with this origin; empty if it tells nothing."""
    return encode_metadata(origin, b"")


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
            raise ValueError("a key is no str")
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
    is_map: bool = False


class _TopItem(NamedTuple):
    """A key or a value of the map, with all that is inside of it; its text if it is a str."""

    start: int
    end: int
    text: bytes | None


def _top_items(data: bytes) -> Iterator[_TopItem]:
    """Keys and values of the map, in turn."""
    top = _item(data, 0)
    if not top.is_map:
        raise ValueError("it is no map")
    at = top.end
    for _ in range(top.inside):
        item = _item(data, at)
        start, at = at, _skip(data, item)
        yield _TopItem(start, at, item.text)
    if at != len(data):
        raise ValueError(f"{len(data) - at} bytes lie behind the map")


def _skip(data: bytes, item: _Item) -> int:
    """Where the item and all that is inside of it ends."""
    at, open_items = item.end, item.inside
    while open_items:
        inner = _item(data, at)
        at, open_items = inner.end, open_items - 1 + inner.inside
    return at


def _item(data: bytes, at: int) -> _Item:
    lead = _number(data, at, 1)
    at += 1
    if lead <= 0x7F or lead >= 0xE0:
        return _Item(at, 0)
    if lead <= 0x8F:
        return _Item(at, 2 * (lead & 15), is_map=True)
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
        return _Item(at + width, items * _number(data, at, width), is_map=items == 2)
    if lead not in _SIZED:
        raise ValueError(f"byte {lead:#x} begins nothing")
    width = _SIZED[lead]
    size = _number(data, at, width)
    if lead in _STR:
        return _text(data, at + width, size)
    return _Item(_end(data, at + width, size + (lead in _EXTENSIONS)), 0)


def _text(data: bytes, at: int, size: int) -> _Item:
    end = _end(data, at, size)
    return _Item(end, 0, data[at:end])


def _number(data: bytes, at: int, width: int) -> int:
    return int.from_bytes(data[at : _end(data, at, width)], "big")


def _end(data: bytes, at: int, size: int) -> int:
    if size > len(data) - at:
        raise ValueError("it is cut off")
    return at + size
