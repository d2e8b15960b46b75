"""Reads heads for a connector's acknowledgements, a little at a time, and tells the sessions that have the streams."""

import asyncio
from array import array
from typing import TYPE_CHECKING, NamedTuple

from penstock.core.errors import Damaged
from penstock.core.types import Buffer
from penstock.ingest.registry import StreamKey
from penstock.protocol.stored.head import HeadFold, fold_heads
from penstock.store.reader import Piece
from penstock.store.store import SegmentStore

if TYPE_CHECKING:
    from penstock.ingest.gateway import Gateway
    from penstock.ingest.opened_streams import OpenedStreams

# Heads of one step: they are located in the loop, at about 3 µs each, and read and folded in another thread.
_ROWS_PER_STEP = 500
_BYTES_PER_STEP = 1 << 20
# Streams that are looked up before the loop gets its turn, at about 1 µs each; also the most in one ACK.
_STREAMS_PER_TURN = 2000


class HeadsRead(NamedTuple):
    """What the heads of some records tell. `end` is where the last one ends; None: no whole record was there."""

    fold: HeadFold
    end: int | None
    damage: list[Damaged]
    """Heads that could not be read; they are passed over."""


class HeadReader:
    def __init__(self, gateway: "Gateway", connector: str) -> None:
        self._gateway = gateway
        self._connector = connector

    async def read(self, segment: str, start: int, end: int) -> HeadsRead:
        """The next heads of records that end in (start, end]. Raises what `store.locate_heads` does."""
        store = self._gateway.store
        while True:
            limits = {"rows_max": _ROWS_PER_STEP, "bytes_max": _BYTES_PER_STEP}
            pieces = [piece for piece in store.locate_heads(segment, start, end, **limits) if _end(piece) <= end]
            try:
                return await self._gateway.loop.run_in_executor(None, _read, store, segment, pieces)
            except LookupError:  # moved or truncated meanwhile
                await asyncio.sleep(0)

    async def tell(self, fold: HeadFold) -> None:
        """Acknowledge to each session the streams that it has now."""
        for first in range(0, len(fold.stream_ids), _STREAMS_PER_TURN):
            part = slice(first, first + _STREAMS_PER_TURN)
            self._tell(fold.stream_ids[part], fold.last_ids[part])
            await asyncio.sleep(0)

    def _tell(self, stream_ids: "array[int]", last_ids: "array[int]") -> None:
        found: dict[OpenedStreams, tuple[array[int], array[int]]] = {}
        for stream_id, last_id in zip(stream_ids, last_ids, strict=True):
            streams = self._gateway.owner_of(StreamKey(self._connector, stream_id))
            if streams is not None:
                ids, last = found.setdefault(streams, (array("Q"), array("Q")))
                ids.append(stream_id)
                last.append(last_id)
        for streams, (ids, last) in found.items():
            streams.acknowledge(ids, last)


def _end(piece: Piece) -> int:
    return piece.offset + piece.row.length


def _read(store: SegmentStore, segment: str, pieces: list[Piece]) -> HeadsRead:
    """In another thread."""
    end = _end(pieces[-1]) if pieces else None
    try:
        return HeadsRead(fold_heads(segment, store.fetch_heads(pieces)), end, [])
    except Damaged:
        heads: list[tuple[int, Buffer]] = []
        damage: list[Damaged] = []
        for piece in pieces:
            try:
                (head,) = store.fetch_heads([piece])
                fold_heads(segment, [head])
                heads.append(head)
            except Damaged as error:
                damage.append(error)
        return HeadsRead(fold_heads(segment, heads), end, damage)
