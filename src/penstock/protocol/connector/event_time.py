"""The units in which sources tell event times."""

from enum import Enum


class EventTimeUnit(Enum):
    """A source's `event_time_unit`, as multiplier and divisor to microseconds; what overflows stays at the limit."""

    S = (1_000_000, 1)
    MS = (1000, 1)
    US = (1, 1)
    NS = (1, 1000)
