"""A connector's table of streams, durable: a snapshot now and then, and the heads of the records behind it.

The snapshot is in a segment of its own and says up to which offset of each data segment it speaks. It is written before
a data segment is truncated past that, so that a fold never misses a head.
"""

import struct
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgpack

from penstock.gateway.head import MarkKind, decode_head
from penstock.protocol.connector.frames import NOTHING_YET
from penstock.store.store import SegmentStore

_LENGTH = struct.Struct(">I")
_HEADS_BYTES = 64 << 20


class KnownStream:
    """A stream that was ever seen: its name, the number of its segment, the last message id that was accepted."""

    __slots__ = ("last_id", "name", "route")

    def __init__(self, name: str, route: int, last_id: int = NOTHING_YET) -> None:
        self.name = name
        self.route = route
        self.last_id = last_id


class Snapshot(NamedTuple):
    offsets: dict[str, int]
    streams: dict[int, KnownStream]


class StreamLog:
    """`segment` holds the snapshots, `data` are the names of the connector's data segments."""

    def __init__(self, store: SegmentStore, segment: str, data: list[str]) -> None:
        self._store = store
        self._segment = segment
        self._data = data

    def recover(self) -> dict[int, KnownStream]:
        """The streams as they were accepted last; call it when everything in the store is durable."""
        offsets, streams = self._last_snapshot()
        for route, name in enumerate(self._data):
            info = self._store.info(name)
            self._fold(streams, route, name, max(offsets.get(name, 0), info.start), info.length)
        return streams

    def write(self, streams: Mapping[int, KnownStream]) -> None:
        """Write the table down; the one before is not needed any more once this one is durable."""
        offsets = {name: self._store.length(name) for name in self._data}
        rows = [(stream_id, s.name, s.route, s.last_id) for stream_id, s in streams.items()]
        packed: bytes = msgpack.packb([offsets, rows])
        start = self._store.length(self._segment)
        self._store.append(self._segment, [_LENGTH.pack(len(packed)), packed], draining=True)
        # The truncation stands behind the snapshot in the journal: it cannot be durable without it.
        self._store.truncate(self._segment, start)

    def _last_snapshot(self) -> Snapshot:
        info = self._store.info(self._segment)
        if info.start == info.length:
            return Snapshot({}, {})
        data = self._read(info.start, info.length)
        at = 0
        while at + _LENGTH.size + _LENGTH.unpack_from(data, at)[0] < len(data):
            at += _LENGTH.size + _LENGTH.unpack_from(data, at)[0]
        offsets, rows = msgpack.unpackb(data[at + _LENGTH.size :])
        return Snapshot(offsets, _streams(rows))

    def _read(self, start: int, end: int) -> bytes:
        parts = []
        while start < end:
            parts.append(self._store.read(self._segment, start, end - start))
            start += len(parts[-1])
        return b"".join(parts)

    def _fold(self, streams: dict[int, KnownStream], route: int, name: str, start: int, end: int) -> None:
        while start < end:
            heads = self._store.heads(name, start, min(end, start + _HEADS_BYTES))
            for _, data in heads:
                self._fold_one(streams, route, data)
            start = heads[-1][0]

    def _fold_one(self, streams: dict[int, KnownStream], route: int, data: memoryview) -> None:
        if not data:  # written by somebody else, over the segment protocol
            return
        head = decode_head(data)
        for mark in head.marks:
            if mark.kind is MarkKind.STARTED and mark.stream_id not in streams:
                streams[mark.stream_id] = KnownStream(mark.name, route)
        for stream_id, last_id in head.last.items():
            streams[stream_id].last_id = last_id


def _streams(rows: Iterable[Any]) -> dict[int, KnownStream]:
    return {stream_id: KnownStream(name, route, last_id) for stream_id, name, route, last_id in rows}
