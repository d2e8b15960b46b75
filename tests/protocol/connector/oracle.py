"""Bulk decoding and encoding in plain Python: what the kernels must agree with, byte for byte."""

import sys
from array import array
from collections.abc import Iterable
from itertools import compress, islice
from struct import Struct

from penstock.core.types import Buffer
from penstock.protocol.connector.bulk.columns import (
    DROPPED,
    HEAD_SIZE,
    I64_MAX,
    I64_MIN,
    NO_TIME,
    ROUTES_MAX,
    Admission,
    Column,
    Columns,
    Problem,
    Stop,
    Stored,
    Streams,
    Totals,
)
from penstock.protocol.connector.codec import FIXED_SIZE, FRAME_SIZE_MAX, HEADER, MESSAGE_HEAD, U32, encode
from penstock.protocol.connector.frames import NOTHING_YET, Ack, Acked, EventTimeUnit, Message
from penstock.protocol.connector.output import KEY_SIZE_MAX, check_rows, large_frame, large_key
from penstock.protocol.connector.two_phase import OUTPUT_STREAM
from penstock.protocol.stored.bulk import Bytes
from penstock.protocol.stored.head import StreamColumns
from tests.protocol.stored.oracle import check_bytes

STORED_HEAD = Struct(">iiQQqH")
"""A stored event up to its key: type 0, length, stream id, event id, event time, length of the key."""

NO_METADATA = b"\0\0"

STORED_EXTRA = 5
"""How much larger a stored event is than its MESSAGE: a header of 8 bytes, not 5, and 2 for the metadata's length 0."""


def scan(data: Buffer, start: int = 0, end: int | None = None, *, frame_size_max: int = FRAME_SIZE_MAX) -> Columns:
    """The longest run of whole MESSAGE frames that begins at `start`, and why it is no longer."""
    end = len(data) if end is None else end
    if not 0 <= start <= end <= len(data):
        raise IndexError(f"{start} .. {end} is not inside a buffer of {len(data)} bytes")
    view = memoryview(data)[:end]
    starts, stream_ids, message_ids, event_times, key_sizes = columns = _empty_columns()
    unpack, largest, at = MESSAGE_HEAD.unpack_from, 0, start
    while end - at >= HEAD_SIZE:
        length, tag, stream_id, message_id, event_time, key_size = unpack(view, at)
        following = at + U32.size + length
        if tag != Message.tag or length > frame_size_max or length < FIXED_SIZE + key_size or following > end:
            break
        starts.append(at)
        stream_ids.append(stream_id)
        message_ids.append(message_id)
        event_times.append(event_time)
        key_sizes.append(key_size)
        largest = max(largest, length)
        at = following
    starts.append(at)
    return Columns(data, start, at, *columns, largest, _why(view, at, frame_size_max))


def _empty_columns() -> "tuple[array[int], array[int], array[int], array[int], array[int]]":
    return array("q"), array("Q"), array("Q"), array("q"), array("i")


def _why(view: memoryview, at: int, frame_size_max: int) -> Stop:
    """Why there is no whole, well-formed MESSAGE at `at`."""
    left = len(view) - at
    if left < U32.size:
        return Stop.END if left == 0 else Stop.INCOMPLETE
    length: int = U32.unpack_from(view, at)[0]
    if not 0 < length <= frame_size_max:
        return Stop.OVERSIZED if length else Stop.MALFORMED
    if left < HEADER.size:
        return Stop.INCOMPLETE
    if view[at + U32.size] != Message.tag:
        return Stop.OTHER
    return Stop.INCOMPLETE if U32.size + length > left else Stop.MALFORMED


def rewrite(columns: Columns, admission: Admission, routes: int = 1) -> list[Stored]:
    """The messages that were kept, as stored events, in their order: of each of the first so many routes; a copy."""
    view, pack = memoryview(columns.data), STORED_HEAD.pack
    parts: list[list[Buffer]] = [[] for _ in range(DROPPED + 1)]
    numbers = zip(columns.stream_ids, columns.message_ids, admission.event_times, columns.key_sizes, strict=False)
    frames = zip(admission.routes, columns.starts, columns.starts.tolist()[1:], numbers, strict=False)
    for route, start, end, head in frames:
        key_start = start + HEAD_SIZE
        key_end = key_start + head[-1]
        parts[route] += (pack(0, end - start + STORED_EXTRA - 8, *head), view[key_start:key_end])
        parts[route] += (NO_METADATA, view[key_end:end])
    heads = _stream_columns(admission.streams, routes)
    return [
        Stored(len(part) // 4, memoryview(b"".join(part)), head)
        for part, head in zip(parts[:routes], heads, strict=True)
    ]


def _stream_columns(streams: Streams, routes: int) -> list[StreamColumns]:
    ids = zip(streams.routes, streams.last_ids, streams.previous_ids, strict=True)
    chosen = [DROPPED if last_id == previous_id else route for route, last_id, previous_id in ids]
    wanted = ([route == other for other in chosen] for route in range(routes))
    return [StreamColumns(*(_pack(column, rows) for column in streams[:3])) for rows in wanted]


def _pack(column: Column, wanted: list[bool]) -> bytes:
    assert isinstance(column, array)
    packed = array(column.typecode, compress(column, wanted))
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def encode_acks(credits: int, stream_ids: Column, points_of_reference: Column) -> bytes:  # noqa: A002
    """The ACK frame for whole columns; `points_of_reference` are message ids, never NOTHING_YET."""
    return encode(Ack(credits, tuple(map(Acked, stream_ids.tolist(), points_of_reference.tolist()))))


class _Entry:
    __slots__ = ("last_id", "mark", "route")

    def __init__(self, last_id: int, route: int, mark: int) -> None:
        self.last_id = last_id
        self.route = route
        self.mark = mark

    def takes(self, message_id: int) -> bool:
        """Whether the message is new; then it is the last one."""
        if self.last_id != NOTHING_YET and message_id <= self.last_id:
            return False
        self.last_id = message_id
        return True


class StreamTable:
    """The streams that are open in a session: for each its route, and the last message id that was kept.

    A stream is in here for as long as it is *active* in the stream machine. The `seed` is for the kernels' table.
    """

    def __init__(self, seed: int) -> None:
        del seed
        self._entries: dict[int, _Entry] = {}
        self._mark = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, stream_id: int) -> bool:
        return stream_id in self._entries

    def open(self, stream_id: int, last_id: int = NOTHING_YET, route: int = 0) -> None:
        """Its messages above `last_id` are kept, and take this route."""
        if not 0 <= route < ROUTES_MAX:
            raise ValueError(f"there are {ROUTES_MAX} routes, and {route} is not one of them")
        self._entries[stream_id] = _Entry(last_id, route, self.next_mark())

    def close(self, stream_id: int) -> None:
        """Its messages are not legal any more. Does nothing to a stream that is not open."""
        self._entries.pop(stream_id, None)

    def last_id(self, stream_id: int) -> int:
        """The last message id that was kept, or NOTHING_YET. KeyError when the stream is not open."""
        return self._entries[stream_id].last_id

    def admit(
        self, columns: Columns, unit: EventTimeUnit, arrival_us: int | None = None, *, extracted: bool = False
    ) -> Admission:
        """Which messages are new. With an `arrival_us` an event time of 0 means that one (`event_time: ingest`).

        The ids of the messages kept count as stored from now on: when storing them fails, the session must end.
        """
        routes, dead, times, touched, problem = array("B"), array("B"), array("q"), _Touched(), Problem.NONE
        mark = self.next_mark()
        rows = zip(columns.stream_ids.tolist(), columns.message_ids.tolist(), columns.event_times.tolist(), strict=True)
        for stream_id, message_id, event_time in rows:
            entry = self._entries.get(stream_id)
            if entry is None:
                problem = Problem.NOT_OPEN
                break
            result = touched.of(stream_id, entry.last_id)
            entry.mark = mark
            if message_id == NOTHING_YET:
                problem = Problem.RESERVED_ID
                break
            has_none = extracted and event_time == I64_MIN
            arrival = (arrival_us or 0) if has_none else None if extracted else arrival_us
            times.append(_to_microseconds(0 if has_none else event_time, unit, arrival))
            kept = entry.takes(message_id)
            dead.append(kept and has_none and arrival_us is None)
            routes.append(entry.route if kept and not dead[-1] else DROPPED)
            if kept and not has_none:
                result.highest_time = max(result.highest_time, times[-1])
        streams = touched.streams(self._entries)
        return Admission(len(routes), routes, times, streams, _totals(columns, routes, streams), dead, problem)

    def silent(self, mark: int, limit: int) -> list[int]:
        """Open streams, `limit` of them at most, that have had no message since `next_mark` gave this mark, and were
        opened before. Those that were put to rest are not among them until their next message.
        """
        found = (stream_id for stream_id, entry in self._entries.items() if 0 < entry.mark <= mark)
        return [*islice(found, limit)]

    def rest(self, stream_ids: Iterable[int]) -> None:
        """Let `silent` say nothing more of these streams."""
        for stream_id in stream_ids:
            self._touch(stream_id, 0)

    def touch(self, stream_id: int) -> None:
        """As if a message of the stream had come. Does nothing to a stream that is not open."""
        self._touch(stream_id, self.next_mark())

    def _touch(self, stream_id: int, mark: int) -> None:
        if stream_id in self._entries:
            self._entries[stream_id].mark = mark

    def next_mark(self) -> int:
        """A number that is greater than those of all runs until now, and smaller than those of the runs to come."""
        self._mark += 1
        return self._mark


def _to_microseconds(event_time: int, unit: EventTimeUnit, arrival_us: int | None) -> int:
    if event_time == 0 and arrival_us is not None:
        return arrival_us
    multiplier, divisor = unit.value
    return max(I64_MIN, min(event_time * multiplier, I64_MAX)) // divisor


def _totals(columns: Columns, routes: "array[int]", streams: Streams) -> Totals:
    messages, sizes, kept = (array("q", bytes(8 * (DROPPED + 1))) for _ in Totals._fields)
    for route, start, end in zip(routes, columns.starts, columns.starts.tolist()[1:], strict=False):
        messages[route] += 1
        sizes[route] += end - start + STORED_EXTRA
    for route, last_id, previous_id in zip(streams.routes, streams.last_ids, streams.previous_ids, strict=True):
        kept[route] += last_id != previous_id
    return Totals(messages, sizes, kept)


class _Result:
    __slots__ = ("highest_time", "previous_id")

    def __init__(self, previous_id: int) -> None:
        self.previous_id = previous_id
        self.highest_time = NO_TIME


class _Touched:
    def __init__(self) -> None:
        self._results: dict[int, _Result] = {}

    def of(self, stream_id: int, last_id: int) -> _Result:
        return self._results.setdefault(stream_id, _Result(last_id))

    def streams(self, entries: dict[int, _Entry]) -> Streams:
        results = self._results.values()
        return Streams(
            array("Q", self._results),
            array("Q", [entries[stream_id].last_id for stream_id in self._results]),
            array("q", [result.highest_time for result in results]),
            array("B", [entries[stream_id].route for stream_id in self._results]),
            array("Q", [result.previous_id for result in results]),
        )


def encode_output(
    times_us: Column,
    keys: Bytes,
    values: Bytes,
    first_id: int,
    *,
    unit_us: int = 1,
    frame_size_max: int = FRAME_SIZE_MAX,
) -> memoryview:
    """A MESSAGE frame of stream 1 for each row, in their order.

    Its id is `first_id` plus the bytes of the payloads before it. Its event time is that of the row in units of
    `unit_us` microseconds, rounded down; 0 for a row that has NO_TIME. LimitExceeded, which names the message by its
    id, for one that is too large; nothing is given then.
    """
    check_rows(times_us, keys, values)
    check_bytes(keys)
    check_bytes(values)
    parts: list[Buffer] = []
    message_id = first_id
    for time_us, key, value in zip(times_us.tolist(), keys.rows(), values.rows(), strict=True):
        size = FIXED_SIZE + len(key) + len(value)
        if len(key) > KEY_SIZE_MAX:
            raise large_key(message_id, len(key))
        if size > frame_size_max:
            raise large_frame(message_id, size, frame_size_max)
        time = 0 if time_us == NO_TIME else time_us // unit_us
        parts += (MESSAGE_HEAD.pack(size, Message.tag, OUTPUT_STREAM, message_id, time, len(key)), key, value)
        message_id += len(value)
    return memoryview(b"".join(parts))
