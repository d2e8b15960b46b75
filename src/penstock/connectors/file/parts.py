"""Parts: the files of a directory as one sequence of bytes, split where a new file was started."""

import errno
import os
import re
from dataclasses import dataclass
from pathlib import Path

from penstock.client.sink import DataFile, read_committed
from penstock.core.durable_files import sync_directory
from penstock.core.errors import Damaged
from penstock.core.types import Buffer

STATE = "state"
"""The directory of the transaction log, next to the parts."""

_NAME = re.compile(r"part-(\d{20})\.[a-z]+(?:\.[a-z]+)?")


@dataclass(frozen=True, slots=True)
class CommittedPart:
    """A file, and how much of it is committed: always whole messages, of whole epochs."""

    path: Path
    start: int
    """Committed bytes in the parts before it."""
    size: int
    """Committed bytes in this part, more than 0. Whatever follows them is not committed, and may vanish."""
    is_complete: bool
    """Nothing will be appended to it: it may be moved away or removed."""


def read_committed_parts(directory: str | os.PathLike[str]) -> list[CommittedPart]:
    """What a file sink has committed in this directory, oldest first; also while it runs.

    A reader reads `size` bytes of each `path`, and may continue later from there: committed bytes never change. An
    epoch is in one part. Raises RequestError if no file sink has ever run on the directory.
    """
    folder = Path(directory)
    committed = read_committed(folder / STATE).size
    parts = [(start, path) for start, path in find_parts(folder) if start < committed]
    ends = [start for start, _ in parts[1:]]
    whole = [
        CommittedPart(path, start, min(end - start, path.stat().st_size), True)
        for (start, path), end in zip(parts, ends, strict=False)
    ]
    return [*whole, *(CommittedPart(path, start, committed - start, False) for start, path in parts[-1:])]


def find_parts(directory: Path) -> list[tuple[int, Path]]:
    """The start of each part, and its file; in order."""
    matches = [(_NAME.fullmatch(path.name), path) for path in directory.iterdir()]
    return sorted((int(match[1]), path) for match, path in matches if match is not None)


class RotatingFile:
    """Bytes are appended to the last part. `start_part` starts a new one, whose name and bytes are durable after
    `sync`. Readers may remove the parts before the last one.
    """

    def __init__(self, directory: Path, suffix: str) -> None:
        self._directory = directory
        self._suffix = suffix
        self._part: DataFile | None = None
        self._start = 0
        self.size = 0
        """The bytes of all parts, including those that have been removed since."""

    @property
    def part_size(self) -> int:
        return self.size - self._start

    def written_at(self) -> float | None:
        """When the last part was last written to, in seconds since 1970. Truncation does not count."""
        return None if self._part is None else self._part.path.stat().st_mtime

    def rewind(self, size: int) -> None:
        """Continue at this size: everything after it is void, and removed. Raises Damaged if there is less, or an
        impossible part.
        """
        self.close()
        for start, path in find_parts(self._directory):
            if start > size:
                raise Damaged(f"{path} starts after byte {size}, where the transaction log ends", _OLD_STATE)
            if start == size:
                path.unlink()
        parts = find_parts(self._directory)
        if parts:
            self._resume(*parts[-1], size)
        elif size:
            raise Damaged(f"{self._directory} has no part, but the transaction log records {size} bytes", _LOST)
        self.size = size

    def append(self, data: Buffer) -> None:
        """On OSError any part of it may have been written: call `rewind` to continue."""
        if self._part is None or "".join(self._part.path.suffixes) != self._suffix:
            self.start_part()
        assert self._part is not None
        self._part.write_at(self.part_size, data)
        self.size += len(data)

    def start_part(self) -> None:
        self.close()
        path = self._directory / f"part-{self.size:020}{self._suffix}"
        # The directory is synced too: a part that has a vote cannot lose its name.
        self._part, self._start = DataFile(path), self.size

    def sync(self) -> None:
        if self._part is not None:
            self._part.sync()

    def close(self) -> None:
        if self._part is not None:
            self._part.close()
            self._part = None

    def _resume(self, start: int, path: Path, size: int) -> None:
        self._part, self._start = DataFile(path), start
        if self._part.size() < size - start:
            raise Damaged(
                f"{path} has {self._part.size()} bytes, but the transaction log records {size - start}", _LOST
            )
        written = path.stat()
        self._part.truncate(size - start)
        os.utime(path, ns=(written.st_atime_ns, written.st_mtime_ns))


def make_directory(directory: Path) -> None:
    """Durably; the umask decides who may read it. Raises NotADirectoryError if something else is there."""
    if directory.is_dir():
        return
    make_directory(directory.parent)
    if directory.exists():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(directory))
    directory.mkdir(exist_ok=True)
    sync_directory(directory.parent)


_OLD_STATE = "The state directory is older than the data: restore both from the same copy."
_LOST = "Restore the last part; or move the whole directory away: new output then goes to a new one."
