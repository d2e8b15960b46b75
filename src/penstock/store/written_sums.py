"""The checksums of what was written to a file."""

from bisect import bisect_left, bisect_right
from typing import NamedTuple

from crc32c import crc32c

from penstock.core.types import Buffer

_JOINED_BYTES_MAX = 64 << 10
"""Small writes that follow each other share a checksum: a chapter has some thousand of them at most."""


class WrittenSum(NamedTuple):
    start: int
    end: int
    checksum: int | None
    """None if it is not known any more, because a part of what was written there has changed."""


class WrittenSums:
    """In order, without overlaps. What is in none of them was never written."""

    def __init__(self) -> None:
        self._sums: list[WrittenSum] = []

    def __contains__(self, one: WrittenSum) -> bool:
        at = bisect_left(self._sums, one.start, key=_start)
        return at < len(self._sums) and self._sums[at] == one

    @property
    def end(self) -> int:
        """Nothing was written at or behind it."""
        return self._sums[-1].end if self._sums else 0

    def add(self, start: int, data: Buffer) -> None:
        end = start + len(data)
        if self._sums and start < self._sums[-1].end:
            self.forget(start, end, drop=True)
            self._sums.insert(bisect_left(self._sums, start, key=_start), WrittenSum(start, end, crc32c(data)))
            return
        last = self._sums[-1] if self._sums else None
        if last and last.end == start and last.checksum is not None and end - last.start <= _JOINED_BYTES_MAX:
            self._sums[-1] = WrittenSum(last.start, end, crc32c(data, last.checksum))
        else:
            self._sums.append(WrittenSum(start, end, crc32c(data)))

    def forget(self, start: int, end: int, *, drop: bool = False) -> None:
        """These bytes change. `drop`: they count as never written."""
        changed: list[WrittenSum] = []
        touched = self.overlapping(start, end)
        for each in touched:
            if drop:
                changed += [WrittenSum(first, last, None) for first, last in _around(each, start, end)]
            else:
                changed.append(each._replace(checksum=None))
        if touched:
            at = bisect_left(self._sums, touched[0].start, key=_start)
            self._sums[at : at + len(touched)] = changed

    def truncate(self, size: int) -> None:
        if self._sums and size < self._sums[-1].end:
            self.forget(size, self._sums[-1].end, drop=True)

    def overlapping(self, start: int, end: int) -> list[WrittenSum]:
        return self._sums[bisect_right(self._sums, start, key=_end) : bisect_left(self._sums, end, key=_start)]


def _around(one: WrittenSum, start: int, end: int) -> list[tuple[int, int]]:
    """What is left of it without these bytes."""
    return [(first, last) for first, last in ((one.start, start), (end, one.end)) if first < last]


def _start(one: WrittenSum) -> int:
    return one.start


def _end(one: WrittenSum) -> int:
    return one.end
