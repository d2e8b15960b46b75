"""Bounded copies on the local disk: blocks of objects that are read, and whole files that were written here."""

import logging
import re
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from threading import Lock

from penstock.bucket.objects import Bucket
from penstock.store.files import Files, LocalFile

log = logging.getLogger(__name__)

BLOCK_BYTES = 1 << 20
"""What a read of a few bytes fetches: a request costs as much time as some hundred kilobytes."""

_BLOCKS_PER_REQUEST_MAX = 16


_BLOCK = "block-"
_NAMES = re.compile(r"block-.+-\d+|fetched-\d+|open-\d+\.journal")


def open_name(file: int) -> str:
    """Of the local copy of a file that is written here."""
    return f"open-{file}.journal"


def clear(files: Files) -> None:
    """Remove what an earlier process has left. Other files in the directory are none of ours."""
    for name in files.list():
        if _NAMES.fullmatch(name):
            files.remove(name)


class PartCache:
    """Files of a directory. Blocks are named by the last part of their object's key, which is unique. The least
    recently used ones are removed first. Any thread may call any method.

    A cache starts empty: after a power cut, files of an earlier process might not have all their bytes.
    """

    def __init__(self, files: Files, bucket: Bucket, bytes_max: int) -> None:
        self._files = files
        self._bucket = bucket
        self._bytes_max = bytes_max
        self._sizes: OrderedDict[str, int] = OrderedDict()
        self._temporaries = 0
        self._lock = Lock()
        self.used_bytes = 0

    def read(self, key: str, offset: int, length: int) -> bytes:
        """Exactly as the object has them. Raises what the bucket raises."""
        pieces, at, end = [], offset, offset + length
        while at < end and (piece := self._piece(key, at, end)):
            pieces.append(piece)
            at += len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def has(self, key: str, offset: int, length: int) -> bool:
        """Whether `read` needs no request, unless blocks are removed before it reads them."""
        numbers = range(offset // BLOCK_BYTES, (offset + length - 1) // BLOCK_BYTES + 1)
        return all(_block(key, number) in self._sizes for number in numbers)

    def _piece(self, key: str, at: int, end: int) -> bytes:
        """Some of the bytes from `at` on: those of one block that is here, of which only they are read, or of several
        that are fetched.
        """
        number, start = divmod(at, BLOCK_BYTES)
        cached = self._cached(_block(key, number), start, min(end - at, BLOCK_BYTES - start))
        if cached is not None:
            return cached
        blocks = self._fetch(key, number, (end - 1) // BLOCK_BYTES)
        return b"".join(blocks)[start : start + end - at]

    def _fetch(self, key: str, first: int, last: int) -> list[bytes]:
        """Blocks up to the next one that is here already."""
        end = first + 1
        while end <= last and end - first < _BLOCKS_PER_REQUEST_MAX and _block(key, end) not in self._sizes:
            end += 1
        data = self._bucket.get_range(key, first * BLOCK_BYTES, (end - first) * BLOCK_BYTES)
        blocks = [data[at : at + BLOCK_BYTES] for at in range(0, (end - first) * BLOCK_BYTES, BLOCK_BYTES)]
        for number, block in enumerate(blocks, first):
            self._put(_block(key, number), block)
        return blocks

    def _cached(self, name: str, offset: int, length: int) -> bytes | None:
        with self._lock:
            size = self._sizes.get(name)
            if size is None:
                return None
            self._sizes.move_to_end(name)
        try:
            data = self._files.open(name).read(offset, length)
        except OSError:  # it was removed just now, or the disk fails: the bucket has it
            return None
        wanted = min(length, size - offset)
        if len(data) < wanted and name.startswith(_BLOCK):
            return None
        return data.ljust(wanted, b"\0")  # a file that was adopted may lack zeros at its end

    def _put(self, name: str, data: bytes) -> None:
        """A disk that is full or fails does not keep a reader from what it has fetched."""
        with self._lock:
            self._temporaries += 1
            temporary = f"fetched-{self._temporaries}"
        try:
            self._files.create(temporary).write(0, [data])
            self._files.rename(temporary, name)
        except OSError as error:
            log.debug("%s cannot be cached: %s", name, error)
            with suppress(OSError):
                self._files.remove(temporary)
            return
        self._add(name, len(data))

    def adopt(self, name: str, size: int) -> None:
        """A file of the directory, which may lack zeros at its end, becomes a copy that may be removed."""
        self._add(name, size)

    def read_adopted(self, name: str, offset: int, length: int) -> bytes | None:
        """None if it was removed."""
        return self._cached(name, offset, length)

    def forget_adopted(self, name: str) -> None:
        self._remove([name])

    def _add(self, name: str, size: int) -> None:
        with self._lock:
            self.used_bytes += size - self._sizes.pop(name, 0)
            self._sizes[name] = size
        self.shrink(0)

    def shrink(self, bytes_needed: int) -> bool:
        """Remove files until the cache has its size, less what is needed. False if none was removed."""
        removed = False
        while True:
            with self._lock:
                if not self._sizes or self.used_bytes + bytes_needed <= self._bytes_max:
                    return removed
                name, size = self._sizes.popitem(last=False)
                self.used_bytes -= size
            with suppress(OSError):
                self._files.remove(name)
            removed = True

    def forget(self, key: str) -> None:
        with self._lock:
            names = [name for name in self._sizes if name.startswith(f"{_block_prefix(key)}-")]
        self._remove(names)

    def _remove(self, names: Sequence[str]) -> None:
        with self._lock:
            for name in names:
                self.used_bytes -= self._sizes.pop(name, 0)
        for name in names:
            with suppress(OSError):
                self._files.remove(name)

    def local(self, name: str) -> LocalFile | None:
        """An adopted file, if it is still here."""
        return self._files.local(name) if name in self._sizes else None


def _last(key: str) -> str:
    return key.rpartition("/")[2]


def _block_prefix(key: str) -> str:
    return f"{_BLOCK}{_last(key)}"


def _block(key: str, number: int) -> str:
    return f"{_block_prefix(key)}-{number}"
