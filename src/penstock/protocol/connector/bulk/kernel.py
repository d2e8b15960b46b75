"""The kernels, compiled by numba: loops over the messages of a buffer that touch each byte at most once.

They are compiled without bounds checks. Comparisons before every access decide what they may touch: `scan` reads
nothing outside `start .. end` of the buffer, whatever the bytes; the others read and write only what the columns of
`scan` describe, into arrays that `decoder.py` has allocated accordingly.

numba's cache tracks only a function's own file, so everything that is compiled together is in this one, except the
intrinsics. That includes copies of the constants of `columns.py` (Stop, Problem, DROPPED, HEAD_SIZE); a test compares
them.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numba.types import int64, uint64

from penstock.protocol.intrinsics import (
    BYTES,
    I32S,
    I64S,
    U8S,
    U64S,
    compiled,
    copy,
    inlined,
    load8,
    load16,
    load32,
    load64,
    load64_signed,
    store16,
    store64,
)

ROWS = types.uint64[:, ::1]

WELL, END, INCOMPLETE, OTHER, MALFORMED, OVERSIZED = -1, 0, 1, 2, 3, 4
NO_PROBLEM, NOT_OPEN, RESERVED_ID = 0, 1, 2
MESSAGE, HEAD, EXTRA, DROPPED = 5, 31, 5, 255
I64_MIN, I64_MAX, U64_MAX = -(2**63), 2**63 - 1, 2**64 - 1

AS_SENT, ZERO_ARRIVES, NONE_ARRIVES, NONE_DIES = 0, 1, 2, 3
"""Times of messages: all as sent; 0 means the time of arrival; NO_TIME means it, without being the stream's highest
time; a message with NO_TIME is dead."""

ID, NEXT_ID, TOUCHED, STATE, ROW_SIZE = 0, 1, 2, 3, 4
"""A row of a stream table, half a cache line. `NEXT_ID` is the last message id plus 1, so that "nothing yet" is 0.
`TOUCHED` is the mark of the last run with messages of the stream, and the stream's slot in that run; 0 if the stream
was put to rest."""
SLOT_BITS = 28
"""Of `TOUCHED`: for more messages than fit into any buffer. The other 36 suffice for a mark per run for years."""
SLOT_MASK = 2**SLOT_BITS - 1
AHEAD = 16
"""Messages: a row is prefetched from memory this far ahead of its use."""
EMPTY, SHUT, OPEN = 0, 1, 2
"""STATE: no stream, one that was open once, or OPEN + its route."""


def _prefetch(typing_context: Any, rows: Any, row: Any) -> Any:  # noqa: ARG001
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        base = context.make_array(signature.args[0])(context, builder, args[0]).data
        pointer = builder.gep(base, [builder.mul(args[1], ir.Constant(ir.IntType(64), ROW_SIZE))])
        i8p, i32 = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [i8p, i32, i32, i32])
        function = builder.module.declare_intrinsic("llvm.prefetch", [i8p], kind)
        # to be written, to stay in all caches, data
        builder.call(function, [builder.bitcast(pointer, i8p), i32(1), i32(3), i32(1)])
        return context.get_dummy_value()

    return types.void(rows, uint64), generate


prefetch = intrinsic(_prefetch)


# Scanning


@inlined
def check_header(data: Any, at: Any, left: Any, frame_size_max: Any) -> Any:
    """WELL for a complete MESSAGE, else why it is not one. Reads no more than `left` bytes at `at`."""
    if left < 4:
        return END if left == 0 else INCOMPLETE
    length = load32(data, at)
    if length == 0:
        return MALFORMED
    if length > frame_size_max:
        return OVERSIZED
    if left < 5:
        return INCOMPLETE
    if load8(data, at + 4) != MESSAGE:
        return OTHER
    return INCOMPLETE if length > left - 4 else WELL


@compiled(types.UniTuple(int64, 3)(BYTES, int64, int64, int64, I64S, U64S, U64S, I64S, I32S))
def scan(
    data: Any,
    start: Any,
    end: Any,
    frame_size_max: Any,
    starts: Any,
    stream_ids: Any,
    message_ids: Any,
    event_times: Any,
    key_sizes: Any,
) -> Any:
    """Returns the number of messages, why the scan stopped, and the largest length.

    The columns have room for one number more than MESSAGE frames of the smallest size fit between `start` and `end`.
    """
    count, largest, at = 0, 0, start
    while True:
        stop = check_header(data, at, end - at, frame_size_max)
        if stop != WELL:
            break
        length = load32(data, at)
        key_size = load16(data, at + HEAD - 2) if length >= HEAD - 4 else length
        if key_size > length - (HEAD - 4):
            stop = MALFORMED
            break
        starts[count] = at
        stream_ids[count] = load64(data, at + 5)
        message_ids[count] = load64(data, at + 13)
        event_times[count] = load64_signed(data, at + 21)
        key_sizes[count] = key_size
        largest = max(largest, length)
        at += 4 + length
        count += 1
    starts[count] = at
    return count, stop, largest


# The table of streams: open addressing, a power of two of rows, at most half of them used


@inlined
def first_row(rows: Any, seed: Any, stream_id: Any) -> Any:
    mixed = (stream_id ^ seed) * uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> uint64(29))) * uint64(0xBF58476D1CE4E5B9)
    return (mixed ^ (mixed >> uint64(32))) & uint64(rows.shape[0] - 1)


@inlined
def find_row(rows: Any, seed: Any, stream_id: Any) -> Any:
    """The row of this stream, or the empty one where it would be."""
    mask = uint64(rows.shape[0] - 1)
    row = first_row(rows, seed, stream_id)
    while rows[row, STATE] != EMPTY and rows[row, ID] != stream_id:
        row = (row + uint64(1)) & mask
    return row


@compiled(int64(ROWS, uint64, uint64))
def find(rows: Any, seed: Any, stream_id: Any) -> Any:
    return int64(find_row(rows, seed, stream_id))


@compiled(int64(ROWS, ROWS, uint64))
def move(old: Any, new: Any, seed: Any) -> Any:
    """Put the open streams of one table into an empty one; returns how many there are."""
    count = 0
    for row in range(old.shape[0]):
        if old[row, STATE] >= OPEN:
            place = find_row(new, seed, old[row, ID])
            new[place, ID], new[place, NEXT_ID], new[place, STATE] = old[row, ID], old[row, NEXT_ID], old[row, STATE]
            new[place, TOUCHED] = old[row, TOUCHED]
            count += 1
    return count


@compiled(uint64(ROWS, uint64, uint64, uint64, uint64, uint64))
def open_row(rows: Any, seed: Any, stream_id: Any, next_id: Any, touched: Any, state: Any) -> Any:
    """Open the stream, in a table that has room for it; returns the state it had before."""
    row = find_row(rows, seed, stream_id)
    before = rows[row, STATE]
    rows[row, ID], rows[row, NEXT_ID], rows[row, TOUCHED], rows[row, STATE] = stream_id, next_id, touched, state
    return before


# Admission


@inlined
def to_microseconds(time: Any, scale: Any) -> Any:
    """`scale`: multiplier, divisor, the lowest and the highest time that can be multiplied."""
    multiplier, divisor, low, high = scale
    if time > high:
        return int64(I64_MAX)
    if time < low:
        return int64(I64_MIN)
    return time * multiplier if divisor == 1 else time // divisor


@inlined
def touch(rows: Any, row: Any, touched: Any, streams: Any, slot: Any) -> Any:
    """The first message of a stream in this run: its slot is the next one."""
    stream_ids, last_ids, highest_times, routes, previous_ids = streams
    rows[row, TOUCHED] = touched
    stream_ids[slot] = rows[row, ID]
    last_ids[slot] = previous_ids[slot] = rows[row, NEXT_ID] - uint64(1)
    highest_times[slot] = I64_MIN
    routes[slot] = rows[row, STATE] - uint64(OPEN)


@inlined
def count_streams(streams: Any, count: Any, totals: Any) -> Any:
    """Count the streams with messages to store."""
    _, last_ids, _, routes, previous_ids = streams
    for slot in range(count):
        totals[2, routes[slot]] += 1 if last_ids[slot] != previous_ids[slot] else 0


SCALE = types.UniTuple(int64, 4)
INGEST = types.UniTuple(int64, 2)
MESSAGES = types.Tuple((I64S, U64S, U64S, I64S))
STREAMS = types.Tuple((U64S, U64S, I64S, U8S, U64S))
TOTALS = types.int64[:, ::1]


@compiled(types.UniTuple(int64, 3)(MESSAGES, ROWS, uint64, uint64, SCALE, INGEST, U8S, U8S, I64S, STREAMS, TOTALS))
def admit(
    messages: Any,
    rows: Any,
    seed: Any,
    mark: Any,
    scale: Any,
    ingest: Any,
    routes: Any,
    dead: Any,
    times: Any,
    streams: Any,
    totals: Any,
) -> Any:
    """Returns the number of messages checked, the problem with the next one, and the number of streams touched.

    `mark` is a number that this table has not had before. `ingest`: which messages get the time of arrival, and that
    time. The columns have room for one number for each message. `totals` has three rows of zeros, to which the
    numbers of each route are added: messages, bytes as stored events, streams.
    """
    starts, stream_ids, message_ids, event_times = messages
    _, last_ids, highest_times, _, _ = streams
    mode, arrival = ingest
    touched_count, slot, problem = 0, 0, NO_PROBLEM
    row, stream_id, count = uint64(0), uint64(0), 0
    for count in range(stream_ids.shape[0]):
        if count + AHEAD < stream_ids.shape[0] and stream_ids[count + AHEAD] != stream_id:
            prefetch(rows, first_row(rows, seed, stream_ids[count + AHEAD]))
        if touched_count == 0 or stream_ids[count] != stream_id:
            stream_id = stream_ids[count]
            row = find_row(rows, seed, stream_id)
            if rows[row, STATE] < OPEN:
                problem = NOT_OPEN
                break
            if rows[row, TOUCHED] >> uint64(SLOT_BITS) != mark:
                touch(rows, row, mark << uint64(SLOT_BITS) | uint64(touched_count), streams, touched_count)
                touched_count += 1
            slot = int64(rows[row, TOUCHED] & uint64(SLOT_MASK))
        message_id = message_ids[count]
        if message_id == uint64(U64_MAX):
            problem = RESERVED_ID
            break
        time = event_times[count]
        has_none = mode >= NONE_ARRIVES and time == I64_MIN
        time = arrival if has_none or (mode == ZERO_ARRIVES and time == 0) else to_microseconds(time, scale)
        times[count] = time
        route = uint64(DROPPED)
        dead[count] = 0
        if message_id >= rows[row, NEXT_ID]:
            is_dead = has_none and mode == NONE_DIES
            dead[count] = is_dead
            route = route if is_dead else rows[row, STATE] - uint64(OPEN)
            rows[row, NEXT_ID] = message_id + uint64(1)
            last_ids[slot] = message_id
            if not has_none:
                highest_times[slot] = max(highest_times[slot], time)
        routes[count] = route
        totals[0, route] += 1
        totals[1, route] += starts[count + 1] - starts[count] + EXTRA
    count_streams(streams, touched_count, totals)
    return count if problem else stream_ids.shape[0], problem, touched_count


# Rewriting


@inlined
def write_events(data: Any, messages: Any, routes: Any, places: Any, out: Any) -> Any:
    """`i32 0 · i32 length · u64 stream id · u64 event id · i64 event time · sb key · u16 0 · payload`. From the stream
    id on these are the bytes of the frame, except for the event time and two bytes before the payload.
    """
    starts, key_sizes, times = messages
    for index in range(routes.shape[0]):
        route = routes[index]
        if route >= places.shape[1]:
            continue
        at, to = starts[index], places[0, route]
        size = starts[index + 1] - at
        key_size = int64(key_sizes[index])
        store64(out, to, size + EXTRA - 8)
        copy(out, to + 8, data, at + 5, HEAD - 5 + key_size)
        store64(out, to + 24, times[index])
        store16(out, to + 34 + key_size, 0)
        copy(out, to + 36 + key_size, data, at + HEAD + key_size, size - HEAD - key_size)
        places[0, route] = to + size + EXTRA


@inlined
def write_streams(streams: Any, places: Any, block: Any) -> Any:
    """The id, last message id and highest event time of the streams with messages to store."""
    stream_ids, last_ids, highest_times, routes, previous_ids = streams
    for slot in range(stream_ids.shape[0]):
        if last_ids[slot] != previous_ids[slot] and routes[slot] < places.shape[1]:
            to = places[1, routes[slot]]
            block[0, to], block[1, to], block[2, to] = stream_ids[slot], last_ids[slot], uint64(highest_times[slot])
            places[1, routes[slot]] = to + 1


@compiled(types.void(BYTES, types.Tuple((I64S, I32S, I64S)), U8S, STREAMS, TOTALS, U8S, ROWS))
def rewrite(data: Any, messages: Any, routes: Any, streams: Any, places: Any, out: Any, block: Any) -> Any:
    """Write the admitted messages into `out`, as stored events, and their streams into the three rows of `block`: in
    order, those of each route from its two `places` on, which are advanced. Routes without messages are skipped.
    """
    write_events(data, messages, routes, places, out)
    write_streams(streams, places, block)


# ACKs


@compiled(types.void(U64S, U64S, U8S))
def write_acked(stream_ids: Any, last_ids: Any, out: Any) -> Any:
    """The pairs of an ACK, into 16 bytes for each stream."""
    for index in range(stream_ids.shape[0]):
        store64(out, 16 * index, int64(stream_ids[index]))
        store64(out, 16 * index + 8, int64(last_ids[index]))
