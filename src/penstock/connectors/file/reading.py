"""Files that are read once, each as a stream that resumes at the byte behind what is stored."""

import asyncio
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from glob import glob
from pathlib import Path

from penstock.connectors.api import Host, Lost, Stream
from penstock.connectors.interceptors.api import BadBytes
from penstock.connectors.streams import first_of


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """Its descriptor. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def find_files(pattern: str) -> list[Path]:
    """Regular files that match, in the order of their names, which are absolute. A file that is called so is meant
    itself, whatever its name would match.
    """
    whole = os.path.abspath(pattern)  # noqa: PTH100  as it is written
    if Path(whole).is_file():
        return [Path(whole)]
    names = sorted(glob(whole, recursive=True))  # noqa: PTH207  Path.glob takes no such
    return [path for name in names if (path := Path(name)).is_file()]


async def may_read(stream: Stream, host: Host) -> bool:
    """Whether to read on: waits until the stream may send; False when nothing more is to be read."""
    if not stream.may_send and not host.is_draining:
        await first_of(stream.ready(), host.draining())
    return not host.is_draining


class Reading:
    """All files that match, `parallel` of them at a time, from their positions to their ends."""

    def __init__(self, pattern: str, chunk_bytes: int, parallel: int) -> None:
        self._pattern = pattern
        self._chunk_bytes = chunk_bytes
        self._parallel = parallel

    async def run(self, host: Host) -> None:
        """Raises Lost where there is no file, or one cannot be read: those that are read stay so."""
        paths = await asyncio.to_thread(find_files, self._pattern)
        if not paths:
            raise Lost(f"no file matches {self._pattern}", "It is looked for again.")
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
            try:
                await self._pump(fd, stream, host)
            except BadBytes:
                host.count("bad_files")
            except OSError:
                await stream.cut_off(f"{path} cannot be read on")
                raise
            finally:
                await stream.close()

    async def _pump(self, fd: int, stream: Stream, host: Host) -> None:
        at = stream.position
        while await may_read(stream, host):
            data = await asyncio.to_thread(os.pread, fd, self._chunk_bytes, at)
            if not data:
                await stream.finish()
                return
            await stream.send(data)
            at += len(data)
        await stream.cut_off("the connector was stopped")


_FAILURES_SHOWN = 3
"""Of many files that cannot be read, in one reason."""
