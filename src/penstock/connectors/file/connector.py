"""`file`: files that are read, followed, written or appended to.

read      every file that matches, once: a stream per file that resumes at its position     exactly once
tail      the same, while they grow: over rotation and truncation                           exactly once
write     parts in a directory, by two-phase commit                                         exactly once
append    behind the end of one file                                                        at least once
"""

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import quote, urlencode

from pydantic import Field, model_validator

from penstock.connectors.api import About, Capabilities, Connector, Host, Lost, Options, Outgoing
from penstock.connectors.file.reading import Reading
from penstock.connectors.file.tailing import Tailing
from penstock.connectors.values import Size, SomeSeconds
from penstock.core.types import Guarantee

# Values behind the end of one file, on disk before they count as delivered.


def encode(values: Sequence[bytes], form: str) -> bytes:
    """`lines`: each with a newline. `raw`: one right behind the other. `frames`: each behind its length, a u32."""
    match form:
        case "lines":
            return b"".join(part for value in values for part in (value, b"\n"))
        case "frames":
            return b"".join(part for value in values for part in (len(value).to_bytes(4, "big"), value))
        case _:
            return b"".join(values)


def append(path: Path, data: bytes, *, lines: bool) -> None:
    """Return when it is on disk. A file that was moved away meanwhile is made anew. What a failed write has left is cut
    off again, and `lines` begin on a line of their own behind what a crash has left. Raises OSError.
    """
    is_new = not path.exists()
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    try:
        size = os.fstat(fd).st_size
        torn = lines and size > 0 and os.pread(fd, 1, size - 1) != b"\n"
        try:
            _write_all(fd, b"\n" + data if torn else data)
            os.fsync(fd)
        except OSError:
            os.ftruncate(fd, size)
            raise
    finally:
        os.close(fd)
    if is_new:
        _sync_directory(path.parent)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


_OF_MODES = {
    "chunk": ("read", "tail"),
    "parallel": ("read",),
    "poll": ("tail",),
    "linger": ("tail",),
    "lines": ("tail",),
    "format": ("write", "append"),
    "rotate_bytes": ("write",),
    "rotate": ("write",),
}
"""In which modes an option means something."""


class FileOptions(Options):
    """Relative paths begin where the worker was started. What is read is cut into events by `interceptors: in`, such as
    `split`.

    A file that is followed is known by its inode and its first line: one that is renamed goes on where it was, and one
    that is truncated or made anew is read from its beginning. What is overwritten before it was read is not seen, nor
    that a file was truncated which begins with the same line and is as long as before when it is next looked at.
    """

    mode: Literal["read", "tail", "write", "append"]
    """`read` and `tail` have the port `out`, `write` and `append` the port `in`."""
    path: Annotated[str, Field(min_length=1)]
    """Of `read` and `tail`: a file, or a pattern with `*`, `?`, `[…]` and `**`. Of `write`: a directory that belongs to
    the connector. Of `append`: a file."""
    chunk: Annotated[Size, Field(le=1 << 20)] = 256 << 10
    """How much of a file is read at once. Modes read, tail."""
    parallel: Annotated[int, Field(ge=1, le=64)] = 4
    """How many files are read at the same time. Mode read."""
    poll: SomeSeconds = 0.5
    """How often is looked for what is new. Mode tail."""
    linger: SomeSeconds = 5.0
    """How long a file that was renamed or removed must be silent to be over. Mode tail."""
    lines: bool = True
    """A line that is still being written waits for its end. Mode tail."""
    format: Literal["lines", "raw", "frames"] = "lines"
    """`lines`: a newline behind each value. `raw`: nothing. `frames`: its length before it, a u32, big-endian. Modes
    write, append."""
    rotate_bytes: Size | None = None
    """A new part is begun when the last one has at least so many bytes. Mode write."""
    rotate: SomeSeconds | None = None
    """A new part is begun for every such stretch of time, counted from 1970. Mode write."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name in sorted(self.model_fields_set & _OF_MODES.keys()):
            if self.mode not in _OF_MODES[name]:
                raise ValueError(f"{name} means nothing in mode {self.mode}: it is for {' and '.join(_OF_MODES[name])}")
        return self


class File(Connector[FileOptions]):
    about = About(
        "file",
        "Files: read once, followed while they grow, written exactly once in parts, or appended to.",
        FileOptions,
        Capabilities(
            source=Guarantee.EXACTLY_ONCE,
            sink=Guarantee.EXACTLY_ONCE,
            resumes=True,
            own_event_times=False,
            on_stream_started="Opens the stream at once. The guarantee of `in` is exactly-once in mode write, and "
            "at-least-once in mode append.",
        ),
        example={"mode": "tail", "path": "/var/log/app/*.log"},
    )

    @classmethod
    def capabilities(cls, options: FileOptions) -> Capabilities:
        match options.mode:
            case "read" | "tail":
                return Capabilities(source=Guarantee.EXACTLY_ONCE, resumes=True, own_event_times=False)
            case "write":
                claims = frozenset({f"the directory {os.path.normpath(options.path)}"})
                return Capabilities(sink=Guarantee.EXACTLY_ONCE, interceptors=frozenset(), claims=claims)
            case "append":
                return Capabilities(sink=Guarantee.AT_LEAST_ONCE)

    @classmethod
    def sink_url(cls, options: FileOptions, name: str) -> str | None:  # noqa: ARG003
        if options.mode != "write":
            return None
        given = {"format": options.format, "rotate_bytes": options.rotate_bytes, "rotate_seconds": options.rotate}
        query = urlencode({key: value for key, value in given.items() if value not in (None, "lines")})
        return f"file:{quote(options.path)}{'?' if query else ''}{query}"

    async def run(self, host: Host) -> None:
        options = self.options
        match options.mode:
            case "read":
                await Reading(options.path, options.chunk, options.parallel).run(host)
            case "tail":
                tailing = Tailing(options.path, options.chunk, options.poll, options.linger, options.lines)
                await tailing.run(host)
            case "write":
                await super().run(host)
            case "append":
                await self._append(b"")
                await super().run(host)

    async def deliver(self, outgoing: Outgoing, host: Host) -> None:  # noqa: ARG002
        await self._append(encode(outgoing.values, self.options.format))

    async def _append(self, data: bytes) -> None:
        path, lines = Path(self.options.path), self.options.format == "lines"
        try:
            await asyncio.to_thread(append, path, data, lines=lines)
        except OSError as error:
            raise Lost(f"{path} cannot be appended to: {error.strerror or error}") from error
