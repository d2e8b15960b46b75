"""A directory in memory: nothing is ever lost, nothing ever fails but for lack of room."""

import errno
import os
import sys
from collections.abc import Callable, Sequence

from penstock.core.errors import StoreInUse
from penstock.core.types import Buffer


def os_error(code: int, name: str | None = None) -> OSError:
    """What the operating system would raise; OSError picks FileNotFoundError and the like."""
    return OSError(code, os.strerror(code), name)


def put(content: bytearray, offset: int, data: bytes) -> None:
    """Place `data` at `offset`, with zeros before it where the content is too short."""
    if data:
        if offset > len(content):
            fit(content, offset)
        content[offset : offset + len(data)] = data


def fit(content: bytearray, size: int) -> None:
    """Cut the content, or lengthen it with zeros."""
    if size < len(content):
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))


class MemoryFile:
    """One of the open files that share a content."""

    __slots__ = ("_free_bytes", "_open_content")

    def __init__(self, content: bytearray, free_bytes: Callable[[], int]) -> None:
        self._open_content: bytearray | None = content
        self._free_bytes = free_bytes

    @property
    def _content(self) -> bytearray:
        if self._open_content is None:
            raise os_error(errno.EBADF)
        return self._open_content

    def read(self, offset: int, length: int) -> bytes:
        # A slice, and no memoryview: a view would keep another thread from making the file longer.
        return bytes(self._content[offset : offset + length])

    def write(self, offset: int, buffers: Sequence[Buffer]) -> None:
        data = b"".join(buffers)
        if data:
            self._need_room(offset + len(data))
        put(self._content, offset, data)

    def sync(self) -> None:
        _ = self._content  # the one thing that can be wrong is that it is closed

    def allocate(self, size: int) -> None:
        self._need_room(size)
        fit(self._content, max(size, len(self._content)))

    def truncate(self, size: int) -> None:
        del self._content[size:]

    def size(self) -> int:
        return len(self._content)

    def close(self) -> None:
        self._open_content = None

    def _need_room(self, size: int) -> None:
        growth = size - len(self._content)
        if growth > 0 and growth > self._free_bytes():
            raise os_error(errno.ENOSPC)


class MemoryFiles:
    """A dict of contents. They outlive `close`: whoever locks it next finds what was there. Threads may share it.

    `space` limits the sum of the sizes of all files that have a name.
    """

    def __init__(self, space: int | None = None) -> None:
        self._contents: dict[str, bytearray] = {}
        self._space = space
        self._locked = False

    def list(self) -> list[str]:
        return sorted(self._contents)

    def create(self, name: str) -> MemoryFile:
        if name in self._contents:
            raise os_error(errno.EEXIST, name)
        self._contents[name] = bytearray()
        return self.open(name)

    def open(self, name: str) -> MemoryFile:
        return MemoryFile(self._find(name), self.free_bytes)

    def rename(self, old: str, new: str) -> None:
        content = self._find(old)
        del self._contents[old]
        self._contents[new] = content

    def remove(self, name: str) -> None:
        self._find(name)
        del self._contents[name]

    def sync(self) -> None:
        """Nothing is more durable than it was."""

    def free_bytes(self) -> int:
        if self._space is None:
            return sys.maxsize
        return max(0, self._space - sum(map(len, self._contents.values())))

    def lock(self) -> None:
        if self._locked:
            raise StoreInUse("these files in memory are in use by this process")
        self._locked = True

    def close(self) -> None:
        self._locked = False

    def _find(self, name: str) -> bytearray:
        try:
            return self._contents[name]
        except KeyError:
            raise os_error(errno.ENOENT, name) from None
