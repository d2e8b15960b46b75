"""How much time a write gets: enough for a slow line, and no more, since a connection that is lost without notice is
only given up when that time is over.
"""

LARGE_BYTES = 17 * 2**20
"""Objects above this size get more time. A full object of the log, 16 MiB and its head, is smaller."""

LARGE_FACTOR = 10
"""How much more. Reads of any size get it too, as long as bytes keep coming."""

_BULKY_BYTES = 1 << 20
"""Writes above this size, up to that of large ones, get twice as much time after each that was too slow. The time of
smaller ones is not spent on the line.
"""


class WriteTimes:
    """Learns from writes how many times the usual time-out bulky ones need. Any thread may call any method."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._bulky_factor = 1

    def factor(self, size: int) -> int:
        """How many times the usual time-out a write of so many bytes gets."""
        if size > LARGE_BYTES:
            return LARGE_FACTOR
        return self._bulky_factor if size > _BULKY_BYTES else 1

    def timed_out(self, size: int, factor: int) -> None:
        """A write that had been sent was not answered in the time that it got."""
        if _BULKY_BYTES < size <= LARGE_BYTES:
            self._bulky_factor = min(2 * factor, LARGE_FACTOR)

    def done(self, size: int, seconds: float) -> None:
        """At this pace, would the largest bulky write take at most half of a shorter time-out? Then that is enough."""
        if _BULKY_BYTES < size <= LARGE_BYTES and self._bulky_factor > 1:
            shorter = self._bulky_factor // 2
            if seconds * LARGE_BYTES / size <= self._timeout * shorter / 2:
                self._bulky_factor = shorter
