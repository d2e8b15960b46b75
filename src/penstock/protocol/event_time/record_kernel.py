"""Finds a field in records of CSV and in MessagePack values: kernels compiled by numba.

Both validate the whole event. They are compiled without bounds checks: they read nothing outside `starts .. ends` of a
row, because comparisons before every access decide what they may touch, and write only to their own row of the columns.
"""

from typing import Any

from numba import types
from numba.types import int64

from penstock.protocol.event_time.codes import (
    ESCAPED,
    FLOAT,
    INTEGER,
    MALFORMED,
    MISSING,
    NULL,
    OUT_OF_RANGE,
    TEXT,
    TIME,
    WRONG_TYPE,
)
from penstock.protocol.intrinsics import (
    BYTES,
    I64S,
    U8S,
    address_of,
    compiled,
    inlined,
    load8,
    load16,
    load32,
    load64_signed,
    peek8,
)
from penstock.protocol.stored.bulk.kernel import BROKEN, NO_TEXT, is_map, item, skip

QUOTE, COMMA, RETURN, NEWLINE = 0x22, 0x2C, 0x0D, 0x0A
SECOND_US, SECONDS_MAX, NANOSECONDS = 1_000_000, 253_402_300_800, 1_000_000_000


# CSV: one record of RFC 4180, and a line break after it. What Python's `csv` reads with `strict`.


@inlined
def end_of_plain(at: Any, end: Any) -> Any:
    """Where a field without quotes ends."""
    while at < end:
        lead = peek8(at)
        if lead in (COMMA, NEWLINE, RETURN):
            break
        at += 1
    return at


@inlined
def end_of_quoted(at: Any, end: Any) -> Any:
    """`at` is the byte after the opening quote. Where the closing quote is, or BROKEN; whether a quote is doubled."""
    doubled = False
    while at < end:
        if peek8(at) != QUOTE:
            at += 1
        elif end - at >= 2 and peek8(at + 1) == QUOTE:
            doubled = True
            at += 2
        else:
            return at, doubled
    return int64(BROKEN), doubled


@inlined
def is_blank(at: Any, end: Any) -> Any:
    """Whether nothing but line breaks follows."""
    while at < end:
        if peek8(at) != NEWLINE and peek8(at) != RETURN:
            return False
        at += 1
    return True


@inlined
def find_column(at: Any, end: Any, column: Any) -> Any:
    """The column of one record: its kind, start and end. Nothing between two commas is NULL."""
    kind, first, last = MISSING, at, at
    number = 0
    while True:
        start, found = at, TEXT
        if at < end and peek8(at) == QUOTE:
            start = at + 1
            close, doubled = end_of_quoted(start, end)
            if close < 0:
                return MALFORMED, at, at
            found = ESCAPED if doubled else TEXT
            at = close + 1
        else:
            close = end_of_plain(at, end)
            found = TEXT if close > start else NULL
            at = close
        if number == column:
            kind, first, last = found, start, close
        if at >= end:
            return kind, first, last
        if peek8(at) != COMMA:
            return kind if is_blank(at, end) else MALFORMED, first, last
        number += 1
        at += 1


@compiled(types.void(BYTES, I64S, I64S, int64, U8S, I64S, I64S))
def find_csv(data: Any, starts: Any, ends: Any, column: Any, kinds: Any, value_starts: Any, value_ends: Any) -> Any:
    """For each row from `starts` to `ends` of `data`: the kind of its column, and where its value starts and ends."""
    base = address_of(data)
    for row in range(starts.shape[0]):
        kind, first, last = find_column(base + starts[row], base + ends[row], column)
        kinds[row] = kind
        value_starts[row] = first - base
        value_ends[row] = last - base


# MessagePack: one value. Of a repeated name, the last one counts.


@inlined
def signed(data: Any, at: Any, lead: Any) -> Any:
    """An integer whose bytes start at `at`: its kind and value. A u64 beyond the range of i64 is not a valid time."""
    if lead == 0xCC:
        return INTEGER, load8(data, at)
    if lead == 0xCD:
        return INTEGER, load16(data, at)
    if lead == 0xCE:
        return INTEGER, load32(data, at)
    if lead == 0xD0:
        return INTEGER, (load8(data, at) ^ 0x80) - 0x80
    if lead == 0xD1:
        return INTEGER, (load16(data, at) ^ 0x8000) - 0x8000
    if lead == 0xD2:
        return INTEGER, (load32(data, at) ^ 0x80000000) - 0x80000000
    value = load64_signed(data, at)
    return OUT_OF_RANGE if lead == 0xCF and value < 0 else INTEGER, value


@inlined
def timestamp(data: Any, at: Any, size: Any) -> Any:
    """MessagePack's own type of times, whose bytes start at `at`."""
    seconds, nanoseconds = int64(0), int64(0)
    if size == 4:
        seconds = load32(data, at)
    elif size == 8:
        nanoseconds = (load32(data, at) >> 2) & 0x3FFFFFFF
        seconds = (load32(data, at) & 3) << 32 | load32(data, at + 4)
    elif size == 12:
        nanoseconds = load32(data, at)
        seconds = load64_signed(data, at + 4)
    else:
        return WRONG_TYPE, at
    if nanoseconds >= NANOSECONDS:
        return WRONG_TYPE, at
    if not -SECONDS_MAX < seconds < SECONDS_MAX:
        return OUT_OF_RANGE, at
    return TIME, seconds * SECOND_US + nanoseconds // 1000


@inlined
def extension(data: Any, at: Any, lead: Any, close: Any) -> Any:
    """An item of an extension type, from `at` to `close`: a timestamp, or nothing of use."""
    kind_at = at + 1 if 0xD4 <= lead <= 0xD8 else at + 1 + (int64(1) << (lead - 0xC7))
    if load8(data, kind_at) != 0xFF:  # the type -1
        return WRONG_TYPE, at
    return timestamp(data, kind_at + 1, close - kind_at - 1)


@inlined
def find_value(data: Any, at: Any, close: Any, text: Any) -> Any:
    """What the item from `at` to `close` is: its kind, start and end."""
    lead = load8(data, at)
    if text != NO_TEXT:
        return TEXT, text, close
    if lead == 0xC0:
        return NULL, at, at
    if lead <= 0x7F:
        return INTEGER, lead, at
    if lead >= 0xE0:
        return INTEGER, lead - 0x100, at
    if 0xCC <= lead <= 0xD3:
        kind, value = signed(data, at + 1, lead)
        return kind, value, at
    if lead == 0xCB:
        return FLOAT, load64_signed(data, at + 1), at
    if lead == 0xCA:
        # Its 32 bits: `extractor.py` widens them.
        return FLOAT, load32(data, at + 1), int64(BROKEN)
    if 0xD4 <= lead <= 0xD8 or 0xC7 <= lead <= 0xC9:
        kind, value = extension(data, at, lead, close)
        return kind, value, at
    return WRONG_TYPE, at, at


@inlined
def is_key(data: Any, at: Any, end: Any, path: Any, path_ends: Any, level: Any) -> Any:
    """Whether the bytes of a key are those of this step of the path."""
    first = path_ends[level - 1] if level > 0 else int64(0)
    if end - at != path_ends[level] - first:
        return False
    same = True
    for place in range(end - at):
        same = same and load8(data, at + place) == load8(path, first + place)
    return same


@inlined
def find_packed(data: Any, at: Any, end: Any, path: Any, path_ends: Any, pairs: Any) -> Any:
    """The field of one value: its kind, start and end. `pairs` has room for as many numbers as the path has steps: how
    many pairs are left in the maps that lie on the path.
    """
    kind, first, last = MISSING, at, at
    level, steps = 0, path_ends.shape[0]
    if at >= end or not is_map(data, at):
        return MISSING if at < end and skip(data, at, end, int64(1)) == end else MALFORMED, at, at
    at, inside, _ = item(data, at, end)
    pairs[0] = inside // 2
    while at >= 0 and level >= 0:
        if pairs[level] == 0:
            level -= 1
            continue
        pairs[level] -= 1
        key_end, inside, text = item(data, at, end)
        hit = text != NO_TEXT and key_end >= 0 and is_key(data, text, key_end, path, path_ends, level)
        at = skip(data, key_end, end, inside)
        if at < 0 or at >= end:
            at = int64(BROKEN)
            break
        start = at
        at, inside, text = item(data, start, end)
        if hit and at >= 0:
            kind = MISSING
            if level + 1 < steps and is_map(data, start):
                level += 1
                pairs[level] = inside // 2
                continue
            if level + 1 == steps:
                kind, first, last = find_value(data, start, at, text)
        at = skip(data, at, end, inside)
    return kind if at == end else MALFORMED, first, last


@compiled(types.void(BYTES, I64S, I64S, BYTES, I64S, I64S, U8S, I64S, I64S))
def find_msgpack(
    data: Any,
    starts: Any,
    ends: Any,
    path: Any,
    path_ends: Any,
    pairs: Any,
    kinds: Any,
    value_starts: Any,
    value_ends: Any,
) -> Any:
    """For each row from `starts` to `ends` of `data`: the kind of its field, and where its value starts and ends."""
    for row in range(starts.shape[0]):
        kind, first, last = find_packed(data, starts[row], ends[row], path, path_ends, pairs)
        kinds[row] = kind
        value_starts[row] = first
        value_ends[row] = last
