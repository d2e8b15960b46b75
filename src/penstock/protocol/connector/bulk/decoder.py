"""MESSAGE frames, decoded a buffer at a time.

`Receiver` finds them, `StreamTable` decides which are new, `rewrite` turns these into stored events.

The kernels check no bounds of the arrays that they write to: the arrays are allocated here, large enough for whatever
the bytes may contain.
"""

import sys
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import accumulate
from struct import Struct
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from penstock.core.types import Buffer
from penstock.protocol.connector.bulk import kernel
from penstock.protocol.connector.bulk.columns import (
    DROPPED,
    HEAD_SIZE,
    I64_MAX,
    NOTHING_STORED,
    ROUTES_MAX,
    Admission,
    Column,
    Columns,
    Problem,
    Stop,
    Stored,
    Streams,
    Totals,
    frame_error,
)
from penstock.protocol.connector.codec import FRAME_SIZE_CEILING, FRAME_SIZE_MAX, U32, HelloCheck, decode, read_length
from penstock.protocol.connector.frames import NOTHING_YET, Ack, EventTimeUnit, Frame
from penstock.protocol.incremental import IncrementalDecoder
from penstock.protocol.stored.head import StreamColumns

U64_MASK = 2**64 - 1

ROWS_MIN = 64
"""Rows of an empty stream table: 2 KiB for each session."""

MARKS = 2 ** (64 - kernel.SLOT_BITS)
"""After this many runs, marks are reset."""

CACHE_LINE = 64

ACK_HEAD = Struct(">IBII")
"""Length, tag, credits, the number of streams."""


def scan(data: Buffer, start: int = 0, end: int | None = None, *, frame_size_max: int = FRAME_SIZE_MAX) -> Columns:
    """The longest run of whole MESSAGE frames that begins at `start`, and why it ends.

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
        start,
        int(starts[count]),
        starts[: count + 1],
        stream_ids[:count],
        message_ids[:count],
        event_times[:count],
        key_sizes[:count],
        largest,
        Stop(stop),
    )


def rewrite(columns: Columns, admission: Admission, routes: int = 1) -> list[Stored]:
    """The admitted messages as stored events, for each of the first `routes` routes, in their order. The result is a
    copy. A route whose messages are all dead has no events, and still the last ids of their streams.
    """
    counts, sizes, streams = (np.asarray(column)[:routes].tolist() for column in admission.totals)
    if not any(streams):
        return [NOTHING_STORED] * routes
    ends, lasts = list(accumulate(sizes, initial=0)), list(accumulate(streams, initial=0))
    out = np.empty(ends[-1], np.uint8)
    block = np.empty((len(StreamColumns._fields), lasts[-1]), np.uint64)
    messages = (columns.starts, columns.key_sizes, admission.event_times)
    places = np.array((ends[:-1], lasts[:-1]), np.int64)
    array = np.frombuffer(columns.data, np.uint8)
    kernel.rewrite(array, messages, admission.routes, tuple(admission.streams), places, out, block)
    if sys.byteorder == "big":
        block.byteswap(inplace=True)
    return [
        _stored(count, out[ends[route] : ends[route + 1]], block[:, lasts[route] : lasts[route + 1]])
        for route, count in enumerate(counts)
    ]


def _stored(count: int, out: NDArray[np.uint8], block: NDArray[np.uint64]) -> Stored:
    if not block.size:
        return NOTHING_STORED
    ids, last_ids, highest_times = block
    return Stored(
        count, out.data, StreamColumns(ids.data.cast("B"), last_ids.data.cast("B"), highest_times.data.cast("B"))
    )


def encode_acks(credits: int, stream_ids: Column, points_of_reference: Column) -> bytes:  # noqa: A002
    """The ACK frame for whole columns; `points_of_reference` are message ids, never NOTHING_YET."""
    pairs = np.empty(16 * len(stream_ids), np.uint8)
    kernel.write_acked(np.asarray(stream_ids, np.uint64), np.asarray(points_of_reference, np.uint64), pairs)
    return b"".join((ACK_HEAD.pack(9 + len(pairs), Ack.tag, credits, len(stream_ids)), pairs.data))


class StreamTable:
    """The streams that are open in a session: for each its route, and the last message id that was kept.

    It contains a stream as long as that is *active* in the stream machine. `seed` is a random number that the peer
    cannot know: the peer chooses the stream ids, and could otherwise choose ids that all collide.
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
        """Open a stream: its messages above `last_id` are kept, and take this route."""
        if not 0 <= route < ROUTES_MAX:
            raise ValueError(f"there are {ROUTES_MAX} routes, and {route} is not one of them")
        if 2 * (self._used + 1) > len(self._rows):
            self._grow()
        next_id, touched = (last_id + 1) & U64_MASK, self.next_mark() << kernel.SLOT_BITS
        before = kernel.open_row(self._rows, self._seed, stream_id, next_id, touched, kernel.OPEN + route)
        self._used += before == kernel.EMPTY
        self._open += before < kernel.OPEN

    def close(self, stream_id: int) -> None:
        """Close a stream: its messages are no longer legal. Does nothing to a stream that is not open."""
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

    def admit(
        self, columns: Columns, unit: EventTimeUnit, arrival_us: int | None = None, *, extracted: bool = False
    ) -> Admission:
        """Decide which messages are new. With an `arrival_us`, it replaces event times of 0 (`event_time: ingest`). If
        event times are `extracted` from the data, it replaces NO_TIME; without it such messages are dead.

        The ids of admitted messages count as stored from now on: if storing them fails, the session must end.
        """
        count = len(columns)
        numbers = np.empty((2, count), np.int64)
        ids = np.empty((3, count), np.uint64)
        routes = np.empty((3, count), np.uint8)
        totals = np.zeros((len(Totals._fields), DROPPED + 1), np.int64)
        found = (ids[0], ids[1], numbers[1], routes[1], ids[2])
        looked_at, problem, streams = kernel.admit(
            (columns.starts, columns.stream_ids, columns.message_ids, columns.event_times),
            self._rows,
            self._seed,
            self.next_mark(),
            _scale(unit),
            _ingest(arrival_us, extracted=extracted),
            routes[0],
            routes[2],
            numbers[0],
            found,
            totals,
        )
        return Admission(
            looked_at,
            routes[0, :looked_at],
            numbers[0, :looked_at],
            Streams(*(column[:streams] for column in found)),
            Totals(*totals),
            routes[2, :looked_at],
            Problem(problem),
        )

    def silent(self, mark: int, limit: int) -> list[int]:
        """At most `limit` open streams that were opened before `next_mark` returned this mark, and have had no message
        since. Streams passed to `rest` are omitted until their next message.
        """
        states, touched = self._rows[:, kernel.STATE], self._rows[:, kernel.TOUCHED]
        marks = touched >> np.uint64(kernel.SLOT_BITS)
        found = np.flatnonzero((states >= kernel.OPEN) & (marks <= mark) & (marks != 0))
        silent: list[int] = self._rows[found[:limit], kernel.ID].tolist()
        return silent

    def rest(self, stream_ids: Iterable[int]) -> None:
        """Leave these streams out of `silent` from now on."""
        for stream_id in stream_ids:
            self._touch(stream_id, 0)

    def touch(self, stream_id: int) -> None:
        """Treat the stream as if a message had arrived. Does nothing to a stream that is not open."""
        self._touch(stream_id, self.next_mark())

    def _touch(self, stream_id: int, mark: int) -> None:
        row = self._rows[self._find(stream_id)]
        if row[kernel.STATE] >= kernel.OPEN:
            row[kernel.TOUCHED] = mark << kernel.SLOT_BITS

    def next_mark(self) -> int:
        """A number that is greater than those of all runs until now, and smaller than those of the runs to come."""
        self._mark += 1
        if self._mark == MARKS:
            self._mark = 1
            self._rows[:, kernel.TOUCHED] = 0
        return self._mark

    def _find(self, stream_id: int) -> int:
        return int(kernel.find(self._rows, self._seed, stream_id))

    def _grow(self) -> None:
        """Enlarge the table if the open streams need it. Closed streams are dropped."""
        rows = ROWS_MIN
        while rows < 3 * (self._open + 1):
            rows *= 2
        old, self._rows = self._rows, _empty_rows(rows)
        self._used = kernel.move(old, self._rows, self._seed)


def _empty_rows(count: int) -> NDArray[np.uint64]:
    """Aligned to a cache line, so that no row straddles two of them."""
    spare = CACHE_LINE // 8
    words = np.zeros(count * kernel.ROW_SIZE + spare, np.uint64)
    first = -words.ctypes.data % CACHE_LINE // 8
    return words[first : first + count * kernel.ROW_SIZE].reshape(count, kernel.ROW_SIZE)


def _ingest(arrival_us: int | None, *, extracted: bool) -> tuple[int, int]:
    if arrival_us is None:
        return kernel.NONE_DIES if extracted else kernel.AS_SENT, 0
    return kernel.NONE_ARRIVES if extracted else kernel.ZERO_ARRIVES, arrival_us


@cache
def _scale(unit: EventTimeUnit) -> tuple[int, int, int, int]:
    multiplier, divisor = unit.value
    return multiplier, divisor, -(-kernel.I64_MIN // multiplier), I64_MAX // multiplier


CHUNK_SIZE = 512 * 2**10
"""The most bytes received at once. They stay together all the way to the acknowledgement: some thousand small messages,
for which what Python does once for all of them does not matter.
"""

CHUNK_SIZE_MIN = 64
"""There must be room to receive after the longest incomplete header, from which a frame's length is not known yet."""

Incoming: TypeAlias = Frame | Columns


class Receiver(IncrementalDecoder[Incoming]):
    """Columns are views of the buffer: they are valid until `get_buffer` is called again. Other frames own their bytes.
    The buffer has `chunk_size` bytes, or as many as the current frame needs, once its length is checked.
    """

    def __init__(
        self,
        *,
        hello: HelloCheck | None = None,
        frame_size_max: int = FRAME_SIZE_MAX,
        chunk_size: int = CHUNK_SIZE,
    ) -> None:
        assert 0 < frame_size_max <= FRAME_SIZE_CEILING
        assert chunk_size >= CHUNK_SIZE_MIN
        super().__init__()
        self._stop: Stop | None = None
        self._hello = hello
        self._frame_size_max = frame_size_max
        self._chunk_size = chunk_size
        self._view = memoryview(bytearray())  # allocated with the first byte: idle sessions need none
        self._start = self._end = 0
        self._needed = 0

    @property
    def buffered_bytes(self) -> int:
        """The memory allocated, whether or not it contains anything."""
        return len(self._view)

    def get_buffer(self, sizehint: int = -1) -> memoryview:  # noqa: ARG002 (asyncio's signature)
        self._check_usable()
        size = max(self._needed, self._chunk_size)
        if self._start or len(self._view) != size:
            unread = self._view[self._start : self._end]
            self._view = self._view if len(self._view) == size else memoryview(bytearray(size))
            self._view[: len(unread)] = unread
            self._start, self._end = 0, len(unread)
        return self._view[self._end :]

    def received(self, count: int) -> Iterator[Incoming]:
        self._check_usable()
        assert 0 <= count <= len(self._view) - self._end
        self._end += count
        return self._each()

    def _read(self) -> Incoming | None:
        if self._stop is None:
            columns = scan(self._view, self._start, self._end, frame_size_max=self._frame_size_max)
            self._start, self._stop = columns.end, columns.stop
            if len(columns):
                return columns
        stop, self._stop = self._stop, None
        if stop in (Stop.MALFORMED, Stop.OVERSIZED):
            raise frame_error(self._view, self._start, self._frame_size_max)
        return self._read_other(stop)

    def _read_other(self, stop: Stop) -> Frame | None:
        """The next frame, which is not a MESSAGE; None while it is incomplete. Then the room that it needs is known."""
        self._needed = 0
        if self._end - self._start < U32.size:
            return None
        start = self._start + U32.size
        end = start + read_length(self._view, self._start, self._frame_size_max)
        if stop is Stop.INCOMPLETE or end > self._end:
            self._needed = end - self._start
            return None
        tag, body = self._view[start], bytes(self._view[start + 1 : end])
        self._start = end
        return decode(tag, body, hello=self._hello)
