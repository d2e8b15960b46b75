"""The kernels that encode, compiled by numba: loops over the rows of columns.

They have no bounds checks: `measure` checks every offset of the columns before `write` uses them, into an array that
`codec.py` has allocated with the measured size.

numba's cache tracks only a function's own file, so everything that is compiled together is in this one, except the
intrinsics. That includes copies of the constants of `event.py`; a test compares them.
"""

from typing import Any

from numba import types
from numba.types import int64

from penstock.protocol.intrinsics import (
    BYTES,
    I64S,
    U8S,
    compiled,
    copy,
    inlined,
    store8,
    store16,
    store32,
    store64,
)

HEADER, KEY_START, LENGTH_MIN, LENGTH_MAX, SHORT_MAX = 8, 34, 28, 2**24 - 9, 2**16 - 1

WELL, OFFSETS, LARGE_KEY, LARGE_METADATA, LARGE_EVENT = 0, 1, 2, 3, 4
"""What is wrong with a row that is to be encoded."""


@inlined
def text_size(size: Any) -> Any:
    """Bytes of a pair of metadata: a label, and a str of `size` bytes; 0 if that is empty."""
    if size == 0:
        return int64(0)
    if size < 32:
        return 8 + size
    if size < 256:
        return 9 + size
    return 10 + size if size < 65536 else 12 + size


@inlined
def metadata_size(source: Any, stream: Any, pairs: Any, count: Any) -> Any:
    """Bytes of a map with an origin and `count` other pairs, which take `pairs` bytes; 0 if all of it is empty."""
    count += (1 if source > 0 else 0) + (1 if stream > 0 else 0)
    if count == 0:
        return int64(0)
    return text_size(source) + text_size(stream) + pairs + (1 if count < 16 else 3)


@inlined
def is_in_order(offsets: Any, size: Any) -> Any:
    """Whether the offsets ascend, within `size` bytes."""
    before = int64(0)
    for index in range(offsets.shape[0]):
        if offsets[index] < before:
            return False
        before = offsets[index]
    return before <= size


COLUMNS = types.UniTuple(I64S, 5)
DATA = types.UniTuple(BYTES, 5)


@compiled(types.UniTuple(int64, 3)(COLUMNS, types.UniTuple(int64, 5), I64S, I64S))
def measure(columns: Any, sizes: Any, counts: Any, starts: Any) -> Any:
    """Fill `starts` with the position of each event; returns what is wrong, with which row, and how large it would be.

    The columns are the offsets of values, keys, sources, streams and other pairs of metadata, all as long as `starts`;
    `sizes` their data's, `counts` how many of those pairs each row has. If there are pairs of one row only, they are
    those of all rows.
    """
    values, keys, sources, streams, pairs = columns
    step = 0 if counts.shape[0] == 1 else 1
    for index in range(5):
        if not is_in_order(columns[index], sizes[index]):
            return OFFSETS, int64(0), int64(0)
    at = int64(0)
    starts[0] = 0
    for row in range(starts.shape[0] - 1):
        key = keys[row + 1] - keys[row]
        if key > SHORT_MAX:
            return LARGE_KEY, row, key
        source, stream = sources[row + 1] - sources[row], streams[row + 1] - streams[row]
        pair = step * row
        metadata = metadata_size(source, stream, pairs[pair + 1] - pairs[pair], counts[pair])
        if metadata > SHORT_MAX:
            return LARGE_METADATA, row, metadata
        length = LENGTH_MIN + key + metadata + values[row + 1] - values[row]
        if length > LENGTH_MAX:
            return LARGE_EVENT, row, length
        at += HEADER + length
        starts[row + 1] = at
    return WELL, int64(0), int64(0)


@inlined
def store_text(out: Any, to: Any, labels: Any, label: Any, data: Any, at: Any, size: Any) -> Any:
    """Store a pair of metadata, unless it is empty; returns where it ends."""
    if size == 0:
        return to
    store8(out, to, 0xA6)
    copy(out, to + 1, labels, 6 * label, 6)
    to += 7
    if size < 32:
        store8(out, to, 0xA0 + size)
        to += 1
    elif size < 256:
        store16(out, to, 0xD900 + size)
        to += 2
    else:
        store8(out, to, 0xDA)
        store16(out, to + 1, size)
        to += 3
    copy(out, to, data, at, size)
    return to + size


@inlined
def store_origin(out: Any, to: Any, labels: Any, columns: Any, data: Any, row: Any) -> Any:
    """Store the pairs of the origin; returns where they end."""
    _, _, sources, streams, _ = columns
    _, _, source_data, stream_data, _ = data
    to = store_text(out, to, labels, 0, source_data, sources[row], sources[row + 1] - sources[row])
    return store_text(out, to, labels, 1, stream_data, streams[row], streams[row + 1] - streams[row])


@compiled(types.void(COLUMNS, DATA, I64S, types.UniTuple(I64S, 3), BYTES, I64S, U8S))
def write(columns: Any, data: Any, counts: Any, numbers: Any, labels: Any, starts: Any, out: Any) -> Any:
    """Fill `out` with the events, at the positions that `measure` has found. `numbers`: stream ids, event ids,
    times.

    Arrays are passed on to functions of ours only for rows with an origin: that takes longer than all the rest.
    """
    values, keys, sources, streams, pairs = columns
    value_data, key_data, _, _, pair_data = data
    stream_ids, event_ids, times = numbers
    step = 0 if counts.shape[0] == 1 else 1
    for row in range(starts.shape[0] - 1):
        to = starts[row]
        key = keys[row + 1] - keys[row]
        store32(out, to, 0)
        store32(out, to + 4, starts[row + 1] - to - HEADER)
        store64(out, to + 8, stream_ids[row])
        store64(out, to + 16, event_ids[row])
        store64(out, to + 24, times[row])
        store16(out, to + 32, key)
        to += KEY_START
        if key > 0:
            copy(out, to, key_data, keys[row], key)
            to += key
        source, stream = sources[row + 1] - sources[row], streams[row + 1] - streams[row]
        size, count = pairs[step * row + 1] - pairs[step * row], counts[step * row]
        store16(out, to, metadata_size(source, stream, size, count))
        count += (1 if source > 0 else 0) + (1 if stream > 0 else 0)
        to += 2
        if count > 0:
            if count < 16:
                store8(out, to, 0x80 + count)
                to += 1
            else:  # 64 KiB cannot contain a larger map than this can
                store8(out, to, 0xDE)
                store16(out, to + 1, count)
                to += 3
            if source + stream > 0:
                to = store_origin(out, to, labels, columns, data, row)
            copy(out, to, pair_data, pairs[step * row], size)
            to += size
        copy(out, to, value_data, values[row], values[row + 1] - values[row])
