"""Finds a field in JSON documents: a kernel compiled by numba that validates each document in one pass.

It accepts what RFC 8259 does, and finds what Python's `json` finds: the last value of a repeated name. Bytes inside
strings need not be UTF-8. It is compiled without bounds checks: it reads nothing outside `starts .. ends` of a row,
because comparisons before every access decide what it may touch, and writes only to its own row of the columns.
Positions are addresses of memory.
"""

from typing import Any

from numba import types
from numba.types import int64, uint64

from penstock.protocol.event_time.codes import (
    DEPTH_MAX,
    ESCAPED,
    MALFORMED,
    MISSING,
    NULL,
    NUMBER,
    TEXT,
    TOO_DEEP,
    WRONG_TYPE,
)
from penstock.protocol.intrinsics import (
    BYTES,
    I64S,
    U8S,
    address_of,
    compiled,
    inlined,
    leading_zeros,
    peek8,
    peek16,
    peek32,
    peek64,
    peek_number,
)

QUOTE, BACKSLASH, COMMA, COLON, MINUS, DOT = 0x22, 0x5C, 0x2C, 0x3A, 0x2D, 0x2E
BRACE, BRACE_END, BRACKET, BRACKET_END = 0x7B, 0x7D, 0x5B, 0x5D
TRUE, ALSE, NULL_TEXT = 0x74727565, 0x616C7365, 0x6E756C6C
ONES, LOWS, HIGHS = 0x0101010101010101, 0x7F7F7F7F7F7F7F7F, 0x8080808080808080
BROKEN = -1


@inlined
def skip_space(at: Any, end: Any) -> Any:
    while at < end:
        lead = peek8(at)
        if lead > 0x20 or (lead != 0x20 and lead != 0x0A and lead != 0x0D and lead != 0x09):
            break
        at += 1
    return at


@inlined
def zero_bytes(word: Any) -> Any:
    """The highest bit of each byte that is 0. Exact: no carry leaves its byte."""
    return ~(((word & uint64(LOWS)) + uint64(LOWS)) | word) & uint64(HIGHS)


@inlined
def plain_bytes(word: Any) -> Any:
    """How many of the first of 8 bytes are neither a quote, nor a backslash, nor a control character."""
    found = zero_bytes(word ^ uint64(QUOTE * ONES)) | zero_bytes(word ^ uint64(BACKSLASH * ONES))
    return leading_zeros(found | zero_bytes(word & uint64(0xE0 * ONES))) >> 3


@inlined
def digit_bytes(word: Any) -> Any:
    """How many of the first of 8 bytes are digits."""
    word ^= uint64(0x30 * ONES)
    return leading_zeros((((word & uint64(LOWS)) + uint64(0x76 * ONES)) | word) & uint64(HIGHS)) >> 3


@inlined
def end_of_escape(at: Any, end: Any) -> Any:
    """`at` is the byte after the backslash. Where the escape ends, or BROKEN."""
    if at >= end:
        return int64(BROKEN)
    lead = peek8(at)
    at += 1
    if lead != 0x75:  # one of "\/bfnrt
        known = lead == 0x22 or lead == 0x5C or lead == 0x2F or lead == 0x62 or lead == 0x66
        known = known or lead == 0x6E or lead == 0x72 or lead == 0x74
        return at if known else int64(BROKEN)
    if end - at < 4:
        return int64(BROKEN)
    for place in range(4):
        digit = peek8(at + place)
        letter = digit | 0x20
        if not (0x30 <= digit <= 0x39 or 0x61 <= letter <= 0x66):
            return int64(BROKEN)
    return at + 4


@inlined
def end_of_string(at: Any, end: Any) -> Any:
    """`at` is the byte after the opening quote. Where the closing quote is, or BROKEN; whether there are escapes."""
    escaped = False
    while at < end:
        if end - at >= 8:
            count = plain_bytes(peek64(at))
            at += count
            if count == 8:
                continue
        lead = peek8(at)
        if lead == QUOTE:
            return at, escaped
        if lead < 0x20:
            break
        at += 1
        if lead == BACKSLASH:
            escaped = True
            at = end_of_escape(at, end)
            if at < 0:
                break
    return int64(BROKEN), escaped


@inlined
def end_of_digits(at: Any, end: Any) -> Any:
    """Where the digits at `at` end; BROKEN if there is none."""
    first = at
    while end - at >= 8:
        count = digit_bytes(peek64(at))
        at += count
        if count < 8:
            return at if at > first else int64(BROKEN)
    while at < end and 0x30 <= peek8(at) <= 0x39:
        at += 1
    return at if at > first else int64(BROKEN)


@inlined
def end_of_number(at: Any, end: Any) -> Any:
    """Where the number at `at` ends, or BROKEN."""
    if peek8(at) == MINUS:
        at += 1
    if at < end and peek8(at) == 0x30:
        at += 1
    else:
        at = end_of_digits(at, end)
    if 0 <= at < end and peek8(at) == DOT:
        at = end_of_digits(at + 1, end)
    if 0 <= at < end and peek8(at) | 0x20 == 0x65:
        at += 1
        if at < end and (peek8(at) == 0x2B or peek8(at) == MINUS):
            at += 1
        at = end_of_digits(at, end)
    return at


@inlined
def is_step(at: Any, end: Any, first: Any, last: Any) -> Any:
    """Whether the bytes of a key are those of a step of the path."""
    if end - at != last - first:
        return False
    same = True
    for place in range(last - first):
        same = same and peek8(at + place) == peek8(first + place)
    return same


@inlined
def hexadecimal(at: Any) -> Any:
    """The number in four digits, which were checked."""
    value = int64(0)
    for place in range(4):
        digit = peek8(at + place)
        value = value << 4 | (digit & 15) + (9 if digit > 0x39 else 0)
    return value


@inlined
def unescaped(at: Any, end: Any) -> Any:
    """The character of a valid escape, whose backslash is before `at`, and where it ends."""
    lead = peek8(at)
    if lead != 0x75:
        code = int64(0x08 if lead == 0x62 else 0x0C if lead == 0x66 else 0x0A if lead == 0x6E else lead)
        return int64(0x0D if lead == 0x72 else 0x09 if lead == 0x74 else code), at + 1
    code = hexadecimal(at + 1)
    at += 5
    if 0xD800 <= code < 0xDC00 and end - at >= 6 and peek16(at) == 0x5C75:
        second = hexadecimal(at + 2)
        if 0xDC00 <= second < 0xE000:
            return 0x10000 + ((code - 0xD800) << 10) + second - 0xDC00, at + 6
    return code, at


@inlined
def is_escaped_step(at: Any, end: Any, first: Any, last: Any) -> Any:
    """As `is_step`, for a key with escapes. A lone surrogate is in no path, which is UTF-8."""
    while at < end and first < last:
        lead = peek8(at)
        at += 1
        if lead != BACKSLASH:
            if lead != peek8(first):
                return False
            first += 1
            continue
        code, at = unescaped(at, end)
        size = 1 if code < 0x80 else 2 if code < 0x800 else 3 if code < 0x10000 else 4
        if last - first < size:
            return False
        for place in range(size):
            part = code >> 6 * (size - 1 - place)
            mark = 0x80 if place > 0 else 0 if size == 1 else (0xF00 >> size) & 0xFF
            if (part & 0x3F | mark if place > 0 else part | mark) != peek8(first + place):
                return False
        first += size
    return at == end and first == last


@inlined
def value(at: Any, end: Any) -> Any:
    """The value at `at`: its kind, or MALFORMED; its start and end; where to continue. Of a map or a list, that is
    after its first byte.
    """
    if at < 0 or at >= end:
        return MALFORMED, at, at, at
    lead = peek8(at)
    if lead == QUOTE:
        close, escaped = end_of_string(at + 1, end)
        found = MALFORMED if close < 0 else ESCAPED if escaped else TEXT
        return found, at + 1, close, close + 1
    if lead == MINUS or 0x30 <= lead <= 0x39:
        close = end_of_number(at, end)
        return NUMBER if close >= 0 else MALFORMED, at, close, close
    if lead in (BRACE, BRACKET):
        return WRONG_TYPE, at, at, at + 1
    if end - at >= 4 and peek32(at) == NULL_TEXT:
        return NULL, at, at, at + 4
    if end - at >= 4 and peek32(at) == TRUE:
        return WRONG_TYPE, at, at, at + 4
    if end - at >= 5 and lead == 0x66 and peek32(at + 1) == ALSE:
        return WRONG_TYPE, at, at, at + 5
    return MALFORMED, at, at, at


@inlined
def key(at: Any, end: Any, path: Any, path_ends: Any, level: Any) -> Any:
    """The key at `at`: where its value starts, or BROKEN; whether it is this step of the path, counted from 1; none is
    step 0.
    """
    if at >= end or peek8(at) != QUOTE:
        return int64(BROKEN), False
    close, escaped = end_of_string(at + 1, end)
    colon = skip_space(close + 1, end) if close >= 0 else end
    if colon >= end or peek8(colon) != COLON:
        return int64(BROKEN), False
    same = False
    if level > 0:
        first = path + peek_number(path_ends + 8 * (level - 2)) if level > 1 else path
        last = path + peek_number(path_ends + 8 * (level - 1))
        same = is_escaped_step(at + 1, close, first, last) if escaped else is_step(at + 1, close, first, last)
    return skip_space(colon + 1, end), same


@inlined
def after_value(at: Any, end: Any, depth: Any, matched: Any, maps: Any) -> Any:
    """Close the containers that end here. Where to continue: after a comma, at `end` after the outermost value, or
    BROKEN; and the new numbers of `find`.
    """
    while depth > 0:
        at = skip_space(at, end)
        if at >= end:
            return int64(BROKEN), depth, matched, maps
        lead = peek8(at)
        at += 1
        if lead == COMMA:
            return at, depth, matched, maps
        if lead != (BRACE_END if maps & uint64(1) else BRACKET_END):
            return int64(BROKEN), depth, matched, maps
        matched -= 1 if matched == depth else 0
        depth -= 1
        maps >>= uint64(1)
    at = skip_space(at, end)
    return at if at == end else int64(BROKEN), depth, matched, maps


@inlined
def find(at: Any, end: Any, path: Any, path_ends: Any, steps: Any) -> Any:
    """The field of one document: its kind, start and end. `path` contains the steps one after the other, `path_ends`
    the ends of all of them.

    `matched` counts the containers, from the outermost, that lie on the path: a value is on it (`leads`) if it is the
    value of the right key in the innermost of these. `maps` has a bit for each open container: whether it is a map.
    """
    kind, first, last = MISSING, at, at
    depth, matched, maps = int64(0), int64(0), uint64(0)
    while True:
        at, leads = skip_space(at, end), depth == 0
        if depth > 0 and maps & uint64(1):
            at, leads = key(at, end, path, path_ends, depth if matched == depth else int64(0))
            kind = MISSING if leads else kind  # the last of a repeated name counts
        found, start, close, after = value(at, end)
        if found == MALFORMED:
            return MALFORMED, at, at
        if leads and depth == steps:
            kind, first, last = found, start, close
        lead, at = peek8(at), after
        if lead in (BRACE, BRACKET):
            matched += 1 if leads and lead == BRACE and depth < steps else 0
            depth += 1
            maps = maps << uint64(1) | uint64(lead == BRACE)
            if depth > DEPTH_MAX:
                return TOO_DEEP, at, at
            at = skip_space(at, end)
            if at < end and peek8(at) != lead + 2:
                continue
        at, depth, matched, maps = after_value(at, end, depth, matched, maps)
        if at < 0 or depth == 0:
            return kind if at >= 0 else MALFORMED, first, last


@compiled(types.void(BYTES, I64S, I64S, BYTES, I64S, U8S, I64S, I64S))
def find_json(
    data: Any, starts: Any, ends: Any, path: Any, path_ends: Any, kinds: Any, value_starts: Any, value_ends: Any
) -> Any:
    """For each row from `starts` to `ends` of `data`: the kind of its field, and where its value starts and ends."""
    base, names, name_ends = address_of(data), address_of(path), address_of(path_ends)
    for row in range(starts.shape[0]):
        kind, first, last = find(base + starts[row], base + ends[row], names, name_ends, path_ends.shape[0])
        kinds[row] = kind
        value_starts[row] = first - base
        value_ends[row] = last - base
