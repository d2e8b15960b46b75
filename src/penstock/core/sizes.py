"""Sizes as people write them: 64KiB, 256MiB, 10GB."""

import re

from penstock.core.errors import RequestError

KIB = 1 << 10
MIB = 1 << 20

_UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}


def parse_size(text: str) -> int:
    """In bytes. Raises RequestError."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", text.lower())
    if match is None or match[2] not in _UNITS:
        raise RequestError(f"{text!r} is not a size", "Write for example 512KiB, 64MiB or 10GB.")
    number, unit = match[1], _UNITS[match[2]]
    return int(float(number) * unit) if "." in number else int(number) * unit


def format_size(count: int) -> str:
    """The size in the largest unit that divides it; `parse_size` accepts it."""
    for unit in ("gib", "mib", "kib"):
        if count % _UNITS[unit] == 0:
            return f"{count // _UNITS[unit]}{unit[0].upper()}iB"
    return str(count)


UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
"""The units that people read; each is 1024 times the one before."""


def size_unit(count: float) -> tuple[int, str]:
    """The bytes of the unit in which people read such a size, and its name."""
    power = 0
    while count >= 1024 ** (power + 1) and power + 1 < len(UNITS):
        power += 1
    return 1024**power, UNITS[power]


def show_size(count: int) -> str:
    """The size for people, rounded to a tenth of its unit."""
    scale, unit = size_unit(count)
    return f"{count} B" if scale == 1 else f"{count / scale:.1f} {unit}"
