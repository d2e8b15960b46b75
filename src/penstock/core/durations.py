"""Durations as people write them: 500ms, 1s, 2m, or as Spark does: 10 seconds."""

import re

from penstock.core.errors import RequestError

_MS = {"ms": 1, "millisecond": 1, "s": 1_000, "second": 1_000, "m": 60_000, "minute": 60_000}
_MS |= {"h": 3_600_000, "hour": 3_600_000, "d": 86_400_000, "day": 86_400_000}


def parse_duration_ms(text: str) -> int:
    """In milliseconds. Raises RequestError."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]+)", text.strip().lower())
    unit = found[2] if found else ""
    factor = _MS.get(unit) or _MS.get(unit.removesuffix("s"))
    if found is None or factor is None:
        raise RequestError(f"{text!r} is no duration", "Write it like 500ms, 1s, 2m, 1h or 1d.")
    return round(float(found[1]) * factor)
