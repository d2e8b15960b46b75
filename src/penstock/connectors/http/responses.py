"""What a server's response means for what was sent to it. No I/O."""

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import Enum

_LATER = frozenset({408, 425, 429, *range(500, 600)})
"""The server's own trouble: it will be over by itself. With any other the request is not wanted as it is."""

_SHOWN_CHARS = 200
"""Of what a server says, in a reason."""


class Verdict(Enum):
    TAKEN = "taken"
    LATER = "later"
    REFUSED = "refused"


def verdict_of(status: int) -> Verdict:
    if 200 <= status < 300:
        return Verdict.TAKEN
    return Verdict.LATER if status in _LATER else Verdict.REFUSED


def wait_of(retry_after: str | None, now: datetime, seconds_max: float) -> float:
    """How long a server asks us to wait, in seconds: it says so as a number or as a date."""
    if not retry_after:
        return 0.0
    if retry_after.isascii() and retry_after.strip().isdigit():
        return min(float(retry_after), seconds_max)
    try:
        until = parsedate_to_datetime(retry_after)
    except ValueError:
        return 0.0
    until = until if until.tzinfo is not None else until.replace(tzinfo=UTC)
    return min(max(0.0, (until - now).total_seconds()), seconds_max)


def reason_of(where: str, status: int, phrase: str, body: bytes) -> str:
    """The status, and the first line that the server says."""
    line = next((line for line in body.decode(errors="replace").splitlines() if line.strip()), "")
    shown = "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in line.strip()[:_SHOWN_CHARS])
    return f"{where} says {status} {phrase}".rstrip() + (f": {shown}" if shown else "")
