"""A pipeline's table of streams, durable: written down now and then, with the offsets up to which it speaks.

It is written before data are truncated that it was made from, so that a fold never misses a head. An entry is
`u32 length · msgpack`; a table is one or more of them, the last of which says so. It holds what heads have said, and
nothing that settings have a part in.
"""

import struct
import sys
from array import array
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgpack

from penstock.coordinator.ledger import NO_QUOTA
from penstock.coordinator.machine.state import source_of
from penstock.coordinator.watermark.source_table import Clock, StreamTable, Times
from penstock.core.errors import Damaged
from penstock.protocol.api.pipelines import Segments
from penstock.protocol.stored.event import NO_TIME
from penstock.protocol.stored.head import numbers
from penstock.protocol.stored.names import COORDINATOR_PREFIX, OUTPUT_PREFIX
from penstock.store.store import SegmentStore

_LENGTH = struct.Struct(">I")
_ROWS_PER_PART = 200_000
"""At 16 bytes each a part is far below the largest append."""
_ACTIVE, _IDLE, _DECLARED = 0, 1, 2


class Written(NamedTuple):
    """A table as it was written down, and where in each segment."""

    table: StreamTable
    offsets: Segments


def table_segment(pipeline: str) -> str:
    return f"{COORDINATOR_PREFIX}streams/{pipeline}"


def write(store: SegmentStore, pipeline: str, incarnation: int, written: Written) -> None:
    """The one before is given up: the truncation stands behind this one, so it cannot be durable without it."""
    segment = table_segment(pipeline)
    if not store.exists(segment):
        store.create(segment, NO_QUOTA, draining=True)
    start = store.length(segment)
    parts = [*_parts(written.table)]
    for number, part in enumerate(parts, start=1):
        head = [incarnation, number == 1, number == len(parts), dict(written.offsets)]
        packed: bytes = msgpack.packb([*head, _sources(written.table), written.table.outputs, *part])
        store.append(segment, [_LENGTH.pack(len(packed)), packed], draining=True)
    store.truncate(segment, start)


def _sources(table: StreamTable) -> dict[str, list[Any]]:
    """Of each source what is not of one stream."""
    return {
        name: [s.highest, s.promised, s.segments, sorted(s.finished), *map(_clock, (s.clock, s.idle_clock))]
        for name, s in table.sources.items()
    }


def _clock(clock: Clock) -> list[Any]:
    return [clock.segments, sorted(clock.times.items())]


def _parts(table: StreamTable) -> Iterator[tuple[str, int, bytes, bytes]]:
    """(source, active, idle or declared, ids, times); at least one."""
    any_rows = False
    for source, streams in table.sources.items():
        for kind, times in ((_ACTIVE, streams.active), (_IDLE, streams.idle), (_DECLARED, streams.declared)):
            ids, values = [*times], [*times.values()]
            for first in range(0, len(ids), _ROWS_PER_PART):
                any_rows = True
                rows = slice(first, first + _ROWS_PER_PART)
                yield source, kind, _little_endian("Q", ids[rows]), _little_endian("q", values[rows])
    if not any_rows:
        yield "", _ACTIVE, b"", b""


def _little_endian(code: str, values: list[int]) -> bytes:
    column = array(code, values)
    if sys.byteorder == "big":
        column.byteswap()
    return column.tobytes()


def read(store: SegmentStore, pipeline: str, incarnation: int) -> Written | None:
    """The last one that is there as a whole, if it is of this incarnation; call it when the store is durable."""
    segment = table_segment(pipeline)
    if not store.exists(segment):
        return None
    found: Written | None = None
    table = StreamTable()
    try:
        for number, is_first, is_last, offsets, sources, outputs, *rows in _entries(store, segment):
            if is_first:
                table = StreamTable()
            _add(table, *rows)
            table.outputs = _by_source(outputs)
            if is_last:
                _add_sources(table, sources)
                found = Written(table, offsets) if number == incarnation else None
    except (ValueError, TypeError, struct.error) as error:
        raise Damaged(f"the table of streams (segment {segment!r}) cannot be read: {error}") from None
    return found


def _add(table: StreamTable, source: str, kind: int, ids: bytes, times: bytes) -> None:
    if ids:
        streams = table.of(source)
        column: Times = (streams.active, streams.idle, streams.declared)[kind]
        column.update(zip(numbers("Q", ids), numbers("q", times), strict=True))


def _add_sources(table: StreamTable, sources: dict[str, list[Any]] | int) -> None:
    if isinstance(sources, int):  # as it was written when there was one highest time for all of them
        sources = {name: [sources, NO_TIME, 0, []] for name in table.sources}
    for name, (highest, promised, segments, finished, *clocks) in sources.items():
        found = table.of(name)
        found.highest, found.promised, found.segments, found.finished = highest, promised, segments, set(finished)
        if clocks:  # it was once written without
            found.clock, found.idle_clock = (Clock(dict(times), number) for number, times in clocks)


def _by_source(outputs: dict[str, int | None]) -> dict[str, int | None]:
    """They were once written by segment."""
    return {source_of(name) if name.startswith(OUTPUT_PREFIX) else name: time for name, time in outputs.items()}


def _entries(store: SegmentStore, segment: str) -> Iterator[Any]:
    info = store.info(segment)
    data = bytearray()
    while info.start + len(data) < info.length:
        data += store.read(segment, info.start + len(data), info.length)
    at = 0
    while at < len(data):
        start = at + _LENGTH.size
        at = start + _LENGTH.unpack_from(data, at)[0]
        yield msgpack.unpackb(bytes(data[start:at]), strict_map_key=False)
