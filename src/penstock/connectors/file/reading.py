"""Files that are read once, each as a stream that resumes at the byte after what is stored."""

import asyncio
import logging
import os
import stat
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from glob import glob, has_magic
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from penstock.connectors.api import Host, Lost, Stream, StreamState
from penstock.connectors.file.contents import Contents, algorithm_of, may_read, pread, pump
from penstock.connectors.file.rotated import (
    ANY,
    HEAD_BYTES,
    IN_PART,
    NEWLINE,
    FileName,
    Inode,
    Rotated,
    mark_of,
    names_of,
    opened,
    orphans,
    rest_of,
    rotated_files,
)
from penstock.connectors.interceptors.api import BadBytes
from penstock.connectors.streams import first_of
from penstock.core.errors import PenstockError


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
            contents = Contents(partial(pread, fd), self._chunk_bytes, algorithm, stream.position)
            try:
                await pump(contents, stream, host)
            except BadBytes:
                host.count("bad_files")
            except OSError:
                await stream.cut_off(f"{path} cannot be read any further")
                raise
            finally:
                await stream.close()


_FAILURES_SHOWN = 3
"""How many unreadable files one reason names."""


# Files that are tailed while they grow, each as a stream, across rotation and truncation.
#
# A file is identified by its inode and its first line, not by its name: a renamed file continues where it was, also
# after a restart, and a new file that gets the inode of an old one is new.

log = logging.getLogger(__name__)

_GENERATIONS_MAX = 10_000
"""Files with one inode and the same first line, each after a truncation: beyond this, something else is wrong."""


_SEARCHES = 3
"""A file that was found may be compressed, and so removed, before it is opened: then it is searched again."""


class _Rest(NamedTuple):
    """A file that is not followed, and whose streams are not finished."""

    file: FileName
    names: Sequence[str]
    """Of the streams. More than one only if the worker was killed when a life of the file began."""
    known: Collection[FileName]
    """The files that have or had streams."""


async def _position(name: str, host: Host) -> int:
    stream = await host.open_stream(name, resume=True)
    try:
        return stream.position
    finally:
        await stream.close()


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
        self._compressed: set[Path] = set()
        """Those that were reported."""

    async def run(self, host: Host) -> None:
        host.connected()
        async with asyncio.TaskGroup() as group:
            found = await self._found(host)
            for rest in await self._rests(found, host):
                group.create_task(self._read_rest(rest, found, host))
            while not host.is_draining:
                for file in self._noticed(found):
                    group.create_task(self._follow(file, host))
                await self._pause(host)
                found = await self._found(host)

    async def _found(self, host: Host) -> dict[Inode, Path]:
        """The files that match. Compressed ones are no files that grow."""
        found = await asyncio.to_thread(_inodes, self._pattern, self._allows)
        compressed = {path for path in found.values() if algorithm_of(path.name, "auto") is not None}
        for path in sorted(compressed - self._compressed):
            host.count("compressed_files")
            log.warning("%s: %s is compressed, and not tailed: read it in mode `read`", host.name, path)
        self._compressed = compressed
        return {inode: path for inode, path in found.items() if path not in compressed}

    # Files that were renamed, copied or removed while nobody followed them.

    async def _rests(self, found: Mapping[Inode, Path], host: Host) -> list["_Rest"]:
        """The streams that are not finished, and whose files do not match."""
        names = host.stream_names()
        started = [name for name in names if host.stream_state(name) is StreamState.STARTED]
        if not started:
            return []
        followed = await asyncio.to_thread(names_of, found.items())
        known = followed | {parsed for name in names if (parsed := FileName.parse(name)) is not None}
        return [_Rest(file, names, known) for file, names in orphans(started, followed).items()]

    async def _read_rest(self, rest: "_Rest", followed: Mapping[Inode, Path], host: Host) -> None:
        """Find the file, read what was not read of it, and finish its stream. After a failure the next start does."""
        try:
            for _ in range(_SEARCHES):
                if host.is_draining:
                    return
                candidates = await asyncio.to_thread(rotated_files, self._pattern, followed, self._allows)
                if candidates is None:
                    log.warning(
                        "%s: no directory of %s exists: its rotated files cannot be found", host.name, self._pattern
                    )
                    return
                name, position = await self._last_life(rest, host)
                file = await asyncio.to_thread(rest_of, rest.file, position, candidates, rest.known)
                if isinstance(file, str):
                    await self._report_vanished(rest.file, name, position, file, host)
                    return
                try:
                    await self._read_rotated(rest.file, name, file, host)
                    return
                except FileNotFoundError:  # it was compressed or renamed since
                    await self._pause(host)
        except BadBytes:
            host.count("bad_files")
        except (OSError, PenstockError) as error:
            host.count("failed_files")
            log.warning("%s: the rest of %s is read at the next start: %s", host.name, rest.file, error)

    async def _last_life(self, rest: "_Rest", host: Host) -> tuple[str, int]:
        """The stream of the last life of which something was read, and its position. The others end."""
        positions = {name: await _position(name, host) for name in rest.names}
        last = [*filter(positions.__getitem__, rest.names)][-1:] or rest.names[:1]
        for name in {*rest.names} - {*last}:
            await _end(await host.open_stream(name, resume=True))
        return last[0], positions[last[0]]

    async def _read_rotated(self, rest: FileName, name: str, file: Rotated, host: Host) -> None:
        with opened(file.path) as fd:
            stream = await host.open_stream(name, resume=True, metadata={"path": str(file.path)})
            log.info("%s: %s is the rest of a file that was read up to byte %d", host.name, file.path, stream.position)
            try:
                if file.algorithm is None:
                    await self._pump(Followed(file.path, file.inode, gone=True), fd, stream, str(rest), host)
                else:
                    await pump(
                        Contents(partial(pread, fd), self._chunk_bytes, file.algorithm, stream.position), stream, host
                    )
            finally:
                await stream.close()
        host.count("rotated_files")

    async def _report_vanished(self, rest: FileName, name: str, position: int, reason: str, host: Host) -> None:
        """Its stream must not block the watermark."""
        host.count("vanished_files")
        log.error(
            "%s: a file that was read up to byte %d vanished while the connector was stopped (inode %d, stream %s): "
            "%s. The rest of it is lost",
            host.name,
            position,
            rest.inode.number,
            name,
            reason,
        )
        await _end(await host.open_stream(name, resume=True))

    # Files that match.

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
                if Inode.of(os.fstat(fd)) == file.inode:
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
            stream, generation = await self._open(file, name, generation, fd, host)
            try:
                truncated = await self._pump(file, fd, stream, name, host)
            finally:
                await stream.close()

    async def _open(self, file: Followed, name: str, generation: int, fd: int, host: Host) -> tuple[Stream, int]:
        """The stream of the file's current life: after a truncation, a file with the same first line gets a new
        stream.
        """
        for number in range(generation, _GENERATIONS_MAX):
            stream = await _open_life(file, name, number, host)
            if not stream.position:
                return stream, number
            later = await _open_life(file, name, number + 1, host)
            is_short = stream.position > os.fstat(fd).st_size
            if not later.position and not is_short:
                await _end(later)
                return stream, number
            if not later.position:  # truncated while nobody followed it
                await self._read_copy(file, stream.position, name, stream, host)
            await _end(stream)
            await _end(later)
        raise PenstockError(
            f"{file.path} was truncated {_GENERATIONS_MAX} times", "Let its writer create new files instead."
        )

    async def _name(self, file: Followed, fd: int, host: Host) -> str:
        """The name of its stream, once the first line, or enough of it, is there; empty if it never will be."""
        while not host.is_draining:
            head = await asyncio.to_thread(os.pread, fd, HEAD_BYTES, 0)
            mark = mark_of(head) if self._lines else ANY
            if head and (mark or file.gone):
                return str(FileName(file.inode, mark or mark_of(head + NEWLINE) + IN_PART))
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
                in_line = not self._lines or not piece.endswith(NEWLINE)
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
        mark = mark_of(os.pread(fd, HEAD_BYTES, 0)) if self._lines and not name.endswith(IN_PART) else ""
        return data if not mark or name.endswith(mark) else None

    def _whole(self, data: bytes) -> bytes:
        """Up to the last newline: an incomplete line waits, unless it is longer than a chunk."""
        return data[: data.rfind(NEWLINE) + 1] or (data if len(data) == self._chunk_bytes else b"")


async def _open_life(file: Followed, name: str, number: int, host: Host) -> Stream:
    own = f"{name}~{number}" if number else name
    return await host.open_stream(own, resume=True, metadata={"path": str(file.path)})


async def _end(stream: Stream) -> None:
    """Close the stream of an earlier life of the file: it gets no more data."""
    await stream.finish()
    await stream.close()


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
        mark = mark_of(os.pread(fd, HEAD_BYTES, 0))
    return bool(mark) and name.endswith(mark)


def _inodes(pattern: str, allows: Callable[[Path], bool]) -> dict[Inode, Path]:
    found: dict[Inode, Path] = {}
    for path in find_files(pattern, allows):
        try:
            found.setdefault(Inode.of(path.stat()), path)
        except OSError:  # gone since
            continue
    return found
