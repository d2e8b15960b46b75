"""Rows on their way out of a pipeline to a connector: whose they are, and how they are stored while they wait."""

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, overload

import msgpack

from penstock.connectors.api import StreamRef
from penstock.protocol.stored.bulk import Bytes, Events, Wanted, encode
from penstock.protocol.stored.dead_letters import REASON
from penstock.protocol.stored.event import KEY_START, NO_TIME, SHORT_MAX

WANTED = Wanted(metadata=True)

REASON_BYTES_MAX = 1000
"""Of a dead letter's reason: what a connector says may be long, and metadata is short."""

_UNSIGNED = 2**64 - 1

_C = TypeVar("_C")


class Row(NamedTuple):
    number: int
    """In its epoch."""
    stream_id: int
    event_id: int
    time: int
    """In microseconds, or NO_TIME."""
    key: bytes
    metadata: bytes
    value: bytes


def rows_of(events: Events, first: int) -> list[Row]:
    """In order, numbered from `first` on. The events are stored ones, decoded with WANTED."""
    columns = (
        range(first, first + len(events)),
        (one & _UNSIGNED for one in _there(events.stream_ids).tolist()),
        (one & _UNSIGNED for one in _there(events.event_ids).tolist()),
        _there(events.event_times).tolist(),
        _there(events.keys).rows(),
        _there(events.metadata).rows(),
        _there(events.values).rows(),
    )
    return [*map(Row._make, zip(*columns, strict=True))]


def _there(column: _C | None) -> _C:
    assert column is not None, "these are no stored events, or were decoded for something else"
    return column


def by_stream(events: Events, first: int) -> dict[StreamRef | None, list[Row]]:
    """The rows of each stream, in order; None for those that come from no single one. Streams by their first rows."""
    rows = rows_of(events, first)
    if events.sources is None:
        return {None: rows}
    found: dict[StreamRef | None, list[Row]] = {}
    refs: dict[tuple[bytes, int], StreamRef | None] = {}
    for source, row in zip(events.sources.rows(), rows, strict=True):
        key = source, row.stream_id
        if key not in refs:
            refs[key] = StreamRef(source.decode(), row.stream_id) if source else None
        found.setdefault(refs[key], []).append(row)
    return found


def encode_rows(rows: Sequence[Row]) -> bytes:
    """As the stored events that they were."""
    return _encoded(rows, [row.metadata for row in rows])


def encode_letters(rows: Sequence[Row], reason: str) -> bytes:
    """As stored events whose metadata say why they did not leave."""
    said = reason.encode(errors="replace")[:REASON_BYTES_MAX].decode(errors="ignore")
    return _encoded(rows, [_with_reason(row.metadata, said) for row in rows])


def _with_reason(metadata: bytes, reason: str) -> bytes:
    told = {**_unpacked(metadata), REASON: reason}
    packed: bytes = msgpack.packb(told)
    return packed if len(packed) <= SHORT_MAX else metadata


def _encoded(rows: Sequence[Row], metadata: Sequence[bytes]) -> bytes:
    encoded = encode(
        Bytes.of([row.value for row in rows]),
        keys=Bytes.of([row.key for row in rows]),
        event_times=array("q", [row.time for row in rows]),
        stream_ids=array("Q", [row.stream_id for row in rows]),
        event_ids=array("Q", [row.event_id for row in rows]),
        metadata=Bytes.of(metadata),
    )
    return bytes(encoded.data)


def size_of(rows: Iterable[Row]) -> int:
    """Of what `encode_rows` gives."""
    return sum(KEY_START + 2 + len(row.key) + len(row.metadata) + len(row.value) for row in rows)


def metadata_of(rows: Sequence[Row]) -> Sequence[Mapping[str, Any]]:
    """Unpacked when somebody looks: most connectors never do."""
    return _Lazy([row.metadata for row in rows], _unpacked)


def times_of(rows: Sequence[Row]) -> list[int | None]:
    return [None if row.time == NO_TIME else row.time for row in rows]


def _unpacked(metadata: bytes) -> dict[str, Any]:
    found: dict[str, Any] = msgpack.unpackb(metadata, unicode_errors="replace") if metadata else {}
    return found


class _Lazy(Sequence[Mapping[str, Any]]):
    def __init__(self, data: list[bytes], unpack: Callable[[bytes], dict[str, Any]]) -> None:
        self._data = data
        self._unpack = unpack

    def __len__(self) -> int:
        return len(self._data)

    @overload
    def __getitem__(self, index: int) -> Mapping[str, Any]: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Mapping[str, Any]]: ...

    def __getitem__(self, index: int | slice) -> Mapping[str, Any] | Sequence[Mapping[str, Any]]:
        if isinstance(index, slice):
            return _Lazy(self._data[index], self._unpack)
        return self._unpack(self._data[index])
