"""Files that are read once, each as a stream that resumes at the byte after what is stored."""

import asyncio
import logging
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from glob import glob, has_magic
from hashlib import sha256
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from penstock.connectors.api import Host, Lost, Stream
from penstock.connectors.file.contents import Contents, algorithm_of, may_read, pump
from penstock.connectors.interceptors.api import BadBytes
from penstock.connectors.streams import first_of
from penstock.core.errors import PenstockError


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """Its file descriptor. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def fixed_part(pattern: str) -> str:
    """The file, or the directory above the first wildcard."""
    whole = os.path.abspath(pattern)  # noqa: PTH100  as `find_files`
    if Path(whole).is_file() or not has_magic(whole):
        return whole
    parts = [*takewhile(lambda part: not has_magic(part), Path(whole).parts)]
    return str(Path(*parts))


def find_files(pattern: str, allows: Callable[[Path], bool] = lambda _: True) -> list[Path]:
    """Regular files that match and are allowed, sorted by their absolute names. A pattern that is the name of an
    existing file means that file only.
    """
    whole = os.path.abspath(pattern)  # noqa: PTH100  as it is written
    if Path(whole).is_file():
        return [Path(whole)] if allows(Path(whole)) else []
    names = sorted(glob(whole, recursive=True))  # noqa: PTH207  Path.glob takes no such
    return [path for name in names if (path := Path(name)).is_file() and allows(path)]


class Reading:
    """All files that match, `parallel` at a time, from their positions to their ends."""

    def __init__(
        self,
        pattern: str,
        chunk_bytes: int,
        parallel: int,
        allows: Callable[[Path], bool] = lambda _: True,
        compression: str = "none",
    ) -> None:
        self._pattern = pattern
        self._allows = allows
        self._chunk_bytes = chunk_bytes
        self._compression = compression
        self._parallel = parallel

    async def run(self, host: Host) -> None:
        """Raises Lost if there is no file, or one cannot be read: files that were read are not read again."""
        paths = await asyncio.to_thread(find_files, self._pattern, self._allows)
        if not paths:
            raise Lost(f"no file matches {self._pattern}", "It is checked again automatically.")
        host.connected()
        failures = await self._read_all(paths, host)
        if failures:
            raise Lost("; ".join(failures[:_FAILURES_SHOWN]))
        if not host.is_draining:
            host.finished()

    async def _read_all(self, paths: Sequence[Path], host: Host) -> list[str]:
        waiting = iter(paths)
        failures: list[str] = []

        async def work() -> None:
            for path in waiting:
                if host.is_draining:
                    return
                try:
                    await self._read(path, host)
                except OSError as error:
                    failures.append(f"{path}: {error.strerror or error}")

        async with asyncio.TaskGroup() as group:
            for _ in range(min(self._parallel, len(paths))):
                group.create_task(work())
        return failures

    async def _read(self, path: Path, host: Host) -> None:
        with opened(path) as fd:
            stream = await host.open_stream(str(path), resume=True, metadata={"path": str(path)})
            algorithm = algorithm_of(path.name, self._compression)
            contents = Contents(partial(_pread, fd), self._chunk_bytes, algorithm, stream.position)
            try:
                await pump(contents, stream, host)
            except BadBytes:
                host.count("bad_files")
            except OSError:
                await stream.cut_off(f"{path} cannot be read any further")
                raise
            finally:
                await stream.close()


def _pread(fd: int, at: int, size: int) -> bytes:
    return os.pread(fd, size, at)


_FAILURES_SHOWN = 3
"""How many unreadable files one reason names."""


# Files that are tailed while they grow, each as a stream, across rotation and truncation.
#
# A file is identified by its inode and its first line, not by its name: a renamed file continues where it was, also
# after a restart, and a new file that gets the inode of an old one is new.

log = logging.getLogger(__name__)

_HEAD_BYTES = 1024
"""The part of the first line that identifies a file: log lines start with their time."""

_GENERATIONS_MAX = 10_000
"""Files with one inode and the same first line, each after a truncation: beyond this, something else is wrong."""


_NEWLINE = b"\n"

_IN_PART = "p"
"""Follows the mark of a first line that may still grow: not a digit of a mark."""


class Inode(NamedTuple):
    device: int
    number: int


@dataclass(slots=True, eq=False)
class Followed:
    """A file that is tailed. `gone`: it has no name any more."""

    path: Path
    inode: Inode
    gone: bool = False


class Tailing:
    """All files that match, now and later, each in its own task: a paused stream blocks no other."""

    def __init__(
        self,
        pattern: str,
        chunk_bytes: int,
        poll_seconds: float,
        linger_seconds: float,
        lines: bool,
        allows: Callable[[Path], bool] = lambda _: True,
    ) -> None:
        self._pattern = pattern
        self._allows = allows
        self._chunk_bytes = chunk_bytes
        self._poll_seconds = poll_seconds
        self._linger_seconds = linger_seconds
        self._lines = lines
        self._followed: dict[Inode, Followed] = {}
        self._reported: dict[Path, str] = {}
        """The errors of files that exist: each is logged once, not at every poll."""

    async def run(self, host: Host) -> None:
        host.connected()
        async with asyncio.TaskGroup() as group:
            while not host.is_draining:
                for file in self._noticed(await asyncio.to_thread(_inodes, self._pattern, self._allows)):
                    group.create_task(self._follow(file, host))
                await self._pause(host)

    def _noticed(self, found: dict[Inode, Path]) -> Iterable[Followed]:
        """The files that are new."""
        for inode, file in self._followed.items():
            file.gone = inode not in found
        new = [Followed(path, inode) for inode, path in found.items() if inode not in self._followed]
        self._followed |= {file.inode: file for file in new}
        self._reported = {path: reason for path in found.values() if (reason := self._reported.get(path)) is not None}
        return new

    async def _pause(self, host: Host) -> None:
        await first_of(asyncio.sleep(self._poll_seconds), host.draining())

    async def _follow(self, file: Followed, host: Host) -> None:
        """Follow the file until it is gone, or reading should stop. The next poll finds a failed file again."""
        try:
            with opened(file.path) as fd:
                if _inode(os.fstat(fd)) == file.inode:
                    await self._follow_opened(file, fd, host)
        except BadBytes:
            host.count("bad_files")
        except (OSError, PenstockError) as error:
            host.count("failed_files")
            level = logging.DEBUG if self._reported.get(file.path) == str(error) else logging.WARNING
            self._reported[file.path] = str(error)
            log.log(level, "%s: %s is read again later: %s", host.name, file.path, error)
            await self._pause(host)
        finally:
            del self._followed[file.inode]

    async def _follow_opened(self, file: Followed, fd: int, host: Host) -> None:
        name, generation, truncated = "", 0, True
        while truncated:
            before, name = name, await self._name(file, fd, host)
            if not name:
                return
            generation = generation + 1 if name == before else 0
            stream, generation = await _open(file, name, generation, fd, host)
            try:
                truncated = await self._pump(file, fd, stream, name, host)
            finally:
                await stream.close()

    async def _name(self, file: Followed, fd: int, host: Host) -> str:
        """The name of its stream, once the first line, or enough of it, is there; empty if it never will be."""
        while not host.is_draining:
            head = await asyncio.to_thread(os.pread, fd, _HEAD_BYTES, 0)
            mark = _mark(head) if self._lines else "any"
            if head and (mark or file.gone):
                return f"{file.inode.device:x}-{file.inode.number:x}-{mark or _mark(head + _NEWLINE) + _IN_PART}"
            if file.gone:
                return ""
            await self._pause(host)
        return ""

    async def _pump(self, file: Followed, fd: int, stream: Stream, name: str, host: Host) -> bool:
        """Read to the end of the file. Returns whether it was truncated, even if it has grown beyond its old length
        since.
        """
        at, quiet, in_line = stream.position, 0.0, not self._lines
        while await may_read(stream, host):
            data = await asyncio.to_thread(self._read, fd, at, name)
            is_over = file.gone and quiet >= self._linger_seconds
            piece = data if is_over or in_line or data is None else self._whole(data)
            if piece:
                await stream.send(piece)
                at, quiet = at + len(piece), 0.0
                in_line = not self._lines or not piece.endswith(_NEWLINE)
            elif data is None or os.fstat(fd).st_size < at:
                host.count("truncations")
                await self._read_copy(file, at, name, stream, host)
                await stream.finish()
                return True
            elif is_over:
                await stream.finish()
                return False
            else:
                await self._pause(host)
                quiet += self._poll_seconds
        await stream.cut_off("the connector was stopped")
        return False

    async def _read_copy(self, file: Followed, at: int, name: str, stream: Stream, host: Host) -> None:
        """The file was truncated: what was not read of it is in its copy, if `copytruncate` has made one."""
        copy = await asyncio.to_thread(_copy_of, file.path, at, name) if self._lines else None
        if copy is None or not self._allows(copy):
            return
        with opened(copy) as fd:
            while (data := await asyncio.to_thread(os.pread, fd, self._chunk_bytes, at)) and not host.is_draining:
                await stream.send(data)
                at += len(data)
        host.count("copies_read")

    def _read(self, fd: int, at: int, name: str) -> bytes | None:
        """The data at this position; None if the file's first line has changed, so it is another file."""
        data = os.pread(fd, self._chunk_bytes, at)
        mark = _mark(os.pread(fd, _HEAD_BYTES, 0)) if self._lines and not name.endswith(_IN_PART) else ""
        return data if not mark or name.endswith(mark) else None

    def _whole(self, data: bytes) -> bytes:
        """Up to the last newline: an incomplete line waits, unless it is longer than a chunk."""
        return data[: data.rfind(_NEWLINE) + 1] or (data if len(data) == self._chunk_bytes else b"")


async def _open(file: Followed, name: str, generation: int, fd: int, host: Host) -> tuple[Stream, int]:
    """The stream of the file's current life: after a truncation, a file with the same first line gets a new stream."""
    for number in range(generation, _GENERATIONS_MAX):
        stream = await _open_life(file, name, number, host)
        if not stream.position:
            return stream, number
        later = await _open_life(file, name, number + 1, host)
        is_last = not later.position and stream.position <= os.fstat(fd).st_size
        await _end(later if is_last else stream)
        if is_last:
            return stream, number
        await _end(later)
    raise PenstockError(
        f"{file.path} was truncated {_GENERATIONS_MAX} times", "Let its writer create new files instead."
    )


async def _open_life(file: Followed, name: str, number: int, host: Host) -> Stream:
    own = f"{name}~{number}" if number else name
    return await host.open_stream(own, resume=True, metadata={"path": str(file.path)})


async def _end(stream: Stream) -> None:
    """Close the stream of an earlier life of the file: it gets no more data."""
    await stream.finish()
    await stream.close()


def _mark(head: bytes) -> str:
    """The mark of the first line, or of the part that is used; empty while that is incomplete."""
    line, newline, _ = head.partition(_NEWLINE)
    return sha256(line).hexdigest()[:16] if newline or len(head) == _HEAD_BYTES else ""


def _copy_of(path: Path, at: int, name: str) -> Path | None:
    """The newest file beside this one that continues what was read of it: with the same first line, and longer."""
    found: list[tuple[float, Path]] = []
    for other in path.parent.iterdir():
        if not other.name.startswith((f"{path.name}.", f"{path.name}-")):
            continue
        try:
            status = other.stat()
            if stat.S_ISREG(status.st_mode) and status.st_size > at and _is_marked(other, name):
                found.append((status.st_mtime, other))
        except OSError:  # gone since
            continue
    return max(found)[1] if found else None


def _is_marked(path: Path, name: str) -> bool:
    with opened(path) as fd:
        mark = _mark(os.pread(fd, _HEAD_BYTES, 0))
    return bool(mark) and name.endswith(mark)


def _inodes(pattern: str, allows: Callable[[Path], bool]) -> dict[Inode, Path]:
    found: dict[Inode, Path] = {}
    for path in find_files(pattern, allows):
        try:
            found.setdefault(_inode(path.stat()), path)
        except OSError:  # gone since
            continue
    return found


def _inode(status: os.stat_result) -> Inode:
    return Inode(status.st_dev, status.st_ino)
