"""Finds the pairs `key=value` of logfmt, CEF and InfluxDB's line protocol in many events at once: kernels compiled by
numba.

They only take what most events are: without escapes, with at most PAIRS_MAX pairs whose keys differ, and with numbers
that JSON writes in the same way. Other events, valid or not, are left to Python (`NOT_PLAIN`).

They are compiled without bounds checks: comparisons before every access keep them between an event's two offsets, and
the caller gives them room for what an event of its size can have.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numba import types
from numba.types import int64

from penstock.protocol.intrinsics import BYTES, I64S, U8S, address_of, compiled, copy, inlined, peek8, store8

NOT_PLAIN = -1
PAIRS_MAX = 64
"""Each key is compared with those before it."""

TAB, NEWLINE, FEED, RETURN, BLANK = 0x09, 0x0A, 0x0C, 0x0D, 0x20
QUOTE, COMMA, MINUS, POINT, ZERO, NINE, EQUALS, BACKSLASH = 0x22, 0x2C, 0x2D, 0x2E, 0x30, 0x39, 0x3D, 0x5C
BRACE, COLON, END_BRACE, HASH = 0x7B, 0x3A, 0x7D, 0x23
PIPE, UNDERSCORE, BRACKET, END_BRACKET, SEPARATOR = 0x7C, 0x5F, 0x5B, 0x5D, 0x1C
CEF = int.from_bytes(b"CEF:", "little")
RUE, ALSE = int.from_bytes(b"rue", "little"), int.from_bytes(b"alse", "little")

DIGITS_MAX = 15
"""Those that a double always keeps."""
LONGEST = 19
"""Digits of a time in nanoseconds: it fits into 64 bits if it begins with less than 9."""
ZEROS_MAX = 4
"""After the point, of a number less than one: beyond them a double is written with an exponent."""


@inlined
def is_blank(byte: Any) -> Any:
    return byte in (BLANK, TAB, NEWLINE, FEED, RETURN)


@inlined
def is_digit(byte: Any) -> Any:
    return ZERO <= byte <= NINE


@inlined
def is_repeated(base: Any, starts: Any, ends: Any, first: Any, last: Any) -> Any:
    """Whether the key `last` is one of those from `first` on."""
    size = ends[last] - starts[last]
    for other in range(first, last):
        if ends[other] - starts[other] == size:
            same = int64(0)
            while same < size and peek8(base + starts[other] + same) == peek8(base + starts[last] + same):
                same += 1
            if same == size:
                return True
    return False


@inlined
def without_blanks(base: Any, start: Any, end: Any) -> Any:
    """The end without the blanks before it."""
    while end > start and is_blank(peek8(base + end - 1)):
        end -= 1
    return end


@inlined
def end_of_quoted(base: Any, at: Any, end: Any) -> Any:
    """`at` is behind the opening quote. Where the closing one is; NOT_PLAIN if there is none, or an escape."""
    while at < end and peek8(base + at) != QUOTE:
        if peek8(base + at) == BACKSLASH:
            return int64(NOT_PLAIN)
        at += 1
    return at if at < end else int64(NOT_PLAIN)


# logfmt: key=value key="a value" key


@inlined
def end_of_word(base: Any, at: Any, end: Any, stop: Any) -> Any:
    """The first blank, quote or `stop`."""
    while at < end:
        byte = peek8(base + at)
        if is_blank(byte) or byte in (QUOTE, stop):
            break
        at += 1
    return at


@compiled(int64(BYTES, I64S, int64, I64S, I64S, I64S, I64S, I64S))
def logfmt_pairs(
    data: Any, offsets: Any, true_at: Any, counts: Any, keys: Any, key_ends: Any, values: Any, value_ends: Any
) -> Any:
    """Returns the number of pairs. `counts` gets that of each event, or NOT_PLAIN; the others the places of keys and
    values. A word without `=` has the value at `true_at`, of four bytes.
    """
    base, pair = address_of(data), int64(0)
    for row in range(counts.shape[0]):
        at, first = offsets[row], pair
        end = without_blanks(base, at, offsets[row + 1])
        counts[row] = 0
        while at < end:
            while is_blank(peek8(base + at)):
                at += 1
            keys[pair] = at
            at = end_of_word(base, at, end, EQUALS)
            key_ends[pair] = at
            values[pair], value_ends[pair] = true_at, true_at + 4
            if at < end and peek8(base + at) == EQUALS:
                at += 1
                is_quoted = at < end and peek8(base + at) == QUOTE
                at += is_quoted
                values[pair] = at
                at = end_of_quoted(base, at, end) if is_quoted else end_of_word(base, at, end, QUOTE)
                value_ends[pair] = at
                at += is_quoted and at != NOT_PLAIN
            is_whole = at != NOT_PLAIN and (at == end or is_blank(peek8(base + at)))
            is_key = key_ends[pair] > keys[pair] and pair - first < PAIRS_MAX
            if not is_whole or not is_key or is_repeated(base, keys, key_ends, first, pair):
                counts[row] = NOT_PLAIN
                pair = first
                break
            pair += 1
            counts[row] += 1
    return pair


# InfluxDB: measurement,tag=value field=value,field="a value" time


@inlined
def end_of_name(base: Any, at: Any, end: Any) -> Any:
    """The first comma, blank, `=` or backslash."""
    while at < end:
        byte = peek8(base + at)
        if is_blank(byte) or byte in (COMMA, EQUALS, BACKSLASH):
            break
        at += 1
    return at


@inlined
def end_of_tags(base: Any, at: Any, end: Any) -> Any:
    """Of any number of `,key=value`; NOT_PLAIN if they are not valid, or have escapes."""
    while at < end and peek8(base + at) == COMMA:
        for sign in (EQUALS, BLANK):
            start = at + 1
            at = end_of_name(base, start, end)
            if at in (start, end):
                return int64(NOT_PLAIN)
            if peek8(base + at) != sign and (sign == EQUALS or peek8(base + at) != COMMA):
                return int64(NOT_PLAIN)
    return at


@inlined
def is_plain_text(base: Any, at: Any, end: Any) -> Any:
    """Whether JSON has it between quotes as it is."""
    while at < end:
        byte = peek8(base + at)
        if byte < BLANK or byte in (QUOTE, BACKSLASH):
            return False
        at += 1
    return True


@inlined
def end_of_digits(base: Any, at: Any, end: Any) -> Any:
    while at < end and is_digit(peek8(base + at)):
        at += 1
    return at


@inlined
def put_number(data: Any, at: Any, end: Any, out: Any, to: Any) -> Any:
    """A whole number (`7i`) or another one, if JSON has it with the same digits. The end in `out`, or NOT_PLAIN."""
    base, start = address_of(data), at
    at += at < end and peek8(base + at) == MINUS
    whole = at
    at = end_of_digits(base, at, end)
    if at == whole or at - whole > DIGITS_MAX or (at - whole > 1 and peek8(base + whole) == ZERO):
        return int64(NOT_PLAIN)
    if at + 1 == end and peek8(base + at) in (0x69, 0x75):  # i, u
        copy(out, to, data, start, at - start)
        return int64(NOT_PLAIN) if whole > start and peek8(base + whole) == ZERO else to + at - start
    copy(out, to, data, start, end - start)
    if at == end:
        store8(out, to + end - start, POINT)
        store8(out, to + end - start + 1, ZERO)
        return to + end - start + 2
    fraction = at + 1
    if peek8(base + at) != POINT or fraction == end or end_of_digits(base, fraction, end) != end:
        return int64(NOT_PLAIN)
    zeros = fraction
    while zeros < end and peek8(base + zeros) == ZERO:
        zeros += 1
    is_small = peek8(base + whole) == ZERO and zeros - fraction >= ZEROS_MAX
    has_zero = peek8(base + end - 1) == ZERO and end - fraction > 1
    if is_small or has_zero or end - whole - 1 > DIGITS_MAX:
        return int64(NOT_PLAIN)
    return to + end - start


@inlined
def put_scalar(data: Any, at: Any, end: Any, out: Any, to: Any) -> Any:
    """The end in `out`, or NOT_PLAIN."""
    if at == end:
        return int64(NOT_PLAIN)
    if peek8(address_of(data) + at) > NINE:
        return put_boolean(data, at, end, out, to)
    return put_number(data, at, end, out, to)


@inlined
def put_boolean(data: Any, at: Any, end: Any, out: Any, to: Any) -> Any:
    """Like `t` and `True`; those in capitals are left to Python. The end in `out`, or NOT_PLAIN."""
    base, lower = address_of(data), int64(peek8(address_of(data) + at) | 0x20)
    if lower == 0x74 and (end - at == 1 or (end - at == 4 and is_same(base, at + 1, RUE, 3))):
        store8(out, to, lower)
        put_word(out, to + 1, RUE, 3)
        return to + 4
    if lower == 0x66 and (end - at == 1 or (end - at == 5 and is_same(base, at + 1, ALSE, 4))):
        store8(out, to, lower)
        put_word(out, to + 1, ALSE, 4)
        return to + 5
    return int64(NOT_PLAIN)


@inlined
def is_same(base: Any, at: Any, word: Any, size: Any) -> Any:
    same = int64(0)
    while same < size and peek8(base + at + same) == (word >> 8 * same) & 0xFF:
        same += 1
    return same == size


@inlined
def put_word(out: Any, to: Any, word: Any, size: Any) -> Any:
    for number in range(size):
        store8(out, to + number, (word >> 8 * number) & 0xFF)


@inlined
def put_fields(data: Any, at: Any, end: Any, out: Any, to: Any, keys: Any, key_ends: Any) -> Any:
    """Writes fields as an object of JSON. Its end, and that of the fields, or NOT_PLAIN."""
    base, count, sign = address_of(data), int64(0), int64(BRACE)
    while True:
        keys[count] = at
        at = end_of_name(base, at, end)
        key_ends[count] = at
        if at == keys[count] or at >= end or peek8(base + at) != EQUALS or not is_plain_text(base, keys[count], at):
            return int64(NOT_PLAIN), at
        if count == PAIRS_MAX - 1 or is_repeated(base, keys, key_ends, 0, count):
            return int64(NOT_PLAIN), at
        size = at - keys[count]
        store8(out, to, sign)
        store8(out, to + 1, QUOTE)
        copy(out, to + 2, data, keys[count], size)
        store8(out, to + size + 2, QUOTE)
        store8(out, to + size + 3, COLON)
        to += size + 4
        start = at + 1
        if start < end and peek8(base + start) == QUOTE:
            at = end_of_quoted(base, start + 1, end) + 1
            if at <= start or not is_plain_text(base, start + 1, at - 1):
                return int64(NOT_PLAIN), at
            copy(out, to, data, start, at - start)
            to += at - start
        else:
            at = end_of_plain(base, start, end)
            to = put_scalar(data, start, at, out, to)
            if to == NOT_PLAIN:
                return int64(NOT_PLAIN), at
        count += 1
        sign = int64(COMMA)
        if at == end or peek8(base + at) != COMMA:
            store8(out, to, END_BRACE)
            return to + 1, at
        at += 1


@inlined
def end_of_plain(base: Any, at: Any, end: Any) -> Any:
    """The first comma or blank."""
    while at < end and peek8(base + at) != COMMA and not is_blank(peek8(base + at)):
        at += 1
    return at


@inlined
def after_blanks(base: Any, at: Any, end: Any) -> Any:
    while at < end and peek8(base + at) == BLANK:
        at += 1
    return at


@compiled(int64(BYTES, I64S, int64, types.UniTuple(I64S, 4), I64S, U8S))
def influx_lines(data: Any, offsets: Any, time_digits_max: Any, places: Any, ends: Any, out: Any) -> Any:
    """Returns the size of `out`, which gets the fields of each line as JSON, to `ends` (of line + 1); nothing of a line
    that is not plain. `places`: where measurements, tags and times end, and times begin; NOT_PLAIN.
    """
    measurement_ends, tag_ends, times, time_ends = places
    base, to = address_of(data), int64(0)
    keys, key_ends = np.empty(PAIRS_MAX, np.int64), np.empty(PAIRS_MAX, np.int64)
    ends[0] = 0
    for row in range(times.shape[0]):
        start = offsets[row]
        end = without_blanks(base, start, offsets[row + 1])
        measurement_ends[row], ends[row + 1] = NOT_PLAIN, to
        at = start
        while at < end and peek8(base + at) != COMMA and peek8(base + at) != BACKSLASH:
            if is_blank(peek8(base + at)):
                break
            at += 1
        if at in (start, end) or peek8(base + start) == HASH:
            continue
        measurement = at
        at = end_of_tags(base, at, end)
        if at == NOT_PLAIN or peek8(base + at) != BLANK:
            continue
        tag_ends[row] = at
        written, at = put_fields(data, after_blanks(base, at, end), end, out, to, keys, key_ends)
        if written == NOT_PLAIN or (at < end and peek8(base + at) != BLANK):
            continue
        times[row] = after_blanks(base, at, end)
        digits = times[row] + (times[row] < end and peek8(base + times[row]) == MINUS)
        time_ends[row] = end_of_digits(base, digits, end)
        if time_ends[row] != end or end - digits > time_digits_max or (digits == end and digits > times[row]):
            continue
        if end - digits == LONGEST and not ZERO < peek8(base + digits) < NINE:
            continue
        measurement_ends[row], ends[row + 1] = measurement, written
        to = written
    return to


# CEF:0|vendor|product|version|signature|name|severity|key=value key=a value


@inlined
def is_white(byte: Any) -> Any:
    """As Python's `\\s`, of ASCII."""
    return TAB <= byte <= RETURN or SEPARATOR <= byte <= BLANK


@inlined
def is_of_key(byte: Any) -> Any:
    """A letter, a digit, or one of `_ . - [ ]`."""
    lower = byte | 0x20
    return is_digit(byte) or 0x61 <= lower <= 0x7A or byte in (UNDERSCORE, POINT, MINUS, BRACKET, END_BRACKET)


@inlined
def without_ends(base: Any, start: Any, end: Any) -> Any:
    """The end without the blanks before it."""
    while end > start and peek8(base + end - 1) == BLANK:
        end -= 1
    return end


@inlined
def put_head(base: Any, at: Any, end: Any, places: Any, row: Any) -> Any:
    """`places` get where the text before `CEF:` ends, and each part behind it. Where the extension begins, or
    NOT_PLAIN.
    """
    while at + 4 <= end and not is_same(base, at, CEF, 4):
        at += 1
    places[0][row] = at
    at += 4
    digits = at
    for part in range(1, 8):
        while at < end and peek8(base + at) != PIPE:
            if peek8(base + at) == BACKSLASH or (part == 1 and (at - digits == 3 or not is_digit(peek8(base + at)))):
                return int64(NOT_PLAIN)
            at += 1
        if at >= end or at == digits:
            return int64(NOT_PLAIN)
        places[part][row] = at
        at += 1
    return at


@compiled(int64(BYTES, I64S, types.UniTuple(I64S, 8), I64S, I64S, I64S, I64S, I64S))
def cef_pairs(
    data: Any, offsets: Any, places: Any, counts: Any, keys: Any, key_ends: Any, values: Any, value_ends: Any
) -> Any:
    """Returns the number of pairs. `counts` gets that of each event, or NOT_PLAIN; `places` are those of `put_head`,
    and the others those of keys and values. A key stands behind a blank, and its value extends to the next one.
    """
    base, pair = address_of(data), int64(0)
    for row in range(counts.shape[0]):
        end, first = offsets[row + 1], pair
        end -= end > offsets[row] and peek8(base + end - 1) == NEWLINE
        end -= end > offsets[row] and peek8(base + end - 1) == RETURN
        counts[row] = NOT_PLAIN
        at = put_head(base, offsets[row], end, places, row)
        if at == NOT_PLAIN:
            continue
        word, is_key, is_ascii, is_plain = at, True, True, True
        while at < end and is_plain:
            byte = peek8(base + at)
            if is_white(byte):
                is_plain = pair > first or at == word  # the extension begins with a key
                word, is_key, is_ascii = at + 1, True, True
            elif byte == EQUALS and at > word and (is_key or not is_ascii):
                keys[pair], key_ends[pair], values[pair] = word, at, at + 1
                is_plain = is_ascii and pair - first < PAIRS_MAX
                is_plain = is_plain and not is_repeated(base, keys, key_ends, first, pair)
                if pair > first:
                    value_ends[pair - 1] = without_ends(base, values[pair - 1], word)
                pair += 1
                is_key = False
            else:
                is_ascii = is_ascii and byte < 0x80
                is_key = is_key and is_of_key(byte)
                is_plain = byte != BACKSLASH and (pair > first or is_key or not is_ascii)
            at += 1
        if pair > first:
            value_ends[pair - 1] = without_ends(base, values[pair - 1], end)
        elif word < end:
            is_plain = False
        if is_plain:
            counts[row] = pair - first
        else:
            pair = first
    return pair


# Texts at places.


@compiled(types.void(BYTES, I64S, I64S, I64S, U8S))
def gather(data: Any, starts: Any, ends: Any, offsets: Any, out: Any) -> Any:
    """Copies the pieces, one after the other, to where `offsets` says."""
    for number in range(starts.shape[0]):
        copy(out, offsets[number], data, starts[number], ends[number] - starts[number])


Places = np.ndarray[tuple[int], np.dtype[np.int64]]


def bytes_and_offsets(texts: pa.StringArray) -> tuple[np.ndarray[Any, Any], Places]:
    """Of an array without nulls."""
    _, offsets, data = texts.buffers()
    found = np.frombuffer(offsets, np.int32, len(texts) + 1, texts.offset * 4).astype(np.int64)
    return np.frombuffer(data if data is not None and data.size else b"\0", np.uint8), found


def texts_at(data: np.ndarray[Any, Any], starts: Places, ends: Places) -> pa.StringArray:
    """The pieces of valid UTF-8 between these places."""
    offsets = np.zeros(len(starts) + 1, np.int64)
    np.cumsum(ends - starts, out=offsets[1:])
    out = np.empty(max(int(offsets[-1]), 1), np.uint8)
    gather(data, np.ascontiguousarray(starts), np.ascontiguousarray(ends), offsets, out)
    return texts_of(out, offsets)


def texts_of(data: np.ndarray[Any, Any], offsets: Places) -> pa.StringArray:
    return pa.StringArray.from_buffers(len(offsets) - 1, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data))
