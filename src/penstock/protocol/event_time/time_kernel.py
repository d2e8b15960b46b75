"""Texts and numbers to microseconds since 1970: a kernel compiled by numba.

It is compiled without bounds checks: it reads nothing outside `starts .. ends` of a row, and writes only to its own row
of the columns.
"""

from typing import Any

from numba.types import int64

from penstock.protocol.event_time.codes import (
    NOT_A_TIME,
    NUMBER,
    OUT_OF_RANGE,
    TEXT,
    TEXT_MAX,
    TIME,
    TIME_MAX,
    TIME_MIN,
    WRONG_TYPE,
)
from penstock.protocol.intrinsics import BYTES, I64S, U8S, address_of, compiled, inlined, peek8

DASH, COLON, DOT, COMMA, PLUS, ZERO = 0x2D, 0x3A, 0x2E, 0x2C, 0x2B, 0x30
DIGITS_MAX = 18
"""Digits that are kept of a number: more than the last possible time has in microseconds."""
EXPONENT_MAX = 100_000
"""Above it the sum of exponents says nothing new, and must not overflow."""
BROKEN = -1


# ISO 8601: YYYY-MM-DD, then optionally T or a space, hh:mm, :ss, a fraction, and Z or an offset


@inlined
def digits(at: Any, count: Any) -> Any:
    """The number with this many digits, or BROKEN."""
    value = int64(0)
    for place in range(count):
        digit = peek8(at + place) - ZERO
        if digit < 0 or digit > 9:
            return int64(BROKEN)
        value = value * 10 + digit
    return value


@inlined
def days_of(year: Any, month: Any, day: Any) -> Any:
    """Days since 1970, in the Gregorian calendar."""
    year -= month <= 2
    era = year // 400
    of_era = year - era * 400
    of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468


@inlined
def days_in(year: Any, month: Any) -> Any:
    if month == 2:
        return 29 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 28
    return 30 if month == 4 or month == 6 or month == 9 or month == 11 else 31


@inlined
def date(at: Any) -> Any:
    """Whether ten bytes are a date, and its days since 1970."""
    year, month, day = digits(at, 4), digits(at + 5, 2), digits(at + 8, 2)
    if peek8(at + 4) != DASH or peek8(at + 7) != DASH or year < 1:
        return False, int64(0)
    if month < 1 or month > 12 or day < 1 or day > days_in(year, month):
        return False, int64(0)
    return True, days_of(year, month, day)


@inlined
def fraction(at: Any, end: Any) -> Any:
    """The digits at `at` as microseconds, without those beyond the sixth; where they end, or BROKEN without any."""
    first, value = at, int64(0)
    while at < end and 0 <= peek8(at) - ZERO <= 9:
        if at - first < 6:
            value = value * 10 + peek8(at) - ZERO
        at += 1
    for _ in range(6 - (at - first)):
        value *= 10
    return value, at if at > first else int64(BROKEN)


@inlined
def clock(at: Any, end: Any) -> Any:
    """The time of day at `at`, in microseconds, and where it ends; BROKEN if it is not one."""
    if end - at < 5 or peek8(at + 2) != COLON:
        return int64(0), int64(BROKEN)
    hour, minute, second, micros = digits(at, 2), digits(at + 3, 2), int64(0), int64(0)
    at += 5
    if at < end and peek8(at) == COLON:
        if end - at < 3:
            return int64(0), int64(BROKEN)
        second = digits(at + 1, 2)
        at += 3
        if at < end and (peek8(at) == DOT or peek8(at) == COMMA):
            micros, at = fraction(at + 1, end)
    if hour < 0 or hour > 23 or minute < 0 or minute > 59 or second < 0 or second > 59:
        at = int64(BROKEN)
    return ((hour * 60 + minute) * 60 + second) * 1_000_000 + micros, at


@inlined
def offset(at: Any, end: Any) -> Any:
    """The zone from `at` to `end`: its offset from UTC in minutes, and whether it is one. Nothing is UTC."""
    size = end - at
    if size == 0:
        return int64(0), True
    lead = peek8(at)
    if size == 1:
        return int64(0), lead == 0x5A or lead == 0x7A
    if (lead != PLUS and lead != DASH) or (size != 3 and size != 5 and size != 6):
        return int64(0), False
    hours, minutes = digits(at + 1, 2), int64(0)
    if size == 5:
        minutes = digits(at + 3, 2)
    if size == 6:
        minutes = digits(at + 4, 2) if peek8(at + 3) == COLON else int64(BROKEN)
    if hours < 0 or hours > 23 or minutes < 0 or minutes > 59:
        return int64(0), False
    return (hours * 60 + minutes) * (-1 if lead == DASH else 1), True


@inlined
def iso(at: Any, end: Any) -> Any:
    """TIME and its microseconds, or the problem."""
    if end - at < 10:
        return NOT_A_TIME, int64(0)
    is_date, days = date(at)
    if not is_date:
        return NOT_A_TIME, int64(0)
    at += 10
    micros, minutes, is_zone = int64(0), int64(0), True
    if at < end:
        lead = peek8(at)
        if lead != 0x54 and lead != 0x74 and lead != 0x20:
            return NOT_A_TIME, int64(0)
        micros, at = clock(at + 1, end)
        if at < 0:
            return NOT_A_TIME, int64(0)
        minutes, is_zone = offset(at, end)
    if not is_zone:
        return NOT_A_TIME, int64(0)
    return TIME, days * 86_400_000_000 + micros - minutes * 60_000_000


# Numbers in decimal


@inlined
def exponent(at: Any, end: Any) -> Any:
    """The exponent from `at`, the byte after the `e`, to `end`: its value, and whether it is one."""
    negative = at < end and peek8(at) == DASH
    if at < end and (peek8(at) == PLUS or peek8(at) == DASH):
        at += 1
    value, first = int64(0), at
    while at < end and 0 <= peek8(at) - ZERO <= 9:
        value = min(value * 10 + peek8(at) - ZERO, EXPONENT_MAX)
        at += 1
    return -value if negative else value, at == end and at > first


@inlined
def scaled(mantissa: Any, power: Any, inexact: Any, negative: Any) -> Any:
    """Mantissa · 10^power, rounded down. `inexact`: nonzero digits after the mantissa were left out."""
    if mantissa == 0 and not inexact:
        return TIME, int64(0)
    while power > 0 and mantissa <= TIME_MAX:
        mantissa *= 10
        power -= 1
    if power > 0:
        return OUT_OF_RANGE, int64(0)
    while power < 0 and mantissa > 0:
        inexact = inexact or mantissa % 10 != 0
        mantissa //= 10
        power += 1
    return TIME, -mantissa - (1 if inexact else 0) if negative else mantissa


@inlined
def number(at: Any, end: Any, shift: Any) -> Any:
    """The number from `at` to `end`, times 10^shift, rounded down: TIME and its microseconds, or the problem."""
    negative = at < end and peek8(at) == DASH
    if negative:
        at += 1
    mantissa, power, kept, seen, inexact, after_dot = int64(0), shift, 0, 0, False, False
    while at < end:
        lead = peek8(at)
        if lead == DOT and not after_dot and seen > 0:
            after_dot, seen = True, 0
        elif 0 <= lead - ZERO <= 9:
            seen += 1
            if kept < DIGITS_MAX:
                mantissa = mantissa * 10 + lead - ZERO
                kept += mantissa > 0
                power -= after_dot
            else:
                inexact = inexact or lead != ZERO
                power += not after_dot
        else:
            break
        at += 1
    if seen == 0:
        return NOT_A_TIME, int64(0)
    if at < end:
        more, is_exponent = exponent(at + 1, end)
        if peek8(at) | 0x20 != 0x65 or not is_exponent:
            return NOT_A_TIME, int64(0)
        power += more
    return scaled(mantissa, power, inexact, negative)


@compiled(int64(BYTES, I64S, I64S, int64, int64, U8S, I64S))
def parse(data: Any, starts: Any, ends: Any, is_iso: Any, shift: Any, kinds: Any, times: Any) -> Any:
    """Replace the kinds TEXT and NUMBER by TIME, with the time in `times`, or by the problem. Without `is_iso`, texts
    are numbers too; `shift` is the power of ten from a number to microseconds. Returns how many rows have another kind
    than TIME.
    """
    base, others = address_of(data), 0
    for row in range(kinds.shape[0]):
        kind = int64(kinds[row])
        if kind != TEXT and kind != NUMBER:
            others += kind != TIME
            continue
        time = int64(0)
        if ends[row] - starts[row] > TEXT_MAX:
            kind = NOT_A_TIME
        elif not is_iso:
            kind, time = number(base + starts[row], base + ends[row], shift)
        elif kind == TEXT:
            kind, time = iso(base + starts[row], base + ends[row])
        else:
            kind = WRONG_TYPE
        if kind == TIME and (time < TIME_MIN or time > TIME_MAX):
            kind = OUT_OF_RANGE
        kinds[row] = kind
        times[row] = time
        others += kind != TIME
    return others
