"""Bulk decoding with the kernels. Here their arrays are made, large enough for whatever they may find."""

import numpy as np
from numpy.typing import NDArray

from penstock.core.types import Buffer
from penstock.protocol.connector.bulk import kernel
from penstock.protocol.connector.bulk.columns import (
    HEAD_SIZE,
    I64_MAX,
    ROUTES_MAX,
    Admission,
    Column,
    Columns,
    EventTimeUnit,
    Problem,
    Stop,
    Stored,
    Streams,
)
from penstock.protocol.connector.codec import FRAME_SIZE_MAX, HEADER
from penstock.protocol.connector.fields import U32
from penstock.protocol.connector.frames import NOTHING_YET, Ack

U64_MASK = 2**64 - 1

ROWS_MIN = 64
"""Rows of an empty stream table: 4 KiB for each session."""


def scan(data: Buffer, start: int = 0, end: int | None = None, *, frame_size_max: int = FRAME_SIZE_MAX) -> Columns:
    """The longest run of whole MESSAGE frames that begins at `start`, and why it is no longer.

    Reads nothing outside `start .. end`, whatever the bytes. While the columns exist, `data` cannot change its size.
    """
    end = len(data) if end is None else end
    if not 0 <= start <= end <= len(data):
        raise IndexError(f"{start} .. {end} is not inside a buffer of {len(data)} bytes")
    room = (end - start) // HEAD_SIZE + 1
    block = np.empty((5, room), np.int64)
    starts, event_times = block[0], block[1]
    stream_ids, message_ids, key_sizes = block[2].view(np.uint64), block[3].view(np.uint64), block[4].view(np.int32)
    array = np.frombuffer(data, np.uint8) if end else np.empty(0, np.uint8)
    count, stop, largest = kernel.scan(
        array, start, end, frame_size_max, starts, stream_ids, message_ids, event_times, key_sizes
    )
    return Columns(
        data,
        starts[: count + 1],
        stream_ids[:count],
        message_ids[:count],
        event_times[:count],
        key_sizes[:count],
        largest,
        Stop(stop),
    )


def rewrite(columns: Columns, admission: Admission, route: int = 0) -> Stored:
    """The messages that were kept and take this route, as stored events, in their order; a copy."""
    starts, routes = columns.starts, admission.routes
    count, size = kernel.measure(starts, routes, route)
    out = np.empty(size, np.uint8)
    if count:
        array = np.frombuffer(columns.data, np.uint8)
        kernel.rewrite(array, starts, columns.key_sizes, admission.event_times, routes, route, out)
    return Stored(count, out.data)


def encode_acks(credits: int, stream_ids: Column, points_of_reference: Column) -> bytes:  # noqa: A002
    """The ACK frame for whole columns; `points_of_reference` are message ids, never NOTHING_YET."""
    pairs = np.empty((len(stream_ids), 2), ">u8")
    pairs[:, 0], pairs[:, 1] = stream_ids, points_of_reference
    return HEADER.pack(9 + pairs.nbytes, Ack.tag) + U32.pack(credits) + U32.pack(len(pairs)) + pairs.tobytes()


class StreamTable:
    """The streams that are open in a session: for each its route, and the last message id that was kept.

    A stream is in here for as long as it is *active* in the stream machine. `seed` is a random number that the peer
    cannot know: it chooses the stream ids, and could otherwise choose some that take for ever to look up.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed & U64_MASK
        self._rows = _empty_rows(ROWS_MIN)
        self._used = self._open = self._mark = 0

    def __len__(self) -> int:
        return self._open

    def __contains__(self, stream_id: int) -> bool:
        return bool(self._rows[self._find(stream_id), kernel.STATE] >= kernel.OPEN)

    def open(self, stream_id: int, last_id: int = NOTHING_YET, route: int = 0) -> None:
        """Its messages above `last_id` are kept, and take this route."""
        if not 0 <= route < ROUTES_MAX:
            raise ValueError(f"there are {ROUTES_MAX} routes, and {route} is none of them")
        if 2 * (self._used + 1) > len(self._rows):
            self._grow()
        row = self._rows[self._find(stream_id)]
        self._used += int(row[kernel.STATE] == kernel.EMPTY)
        self._open += int(row[kernel.STATE] < kernel.OPEN)
        row[kernel.ID], row[kernel.NEXT_ID] = stream_id, (last_id + 1) & U64_MASK
        row[kernel.STATE], row[kernel.MARK] = kernel.OPEN + route, 0

    def close(self, stream_id: int) -> None:
        """Its messages are not legal any more. Does nothing to a stream that is not open."""
        row = self._rows[self._find(stream_id)]
        if row[kernel.STATE] >= kernel.OPEN:
            row[kernel.STATE] = kernel.SHUT
            self._open -= 1

    def last_id(self, stream_id: int) -> int:
        """The last message id that was kept, or NOTHING_YET. KeyError when the stream is not open."""
        row = self._rows[self._find(stream_id)]
        if row[kernel.STATE] < kernel.OPEN:
            raise KeyError(stream_id)
        return (int(row[kernel.NEXT_ID]) - 1) & U64_MASK

    def admit(self, columns: Columns, unit: EventTimeUnit, arrival_us: int | None = None) -> Admission:
        """Which messages are new. With an `arrival_us` an event time of 0 means that one (`event_time: ingest`).

        The ids of the messages kept count as stored from now on: when storing them fails, the session must end.
        """
        self._mark += 1
        count = len(columns)
        numbers = np.empty((5, count), np.int64)
        ids = np.empty((3, count), np.uint64)
        routes = np.empty((2, count), np.uint8)
        looked_at, problem, streams = kernel.admit(
            (columns.stream_ids, columns.message_ids, columns.event_times),
            self._rows,
            self._seed,
            self._mark,
            _scale(unit),
            (0, 0) if arrival_us is None else (1, arrival_us),
            routes[0],
            numbers[0],
            numbers[1],
            (numbers[2], numbers[3], numbers[4]),
            (ids[0], ids[1], routes[1], ids[2]),
        )
        found = (ids[0], ids[1], numbers[4], numbers[2], numbers[3], routes[1], ids[2])
        results = Streams(*(column[:streams] for column in found))
        return Admission(looked_at, routes[0, :looked_at], numbers[0, :looked_at], results, Problem(problem))

    def _find(self, stream_id: int) -> int:
        return int(kernel.find(self._rows, self._seed, stream_id))

    def _grow(self) -> None:
        """A larger table, if the open streams need one; the closed ones are forgotten."""
        rows = ROWS_MIN
        while rows < 3 * (self._open + 1):
            rows *= 2
        old, self._rows = self._rows, _empty_rows(rows)
        self._used = kernel.move(old, self._rows, self._seed)


def _empty_rows(count: int) -> NDArray[np.uint64]:
    return np.zeros((count, kernel.ROW_SIZE), np.uint64)


def _scale(unit: EventTimeUnit) -> tuple[int, int, int, int]:
    multiplier, divisor = unit.value
    return multiplier, divisor, -(-kernel.I64_MIN // multiplier), I64_MAX // multiplier
