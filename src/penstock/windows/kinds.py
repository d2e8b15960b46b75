"""The kinds of windows. Times and lengths are microseconds; a window includes its start, not its end."""

from dataclasses import dataclass
from math import gcd
from typing import Literal, TypeAlias

from penstock.core.errors import RequestError

Late: TypeAlias = Literal["keep", "drop"]
"""What happens to late events."""

LateRule: TypeAlias = Literal["window", "strict"]
"""Which events are late: those whose windows are all closed, or all behind the watermark."""

TIME_MIN_US = -62_135_596_800_000_000
"""0001-01-01T00:00:00Z, the first time that Spark and Python both can write."""

TIME_MAX_US = 253_402_300_799_999_999
"""9999-12-31T23:59:59.999999Z, the last one."""

LENGTH_MAX_US = TIME_MAX_US - TIME_MIN_US
"""No window, gap or lateness is longer than the range of valid times, so the sum of a time and three lengths fits 64
bits.
"""


WINDOWS_OF_EVENT_MAX = 1 << 14
"""An event is a row in each of its windows, and each window is a blob of state. Enough for a week of minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sliding:
    """Windows of `size_us`, one starting every `slide_us`, one of them at `offset_us` after 1970."""

    size_us: int
    slide_us: int
    offset_us: int = 0

    def __post_init__(self) -> None:
        """Raises RequestError for invalid lengths."""
        _check_length("size", self.size_us)
        _check_length("slide", self.slide_us)
        if self.slide_us > self.size_us:
            raise RequestError(
                f"windows of {self.size_us} µs every {self.slide_us} µs leave gaps between them",
                "Choose a slide no longer than the size.",
            )
        if self.size_us > self.slide_us * WINDOWS_OF_EVENT_MAX:
            raise RequestError(
                f"windows of {self.size_us} µs every {self.slide_us} µs contain each event more than "
                f"{WINDOWS_OF_EVENT_MAX:,} times",
                "Choose a longer slide.",
            )
        if abs(self.offset_us) > LENGTH_MAX_US:
            raise RequestError(f"the offset {self.offset_us} µs is out of range", "Choose an offset below the slide.")

    @property
    def slice_us(self) -> int:
        """The longest stretch within which no window starts or ends."""
        return gcd(self.size_us, self.slide_us)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tumbling:
    """Windows of `size_us`, one after the other, one of them starting at `offset_us` after 1970."""

    size_us: int
    offset_us: int = 0

    def __post_init__(self) -> None:
        """Raises RequestError for invalid lengths."""
        Sliding(size_us=self.size_us, slide_us=self.size_us, offset_us=self.offset_us)

    @property
    def slide_us(self) -> int:
        """The next window starts where this one ends."""
        return self.size_us

    @property
    def slice_us(self) -> int:
        """A window is one slice."""
        return self.size_us


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """From a key's first event to `gap_us` after its last one; events less than the gap apart share a session."""

    gap_us: int

    def __post_init__(self) -> None:
        """Raises RequestError for an invalid gap."""
        _check_length("gap", self.gap_us)


Window: TypeAlias = Tumbling | Sliding | Session


def _check_length(name: str, length_us: int) -> None:
    if not 0 < length_us <= LENGTH_MAX_US:
        raise RequestError(f"a window's {name} of {length_us} µs is out of range", "Write it like '1 minute'.")
