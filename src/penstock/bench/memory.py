"""The same memory for every contender.

A virtual machine gives memory that it does not use back to its host. The next program to write a
file then waits for the host page by page: here that is four times slower than the disk, and it hits
whoever comes first, while the one after it inherits warm pages. A server that has run for a while
recycles its page cache and never sees this. So a benchmark holds memory between loads, and lets
go of it right before each one.
"""

import mmap
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

MEMORY_SHARE_MAX = 4
"""At most one part in so many of the memory available is held."""

_POPULATE_WRITE = 23
"""MADV_POPULATE_WRITE (Linux 5.14): touch every page in one call."""


class WarmMemory:
    """Up to `size` bytes of memory that are backed by real pages while they are held."""

    def __init__(self, size: int) -> None:
        self._size = min(size, available_bytes() // MEMORY_SHARE_MAX)
        self._held: mmap.mmap | None = None

    def hold(self) -> None:
        if self._held is None and self._size > 0:
            self._held = mmap.mmap(-1, self._size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            with suppress(OSError):  # an older kernel: then it is cold memory for all
                self._held.madvise(_POPULATE_WRITE)

    def release(self) -> None:
        if self._held is not None:
            self._held.close()
            self._held = None

    def __enter__(self) -> Self:
        self.hold()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


def available_bytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0
