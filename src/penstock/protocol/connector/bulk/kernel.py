"""The kernels, compiled by numba: loops over the messages of a buffer that touch each byte at most once.

They have no bounds checks. What they may touch is decided by comparisons that stand before every access: `scan` reads
nothing outside `start .. end` of the buffer, whatever the bytes; the others read and write by the columns that `scan`
made, and into arrays whose sizes `fast.py` has made from those.

numba's cache knows a function by its own file alone, so all that is compiled together stands in this one, the numbers
of `columns.py` (Stop, Problem, DROPPED, HEAD_SIZE) included; a test compares them.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.types import int64, uint64

F = TypeVar("F", bound=Callable[..., Any])

BYTES = types.Array(types.uint8, 1, "C", readonly=True)
U8S, I32S, I64S, U64S = types.uint8[::1], types.int32[::1], types.int64[::1], types.uint64[::1]
ROWS = types.uint64[:, ::1]

WELL, END, INCOMPLETE, OTHER, MALFORMED, OVERSIZED = -1, 0, 1, 2, 3, 4
NO_PROBLEM, NOT_OPEN, RESERVED_ID = 0, 1, 2
MESSAGE, HEAD, EXTRA, DROPPED = 5, 31, 5, 255
I64_MIN, I64_MAX, U64_MAX = -(2**63), 2**63 - 1, 2**64 - 1

ID, NEXT_ID, STATE, MARK, SLOT, ROW_SIZE = 0, 1, 2, 3, 4, 8
"""A row of a stream table, one cache line: `NEXT_ID` is the last message id plus 1, so that "nothing yet" is 0."""
AHEAD = 16
"""Messages: so far ahead a row is fetched from memory before it is looked at."""
EMPTY, SHUT, OPEN = 0, 1, 2
"""STATE: no stream, one that was open once, or OPEN + its route."""


def compiled(signature: Any) -> Callable[[F], F]:
    """Compile now, or take it from numba's cache: beside this file, else in the user's cache directory.

    When neither can be written, every start compiles (some seconds); NUMBA_CACHE_DIR names a directory that can.
    """

    def decorate(function: F) -> F:
        try:
            return numba.njit(signature, cache=True, nogil=True)(function)  # type: ignore[no-any-return]
        except RuntimeError:  # "cannot cache function: no locator available"
            return numba.njit(signature, nogil=True)(function)  # type: ignore[no-any-return]

    return decorate


def inlined(function: F) -> F:
    return numba.njit(function)  # type: ignore[no-any-return]


# Loads, stores and memcpy: big-endian, unaligned, at a position that the caller has checked


def _pointer(context: Any, builder: Any, array_type: Any, array: Any, at: Any) -> Any:
    return builder.gep(context.make_array(array_type)(context, builder, array).data, [at])


def _load(bits: int, result: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = _pointer(context, builder, signature.args[0], *args)
        value = builder.load(builder.bitcast(pointer, ir.IntType(bits).as_pointer()), align=1)
        value = value if bits == 8 else builder.bswap(value)
        return builder.zext(value, ir.IntType(64)) if bits < 64 else value

    def load(typing_context: Any, array: Any, at: Any) -> Any:  # noqa: ARG001 (numba's signature)
        return result(array, int64), generate

    return intrinsic(load)


def _store(bits: int) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = _pointer(context, builder, signature.args[0], *args[:2])
        value = builder.trunc(args[2], ir.IntType(bits)) if bits < 64 else args[2]
        builder.store(builder.bswap(value), builder.bitcast(pointer, ir.IntType(bits).as_pointer()), align=1)
        return context.get_dummy_value()

    def store(typing_context: Any, array: Any, at: Any, value: Any) -> Any:  # noqa: ARG001
        return types.void(array, int64, int64), generate

    return intrinsic(store)


def _copy(typing_context: Any, target: Any, to: Any, source: Any, at: Any, size: Any) -> Any:  # noqa: ARG001
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        destination = _pointer(context, builder, signature.args[0], *args[:2])
        origin = _pointer(context, builder, signature.args[2], *args[2:4])
        cgutils.raw_memcpy(builder, destination, origin, args[4], 1)
        return context.get_dummy_value()

    return types.void(target, int64, source, int64, int64), generate


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


load8, load16, load32 = _load(8, int64), _load(16, int64), _load(32, int64)
load64, load64_signed = _load(64, uint64), _load(64, int64)
store16, store32, store64 = _store(16), _store(32), _store(64)
copy = intrinsic(_copy)
prefetch = intrinsic(_prefetch)


# Scanning


@inlined
def check_header(data: Any, at: Any, left: Any, frame_size_max: Any) -> Any:
    """WELL for a MESSAGE that is there as a whole; else why it is not. Reads no more than `left` bytes at `at`."""
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
    """How many messages there are, why there are no more, the largest length.

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
            count += 1
    return count


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
def touch(rows: Any, row: Any, mark: Any, touched: Any, results: Any, previous_ids: Any, count: Any) -> Any:
    """The first message of a stream in this run: give it the next place among the results."""
    counts, duplicates, highest_times = results
    previous_ids[count] = rows[row, NEXT_ID] - uint64(1)
    rows[row, MARK] = mark
    rows[row, SLOT] = count
    touched[count] = row
    counts[count] = duplicates[count] = 0
    highest_times[count] = I64_MIN


@inlined
def gather(rows: Any, touched: Any, count: Any, stream_ids: Any, last_ids: Any, routes: Any) -> Any:
    for slot in range(count):
        row = touched[slot]
        stream_ids[slot] = rows[row, ID]
        last_ids[slot] = rows[row, NEXT_ID] - uint64(1)
        routes[slot] = rows[row, STATE] - uint64(OPEN)


SCALE = types.UniTuple(int64, 4)
INGEST = types.UniTuple(int64, 2)
MESSAGES = types.Tuple((U64S, U64S, I64S))
RESULTS = types.UniTuple(I64S, 3)
STREAMS = types.Tuple((U64S, U64S, U8S, U64S))


@compiled(types.UniTuple(int64, 3)(MESSAGES, ROWS, uint64, uint64, SCALE, INGEST, U8S, I64S, I64S, RESULTS, STREAMS))
def admit(
    messages: Any,
    rows: Any,
    seed: Any,
    mark: Any,
    scale: Any,
    ingest: Any,
    routes: Any,
    times: Any,
    touched: Any,
    results: Any,
    streams: Any,
) -> Any:
    """How many messages were looked at, what is wrong with the next one, how many streams were touched.

    `mark` is a number that this table has not had before. `ingest`: whether a time of 0 means the arrival, and when
    that was. All the arrays have room for one number for each message.
    """
    stream_ids, message_ids, event_times = messages
    counts, duplicates, highest_times = results
    touched_ids, last_ids, stream_routes, previous_ids = streams
    use_ingest, arrival = ingest
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
            if rows[row, MARK] != mark:
                touch(rows, row, mark, touched, results, previous_ids, touched_count)
                touched_count += 1
            slot = int64(rows[row, SLOT])
        message_id = message_ids[count]
        if message_id == uint64(U64_MAX):
            problem = RESERVED_ID
            break
        time = event_times[count]
        time = arrival if use_ingest and time == 0 else to_microseconds(time, scale)
        times[count] = time
        if message_id < rows[row, NEXT_ID]:
            routes[count] = DROPPED
            duplicates[slot] += 1
        else:
            routes[count] = rows[row, STATE] - uint64(OPEN)
            rows[row, NEXT_ID] = message_id + uint64(1)
            counts[slot] += 1
            highest_times[slot] = max(highest_times[slot], time)
    gather(rows, touched, touched_count, touched_ids, last_ids, stream_routes)
    return count if problem else stream_ids.shape[0], problem, touched_count


# Rewriting


@compiled(types.UniTuple(int64, 2)(I64S, U8S, int64))
def measure(starts: Any, routes: Any, route: Any) -> Any:
    """How many messages take this route, and their size as stored events."""
    count, size = 0, 0
    for index in range(routes.shape[0]):
        if routes[index] == route:
            count += 1
            size += starts[index + 1] - starts[index] + EXTRA
    return count, size


@compiled(int64(BYTES, I64S, I32S, I64S, U8S, int64, U8S))
def rewrite(data: Any, starts: Any, key_sizes: Any, times: Any, routes: Any, route: Any, out: Any) -> Any:
    """Fill `out`, which is as large as `measure` said, with the messages of this route as stored events:

    `i32 0 · i32 length · u64 stream id · u64 event id · i64 event time · sb key · u16 0 · payload`. From the stream id
    on that is the frame, but for the event time, and two bytes before the payload.
    """
    to = 0
    for index in range(routes.shape[0]):
        if routes[index] != route:
            continue
        at = starts[index]
        size = starts[index + 1] - at
        key_size = int64(key_sizes[index])
        store64(out, to, size + EXTRA - 8)
        copy(out, to + 8, data, at + 5, HEAD - 5 + key_size)
        store64(out, to + 24, times[index])
        store16(out, to + 34 + key_size, 0)
        copy(out, to + 36 + key_size, data, at + HEAD + key_size, size - HEAD - key_size)
        to += size + EXTRA
    return to
