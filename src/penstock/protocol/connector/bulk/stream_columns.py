"""What a run did to the streams of one route, as bytes for the head of the record that stores it."""

import sys
from array import array
from itertools import compress
from typing import Any, NamedTuple

from penstock.protocol.connector.bulk.columns import Column, Streams


class StreamColumns(NamedTuple):
    """Little-endian 64-bit numbers, one for each stream: its id, its last message id, its highest event time."""

    stream_ids: bytes
    last_ids: bytes
    highest_times: bytes


def stream_columns(streams: Streams, route: int) -> StreamColumns:
    """Of the streams that take this route and had messages that were kept."""
    if isinstance(streams.routes, array):
        wanted: Any = [r == route and count > 0 for r, count in zip(streams.routes, streams.counts, strict=True)]
        packed = [_pack(column, wanted) for column in streams[:3]]
    else:
        columns: Any = streams
        (rows,) = ((columns.routes == route) & (columns.counts > 0)).nonzero()
        chosen = [column.take(rows) for column in columns[:3]]
        packed = [(column.byteswap() if sys.byteorder == "big" else column).tobytes() for column in chosen]
    return StreamColumns(*packed)


def _pack(column: Column, wanted: list[bool]) -> bytes:
    assert isinstance(column, array)
    chosen = array(column.typecode, compress(column, wanted))
    if sys.byteorder == "big":
        chosen.byteswap()
    return chosen.tobytes()
