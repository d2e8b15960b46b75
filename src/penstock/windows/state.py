"""A bucket's state in Spark's state store: blobs in parts that it can bear."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.streaming.stateful_processor import MapState, StatefulProcessorHandle, ValueState

PART_BYTES = 4 << 20
"""Of a blob in one value: the state server and RocksDB hold several copies of a value, each in one piece."""

_PARTS = struct.Struct("<I")


class SparkState:
    """The state of whichever bucket is being handled: Spark knows which."""

    def __init__(self, handle: StatefulProcessorHandle) -> None:
        self._index: ValueState = handle.getValueState("index", "data binary")
        self._blobs: MapState = handle.getMapState("blobs", "number bigint, part int", "data binary")

    def index(self) -> bytes | None:
        found = self._index.get()
        return None if found is None else bytes(found[0])

    def put_index(self, data: bytes) -> None:
        self._index.update((data,))

    def get(self, window: int) -> bytes | None:
        found = self._blobs.getValue((window, 0))
        if found is None:
            return None
        (parts,) = _PARTS.unpack_from(found[0])
        first = found[0][_PARTS.size :]
        if parts == 1:
            return bytes(first)
        rest = (self._blobs.getValue((window, part)) for part in range(1, parts))
        return b"".join((first, *(piece[0] for piece in rest if piece is not None)))

    def put(self, window: int, data: bytes) -> None:
        pieces = [data[start : start + PART_BYTES] for start in range(0, max(len(data), 1), PART_BYTES)]
        self._blobs.updateValue((window, 0), (_PARTS.pack(len(pieces)) + pieces[0],))
        for part, piece in enumerate(pieces[1:], 1):
            self._blobs.updateValue((window, part), (piece,))
        self._remove_from(window, len(pieces))

    def remove(self, window: int) -> None:
        self._blobs.removeKey((window, 0))
        self._remove_from(window, 1)

    def _remove_from(self, window: int, part: int) -> None:
        """What a longer blob has left."""
        while self._blobs.containsKey((window, part)):
            self._blobs.removeKey((window, part))
            part += 1
