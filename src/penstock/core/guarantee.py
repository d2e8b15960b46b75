"""What a sink promises of every epoch, and a source of every event."""

from enum import Enum


class Guarantee(Enum):
    EXACTLY_ONCE = "exactly-once"
    IDEMPOTENT = "idempotent"
    """It may be told twice, and the result is the same."""
    AT_LEAST_ONCE = "at-least-once"
    AT_MOST_ONCE = "at-most-once"
    """Of a source whose peer cannot send again: what it had not handed over is lost with the connection."""
