"""The bytes of one file from a position on, decompressed if it is compressed, and reading them into a stream."""

import asyncio
import os
from collections.abc import Callable, Iterator
from typing import cast

from penstock.connectors.api import Host, Stream
from penstock.connectors.interceptors.api import BadBytes, BadRecord
from penstock.connectors.interceptors.compression import Algorithm, Members
from penstock.connectors.streams import first_of

SUFFIXES: dict[str, Algorithm] = {".gz": "gzip", ".zst": "zstd", ".xz": "xz", ".lz4": "lz4", ".bz2": "bzip2"}
"""By which the compression of a file is recognized."""

_STOPPED = "the connector was stopped"

ReadAt = Callable[[int, int], bytes]
"""Bytes of the file from a position on, at most so many; fewer only at its end. It may block. Raises OSError."""


def pread(fd: int, at: int, size: int) -> bytes:
    return os.pread(fd, size, at)


def algorithm_of(name: str, compression: str) -> Algorithm | None:
    """How a file of this name is compressed, by the option `compression`."""
    match compression:
        case "none":
            return None
        case "auto":
            return next((found for suffix, found in SUFFIXES.items() if name.endswith(suffix)), None)
        case _:
            return cast("Algorithm", compression)


class Contents:
    """A position counts the bytes of the contents. A compressed file is decompressed from its beginning to get there.

    Never more than about a chunk, and what comes of a small piece of compressed data, is in memory.
    """

    def __init__(self, read_at: ReadAt, chunk_bytes: int, algorithm: Algorithm | None, position: int) -> None:
        self._read_at = read_at
        self._chunk_bytes = chunk_bytes
        self._at = position if algorithm is None else 0
        self._skip = 0 if algorithm is None else position
        self._members = None if algorithm is None else Members(algorithm, plain=False)
        self._pieces: Iterator[bytes] = iter(())
        self._failure: BadRecord | None = None

    @property
    def is_before_position(self) -> bool:
        """Whether what was read so far ends before the position, all of which is left out."""
        return self._skip > 0

    def read(self) -> bytes:
        """The next bytes; b"" at the end. Blocks. Raises OSError, and BadRecord after everything that could be
        decompressed.
        """
        if self._members is None:
            return self._raw()
        found = bytearray()
        try:
            while len(found) < self._chunk_bytes and self._failure is None:
                piece = next(self._pieces, None)
                if piece is not None:
                    found += self._wanted(piece)
                elif not self._feed(self._members):
                    break
        except BadRecord as error:
            self._failure = error
        if self._failure is not None and not found:
            raise self._failure
        return bytes(found)

    def _raw(self) -> bytes:
        data = self._read_at(self._at, self._chunk_bytes)
        self._at += len(data)
        return data

    def _feed(self, members: Members) -> bool:
        """Whether there was more."""
        data = self._raw()
        if data:
            self._pieces = members.feed(data)
        else:
            members.finish()
        return bool(data)

    def _wanted(self, piece: bytes) -> bytes:
        """Without what is stored already."""
        skipped = min(self._skip, len(piece))
        self._skip -= skipped
        return piece[skipped:]


async def may_read(stream: Stream, host: Host) -> bool:
    """Whether to continue reading: waits until the stream may send; False when nothing more should be read."""
    if not stream.may_send and not host.is_draining:
        await first_of(stream.ready(), host.draining())
    return not host.is_draining


async def pump(contents: Contents, stream: Stream, host: Host) -> bool:
    """Everything into the stream, which is then finished; False if it was stopped before, and the stream is left at its
    position. Raises OSError, and BadBytes with a dead letter for what cannot be decompressed.
    """
    while await may_read(stream, host):
        try:
            data = await asyncio.to_thread(contents.read)
        except BadRecord as error:
            await stream.dead_letter(b"", f"the file cannot be decompressed: {error}")
            await stream.finish()
            raise BadBytes(str(error), b"") from error
        if not data:
            await stream.finish()
            return True
        await stream.send(data)
    await stream.cut_off(_STOPPED)
    return False
