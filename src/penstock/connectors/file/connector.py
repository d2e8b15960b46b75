"""`file`: files are read, tailed, written in parts, or appended to.

read      every file that matches, once: each is a stream that resumes at its position     exactly-once
tail      the same, while files grow, across rotation and truncation                       exactly-once
write     parts in a directory, by two-phase commit                                        exactly-once, transactional
append    to the end of one file                                                           at-least-once
"""

import asyncio
import logging
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

log = logging.getLogger(__name__)

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


_FRAME_BYTES_MAX = 64 << 20
"""No value is as long, also behind interceptors: where a length is greater, the file does not consist of frames."""

_SCAN_BYTES = 1 << 20


class AppendedFile:
    """What a failed write has left is truncated. After a crash `lines` start on a new line, and the part of a frame is
    truncated: what follows it could never be read.
    """

    def __init__(self, path: Path, form: str) -> None:
        self._path = path
        self._form = form
        self._whole: tuple[os.stat_result | None, int] = (None, 0)
        """The file that was appended to, and its size then: it has whole frames up to there."""

    def append(self, data: bytes) -> None:
        """Returns when it is on disk. A file that was moved away is created again. Raises OSError, and Lost for a file
        of something else than frames.
        """
        is_new = not self._path.exists()
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        try:
            size = self._mended(fd) if self._form == "frames" else os.fstat(fd).st_size
            torn = self._form == "lines" and size > 0 and os.pread(fd, 1, size - 1) != b"\n"
            try:
                _write_all(fd, b"\n" + data if torn else data)
                sync_file(fd)
            except OSError:
                os.ftruncate(fd, size)
                raise
            self._whole = os.fstat(fd), size + len(data)
        finally:
            os.close(fd)
        if is_new:
            sync_directory(self._path.parent)

    def _mended(self, fd: int) -> int:
        """The size of the file, which has whole frames only. It is read once, and then as far as others appended."""
        status = os.fstat(fd)
        known, start = self._whole
        is_known = known is not None and os.path.samestat(known, status) and start <= status.st_size
        end = self._end_of_frames(fd, start if is_known else 0, status.st_size)
        if end < status.st_size:
            log.warning("%s: %d bytes of an incomplete frame are removed", self._path, status.st_size - end)
            os.ftruncate(fd, end)
        return end

    def _end_of_frames(self, fd: int, at: int, size: int) -> int:
        data, start = b"", at
        """The bytes at `start`."""
        while at + 4 <= size:
            if at + 4 > start + len(data):
                data, start = os.pread(fd, _SCAN_BYTES, at), at
            length = int.from_bytes(data[at - start : at - start + 4], "big")
            if length > _FRAME_BYTES_MAX:
                raise Lost(
                    f"{self._path} does not consist of frames: there is none at byte {at}",
                    "Move the file away, or set another path or `format`.",
                )
            if at + 4 + length > size:
                break
            at += 4 + length
        return at


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

    def __init__(self, options: FileOptions) -> None:
        super().__init__(options)
        self._appended = AppendedFile(Path(options.path), options.format)

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
        try:
            await asyncio.to_thread(self._appended.append, data)
        except OSError as error:
            raise Lost(f"{self.options.path} cannot be appended to: {error.strerror or error}") from error
