"""`file`: files are read, tailed, written in parts, or appended to.

read      every file that matches, once: each is a stream that resumes at its position     exactly-once
tail      the same, while files grow, across rotation and truncation                       exactly-once
write     parts in a directory, by two-phase commit                                        exactly-once, transactional
append    to the end of one file                                                           at-least-once
"""

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.connectors.api import About, Capabilities, Connector, Host, Lost, Outgoing, ShownBy
from penstock.connectors.file.options import FileOptions
from penstock.connectors.file.reading import Reading, Tailing, fixed_part
from penstock.connectors.permissions import Permissions
from penstock.connectors.tables import SchemaOf
from penstock.connectors.url_forms import UrlForm, path
from penstock.core.durable_files import sync_directory
from penstock.core.platforms import sync_file
from penstock.core.types import Guarantee

if TYPE_CHECKING:
    from penstock.connectors.sink_api import VotingSink

# Mode `append`: values are on disk before they count as delivered.


def encode(values: Sequence[bytes], form: str) -> bytes:
    """In the format of the option `format`."""
    match form:
        case "lines":
            return b"".join(part for value in values for part in (value, b"\n"))
        case "frames":
            return b"".join(part for value in values for part in (len(value).to_bytes(4, "big"), value))
        case _:
            return b"".join(values)


def append(path: Path, data: bytes, *, lines: bool) -> None:
    """Returns when it is on disk. A file that was moved away is created again. What a failed write has left is
    truncated; `lines` start on a new line after what a crash has left. Raises OSError.
    """
    is_new = not path.exists()
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    try:
        size = os.fstat(fd).st_size
        torn = lines and size > 0 and os.pread(fd, 1, size - 1) != b"\n"
        try:
            _write_all(fd, b"\n" + data if torn else data)
            sync_file(fd)
        except OSError:
            os.ftruncate(fd, size)
            raise
    finally:
        os.close(fd)
    if is_new:
        sync_directory(path.parent)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


class File(Connector[FileOptions]):
    about = About(
        "file",
        "Files: read once, tailed while they grow, written exactly once in parts, or appended to.",
        FileOptions,
        Capabilities(
            source=Guarantee.EXACTLY_ONCE,
            sink=Guarantee.EXACTLY_ONCE,
            votes=True,
            resumes=True,
            own_event_times=False,
            on_stream_started="Opens every stream. The port `in` is transactional in mode `write`, and "
            "at-least-once in mode `append`.",
        ),
        example={"mode": "tail", "path": "/var/log/app/*.log"},
        url=UrlForm(written="file:PATH", place=path, fields=("path",), implied={"mode": "write"}),
        shown_by=ShownBy(
            source="tests/application/test_kills_and_files.py::test_nothing_is_lost_and_what_promises_so_has_each_line_once",
            sink="tests/application/test_kills_and_files.py::test_nothing_is_lost_and_what_promises_so_has_each_line_once",
        ),
    )

    @classmethod
    def capabilities(cls, options: FileOptions) -> Capabilities:
        match options.mode:
            case "read" | "tail":
                return Capabilities(source=Guarantee.EXACTLY_ONCE, resumes=True, own_event_times=False)
            case "write":
                claims = frozenset({f"the directory {os.path.normpath(options.path)}"})
                return Capabilities(
                    sink=Guarantee.EXACTLY_ONCE,
                    takes_epochs=True,
                    votes=True,
                    interceptors=frozenset(),
                    claims=claims,
                )
            case "append":
                return Capabilities(sink=Guarantee.AT_LEAST_ONCE)

    @classmethod
    def check_permitted(cls, options: FileOptions, permissions: Permissions) -> None:
        """Of a pattern, the part without wildcards; each file that it finds is checked before it is read."""
        permissions.check_path(Path(fixed_part(options.path) if options.mode in ("read", "tail") else options.path))

    def make_sink(self, name: str, schema: SchemaOf) -> "VotingSink":  # noqa: ARG002
        from penstock.connectors.file.sink import FileSink
        from penstock.connectors.threaded import Threaded

        return Threaded(FileSink(self.options), name)

    async def run(self, host: Host) -> None:
        options = self.options
        match options.mode:
            case "read":
                how = (options.chunk, options.parallel, self.permissions.allows, options.compression)
                await Reading(options.path, *how).run(host)
            case "tail":
                following = (options.poll, options.linger, options.lines)
                await Tailing(options.path, options.chunk, *following, self.permissions.allows).run(host)
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
