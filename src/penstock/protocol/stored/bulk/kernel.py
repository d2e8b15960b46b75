"""The kernels that decode, compiled by numba: loops over the events of a buffer.

They are compiled without bounds checks. Comparisons before every access decide what they may touch: the scans read
nothing outside the buffer, whatever the bytes; the others read and write only what the scans have found, into arrays
that `codec.py` has allocated accordingly.

numba's cache tracks only a function's own file, so everything that is compiled together is in this one, except the
intrinsics. That includes copies of the constants of `event.py`; a test compares them.
"""

from typing import Any

from numba import types
from numba.types import int64

from penstock.protocol.intrinsics import (
    BYTES,
    I32S,
    I64S,
    U8S,
    compiled,
    copy,
    inlined,
    load8,
    load16,
    load32,
    load64_signed,
)

HEADER, KEY_START, LENGTH_MIN, LENGTH_MAX = 8, 34, 28, 2**24 - 9
NO_TIME = -(2**63)

WELL, NO_EVENT, TOO_FEW, KEY, METADATA = 0, 1, 2, 3, 4
"""Why a scan stopped where it did: WELL at the end of the whole events, else what is wrong with the next one."""


@compiled(types.UniTuple(int64, 5)(BYTES, int64, I64S, I64S, I64S, I64S, I32S, I32S))
def scan(
    data: Any,
    offset: Any,
    offsets: Any,
    stream_ids: Any,
    event_ids: Any,
    times: Any,
    key_offsets: Any,
    value_offsets: Any,
) -> Any:
    """How many events there are, where they end, why there are no more, how many have no time, bytes of metadata.

    The columns have room for one number more than stored events of the smallest size fit into `data`.
    """
    count, at, why, without_time, metadata_total = 0, 0, WELL, 0, 0
    keys, values = 0, 0
    key_offsets[0] = value_offsets[0] = 0
    while data.shape[0] - at >= HEADER:
        length = load32(data, at + 4)
        if load32(data, at) != 0 or length > LENGTH_MAX:
            why = NO_EVENT
            break
        if length == 0:
            at += HEADER
            continue
        if length < LENGTH_MIN:
            why = TOO_FEW
            break
        if length > data.shape[0] - at - HEADER:
            break
        key_size = load16(data, at + KEY_START - 2)
        if key_size > length - LENGTH_MIN:
            why = KEY
            break
        metadata_size = load16(data, at + KEY_START + key_size)
        if metadata_size > length - LENGTH_MIN - key_size:
            why = METADATA
            break
        offsets[count] = offset + at
        stream_ids[count] = load64_signed(data, at + 8)
        event_ids[count] = load64_signed(data, at + 16)
        time = load64_signed(data, at + 24)
        times[count] = time
        without_time += time == NO_TIME
        metadata_total += metadata_size
        keys += key_size
        values += length - LENGTH_MIN - key_size - metadata_size
        count += 1
        key_offsets[count] = keys
        value_offsets[count] = values
        at += HEADER + length
    return count, at, why, without_time, metadata_total


@compiled(types.void(BYTES, int64, I64S, I32S, U8S))
def gather_keys(data: Any, offset: Any, offsets: Any, key_offsets: Any, out: Any) -> Any:
    for row in range(offsets.shape[0]):
        start = int64(key_offsets[row])
        copy(out, start, data, offsets[row] - offset + KEY_START, key_offsets[row + 1] - start)


@compiled(types.void(BYTES, int64, I64S, I32S, I32S, U8S))
def gather_values(data: Any, offset: Any, offsets: Any, key_offsets: Any, value_offsets: Any, out: Any) -> Any:
    for row in range(offsets.shape[0]):
        metadata = offsets[row] - offset + KEY_START + key_offsets[row + 1] - key_offsets[row]
        start = int64(value_offsets[row])
        size = value_offsets[row + 1] - start
        copy(out, start, data, metadata + 2 + load16(data, metadata), size)


@compiled(types.UniTuple(int64, 3)(BYTES, int64, I64S, I32S))
def scan_raw(data: Any, offset: Any, offsets: Any, value_offsets: Any) -> Any:
    """As `scan`, for raw events: count, end, why. Room for one number more than headers fit into `data`."""
    count, at, values = 0, 0, 0
    value_offsets[0] = 0
    while data.shape[0] - at >= HEADER:
        length = load32(data, at + 4)
        if load32(data, at) != 0 or length > LENGTH_MAX:
            return count, at, NO_EVENT
        if length > data.shape[0] - at - HEADER:
            break
        offsets[count] = offset + at
        values += length
        count += 1
        value_offsets[count] = values
        at += HEADER + length
    return count, at, WELL


@compiled(types.void(BYTES, int64, I64S, I32S, U8S))
def gather_raw(data: Any, offset: Any, offsets: Any, value_offsets: Any, out: Any) -> Any:
    for row in range(offsets.shape[0]):
        start = int64(value_offsets[row])
        copy(out, start, data, offsets[row] - offset + HEADER, value_offsets[row + 1] - start)


# Origins: two strings of a map in msgpack. msgpack's own library would build Python objects for every event.


BROKEN = -1
NO_TEXT = -1


@inlined
def load_length(data: Any, at: Any, end: Any, width: Any) -> Any:
    """The number of `width` bytes (1, 2 or 4) at `at`; BROKEN if they are missing."""
    if width > end - at:
        return int64(BROKEN)
    if width == 1:
        return load8(data, at)
    return load16(data, at) if width == 2 else load32(data, at)


@inlined
def end_of(at: Any, size: Any, end: Any) -> Any:
    """Where `size` bytes at `at` end; BROKEN if that is after `end`."""
    return at + size if size <= end - at else int64(BROKEN)


@inlined
def fixed_size(lead: Any) -> Any:
    """Bytes after the lead byte, for items of a fixed size; BROKEN for everything else."""
    if lead == 0xC0 or lead == 0xC2 or lead == 0xC3:
        return int64(0)
    if lead == 0xCA or lead == 0xCB:
        return int64(4) << (lead - 0xCA)
    if 0xCC <= lead <= 0xD3:
        return int64(1) << (lead & 3)
    if 0xD4 <= lead <= 0xD8:
        return int64(1) + (int64(1) << (lead - 0xD4))
    return int64(BROKEN)


@inlined
def sized_item(data: Any, at: Any, end: Any, lead: Any) -> Any:
    """An item that contains its length in bytes: where it ends, no inner items, and where the bytes of a str start."""
    first = 0xD9 if lead >= 0xD9 else 0xC7 if lead >= 0xC7 else 0xC4
    width = int64(1) << (lead - first)
    size = load_length(data, at, end, width)
    if size < 0:
        return int64(BROKEN), int64(0), int64(NO_TEXT)
    if first == 0xD9:
        return end_of(at + width, size, end), int64(0), at + width
    return end_of(at + width, size + (first == 0xC7), end), int64(0), int64(NO_TEXT)


@inlined
def long_item(data: Any, at: Any, end: Any, lead: Any) -> Any:
    """An item that contains its length; BROKEN for a byte that starts no item."""
    if lead >= 0xDC:
        width = int64(2) << (lead & 1)
        count = load_length(data, at, end, width)
        if count < 0:
            return int64(BROKEN), int64(0), int64(NO_TEXT)
        return at + width, count * (2 if lead >= 0xDE else 1), int64(NO_TEXT)
    if 0xC4 <= lead <= 0xC9 or 0xD9 <= lead <= 0xDB:
        return sized_item(data, at, end, lead)
    return int64(BROKEN), int64(0), int64(NO_TEXT)


@inlined
def item(data: Any, at: Any, end: Any) -> Any:
    """The item at `at`: where it ends, or its inner items start, or BROKEN; the number of inner items; where the bytes
    of a str start, or NO_TEXT.
    """
    if at >= end:
        return int64(BROKEN), int64(0), int64(NO_TEXT)
    lead = load8(data, at)
    at += 1
    if lead <= 0x7F or lead >= 0xE0:
        return at, int64(0), int64(NO_TEXT)
    if lead <= 0x9F:
        return at, (lead & 15) * (2 if lead <= 0x8F else 1), int64(NO_TEXT)
    if lead <= 0xBF:
        return end_of(at, lead & 31, end), int64(0), at
    size = fixed_size(lead)
    if size >= 0:
        return end_of(at, size, end), int64(0), int64(NO_TEXT)
    return long_item(data, at, end, lead)


@inlined
def skip(data: Any, at: Any, end: Any, inside: Any) -> Any:
    """Where the next `inside` items, including everything nested in them, end; or BROKEN."""
    while inside > 0 and at >= 0:
        at, more, _ = item(data, at, end)
        inside += more - 1
    return at


@inlined
def label_of(data: Any, at: Any, end: Any, labels: Any) -> Any:
    """0 for the bytes of "source", 1 for those of "stream", -1 for others. `labels` contains both."""
    if end - at != 6:
        return -1
    for label in range(2):
        same = True
        for index in range(6):
            same = same and data[at + index] == labels[label * 6 + index]
        if same:
            return label
    return -1


@inlined
def is_map(data: Any, at: Any) -> Any:
    lead = load8(data, at)
    return (lead & 0xF0) == 0x80 or (lead & 0xFE) == 0xDE


@inlined
def find_origin(data: Any, at: Any, end: Any, labels: Any) -> Any:
    """Whether the bytes from `at` to `end` are one map or none; start and end of its source, then of its stream."""
    source, source_end, stream, stream_end = int64(0), int64(0), int64(0), int64(0)
    if at == end:
        return True, source, source_end, stream, stream_end
    if not is_map(data, at):
        return False, source, source_end, stream, stream_end
    at, items, _ = item(data, at, end)
    while items > 0 and at >= 0:
        key_end, inside, text = item(data, at, end)
        label = -1 if text == NO_TEXT or key_end < 0 else label_of(data, text, key_end, labels)
        at = skip(data, key_end, end, inside)
        if at < 0:
            break
        value_end, inside, text = item(data, at, end)
        if text == NO_TEXT:
            text, value_there = int64(0), int64(0)
        else:
            value_there = value_end
        if label == 0:
            source, source_end = text, value_there
        elif label == 1:
            stream, stream_end = text, value_there
        at = skip(data, value_end, end, inside)
        items -= 2
    return at == end, source, source_end, stream, stream_end


@compiled(int64(BYTES, int64, I64S, I32S, BYTES, types.UniTuple(I64S, 2), types.UniTuple(I32S, 2)))
def scan_origins(
    data: Any, offset: Any, offsets: Any, key_offsets: Any, labels: Any, starts: Any, text_offsets: Any
) -> Any:
    """Where the events' sources and streams start in `data`, and the offsets of both as columns of bytes. Returns the
    first row whose metadata is not a map, or the number of rows.
    """
    source_starts, stream_starts = starts
    source_offsets, stream_offsets = text_offsets
    sources, streams = 0, 0
    source_offsets[0] = stream_offsets[0] = 0
    for row in range(offsets.shape[0]):
        at = offsets[row] - offset + KEY_START + key_offsets[row + 1] - key_offsets[row]
        end = at + 2 + load16(data, at)
        well, source, source_end, stream, stream_end = find_origin(data, at + 2, end, labels)
        if not well:
            return row
        sources += source_end - source
        streams += stream_end - stream
        source_starts[row], stream_starts[row] = source, stream
        source_offsets[row + 1], stream_offsets[row + 1] = sources, streams
    return offsets.shape[0]


@compiled(types.void(BYTES, int64, I64S, I32S, I64S, I32S))
def scan_metadata(data: Any, offset: Any, offsets: Any, key_offsets: Any, starts: Any, metadata_offsets: Any) -> Any:
    """Where the events' metadata start in `data`, and the offsets of all as a column of bytes."""
    total = 0
    metadata_offsets[0] = 0
    for row in range(offsets.shape[0]):
        at = offsets[row] - offset + KEY_START + key_offsets[row + 1] - key_offsets[row]
        total += load16(data, at)
        starts[row] = at + 2
        metadata_offsets[row + 1] = total


@inlined
def next_pair(data: Any, at: Any, end: Any, labels: Any) -> Any:
    """The label of the pair at `at` in a map, as `label_of` returns it, and where it ends; BROKEN if its key is not a
    str, or it is incomplete.
    """
    key_end, _, text = item(data, at, end)
    if text == NO_TEXT or key_end < 0:
        return int64(-1), int64(BROKEN)
    return label_of(data, text, key_end, labels), skip(data, key_end, end, int64(1))


@compiled(int64(BYTES, I64S, BYTES, types.UniTuple(I64S, 2), U8S, I64S, I64S))
def gather_pairs(data: Any, offsets: Any, labels: Any, origins: Any, out: Any, pair_offsets: Any, counts: Any) -> Any:
    """The pairs of maps one after the other, and their number in each row, without the origins, which are stored apart:
    `origins` are the offsets of the sources and the streams. `out` has room for all of `data`. Returns the first row
    whose bytes are not a map with str keys, or the number of rows.
    """
    sources, streams = origins
    to = int64(0)
    pair_offsets[0] = 0
    for row in range(counts.shape[0]):
        at, end, count, items = offsets[row], offsets[row + 1], 0, int64(0)
        if at < end:
            if not is_map(data, at):
                return row
            at, items, _ = item(data, at, end)
        while items > 0 and at >= 0:
            start = at
            label, at = next_pair(data, at, end, labels)
            is_stored_apart = (label == 0 and sources[row] < sources[row + 1]) or (
                label == 1 and streams[row] < streams[row + 1]
            )
            if at >= 0 and not is_stored_apart:
                copy(out, to, data, start, at - start)
                to += at - start
                count += 1
            items -= 2
        if at != end:
            return row
        counts[row] = count
        pair_offsets[row + 1] = to
    return counts.shape[0]


@compiled(types.void(BYTES, I64S, I32S, U8S))
def gather(data: Any, starts: Any, offsets: Any, out: Any) -> Any:
    """Copy from `starts` in `data`, with the lengths of the offsets."""
    for row in range(starts.shape[0]):
        start = int64(offsets[row])
        copy(out, start, data, starts[row], offsets[row + 1] - start)
