"""Short-circuit reads: a reader on the worker's machine reads the journal's files itself, as HDFS clients do. If the
journal is in a bucket, readers on any machine read its closed chapters there (`bucket_reads.py`).

The worker replies where the bytes are: files or objects, offsets in them, and the checksums that the journal has for
them. Every checksum is verified here, so what is read is what the worker stored, whatever happens to the files in the
meantime: an open file keeps its bytes when the worker removes it, and chapters are never written over. Whether this
process may open the files, their permissions decide, and those of the bucket.

Nothing here fails: on any doubt the next bytes are left to the socket. The worker then reads them itself, and reports
what is wrong with them, such as damage or truncation.
"""

import logging
import os
import stat
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing
from itertools import groupby
from types import TracebackType
from typing import Self

from crc32c import crc32c

from penstock.client.segments.bucket_reads import AGAIN_SECONDS, BucketReads, Missed
from penstock.client.segments.connections import Connected
from penstock.client.segments.failures import error_of
from penstock.core.address import this_machine
from penstock.core.errors import PenstockError, ProtocolError, Unavailable
from penstock.protocol.segment import (
    VERSIONED,
    Failure,
    LocatedFile,
    LocatedObject,
    LocatedRow,
    LocateSegment,
    OperationUnsupported,
    SegmentLocated,
)

log = logging.getLogger(__name__)

VARIABLE = "PENSTOCK_SHORT_CIRCUIT"
"""Set to `false` where readers run, it switches their short-circuit reads off."""

_OFF = ("false", "0", "no", "off")

RANGE_BYTES_MIN = 2 << 20
"""A shorter range comes from the socket: with one or two replies, it costs no more than asking where the bytes are."""

PIECE_BYTES = 4 << 20
"""Read at once, into memory that is used again: as much as a reader decodes at once."""

_GAP_BYTES = 4096
"""Rows of a segment lie this close together, or a separate read is cheaper than the bytes between them."""

_BUFFERS_MAX = 1000
"""In one system call; Linux accepts 1024."""

_ROW_BYTES_MAX = 64 << 20
"""Of one append, which is in memory as a whole; workers accept far shorter ones."""

_SUFFIX = ".journal"


class Doubt(Exception):
    """Why the next bytes of a range come from the socket."""


class ShortCircuit:
    """Ranges of segments from the files of one worker, on this machine or in a bucket. Not thread-safe."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        environment: Mapping[str, str] = os.environ,
        objects: BucketReads | None = None,
    ) -> None:
        self._clock = clock
        self._objects = objects or BucketReads(clock)
        self._memory = bytearray()
        self._between = bytearray()
        """For bytes that are read along: heads, and what belongs to other segments."""
        is_off = environment.get(VARIABLE, "").strip().lower() in _OFF
        self._not_before = float("inf") if is_off else 0.0

    def read(
        self, link: Connected, segment: str, start: int, end: int
    ) -> Generator[tuple[int, memoryview], None, None]:
        """Offsets and bytes of [start, end) in order, from `start` on, as far as they can be read here: what follows
        is for the socket. Each view is valid until the next one.
        """
        if end - start < RANGE_BYTES_MIN or not self._may_ask():
            return
        try:
            while start < end:
                located = self._locate(link, segment, start, end)
                with _Files(located.files, located.objects) as files, closing(self._located(files, located)) as found:
                    for data in found:
                        yield start, data
                        start += len(data)
        except (Doubt, Missed, PenstockError, OSError) as doubt:
            log.debug("segment %r from %d to %d over the socket: %s", segment, start, end, doubt)

    def _may_ask(self) -> bool:
        """After a worker has refused, it is not asked for a while: it may be restarted with other settings."""
        return self._clock() >= self._not_before and (bool(this_machine()) or self._objects.is_on)

    def _located(self, files: "_Files", located: SegmentLocated) -> Generator[memoryview, None, None]:
        """Files of this machine come first: they cost no request."""
        for is_local, rows in groupby(located.rows, lambda row: files.is_local(row.file)):
            if is_local:
                for piece in _pieces(rows):
                    yield self._bytes(files, piece, _size(piece))
            else:
                yield from self._objects.read(rows, located.objects)

    def _locate(self, link: Connected, segment: str, start: int, end: int) -> SegmentLocated:
        try:
            reply = link.connected().ask(_request(segment, start, end, objects=self._objects.is_on))
        except (ProtocolError, Unavailable) as error:
            link.drop()
            if isinstance(error, ProtocolError):  # an older worker, which does not know the request
                self._not_before = self._clock() + AGAIN_SECONDS
            raise
        if isinstance(reply, OperationUnsupported):
            self._not_before = self._clock() + AGAIN_SECONDS
        if isinstance(reply, Failure):
            raise error_of(reply)
        if not isinstance(reply, SegmentLocated) or not reply.rows:
            raise Doubt("the worker has not located them")
        if not all(map(_is_valid, reply.rows)) or _size(reply.rows) > end - start:
            raise Doubt("the worker has located something else")
        return reply

    def _bytes(self, files: "_Files", rows: list[LocatedRow], size: int) -> memoryview:
        if len(self._memory) < size:
            self._memory = bytearray(max(size, PIECE_BYTES))
        found = memoryview(self._memory)[:size]
        at = 0
        for span in _spans(rows):
            taken = _size(span)
            self._read_span(files, span, found[at : at + taken])
            at += taken
        return found

    def _read_span(self, files: "_Files", span: list[LocatedRow], into: memoryview) -> None:
        """One system call: wanted bytes go to their place, all others aside. Raises Doubt if a checksum fails."""
        first, last = span[0], span[-1]
        length = last.position + last.head_length + last.length - first.position
        if len(self._between) < length - _whole(span):
            self._between = bytearray(length)
        aside = memoryview(self._between)
        buffers: list[memoryview] = []
        parts: list[tuple[memoryview, memoryview]] = []
        used, at, position = 0, 0, first.position
        for row in span:
            gap = row.position - position
            head, end = used + gap, used + gap + row.head_length
            is_whole = row.take == row.length
            data = into[at : at + row.take] if is_whole else aside[end : end + row.length]
            buffers += (aside[used:end], data)
            parts.append((aside[head:end], data))
            used = end if is_whole else end + row.length
            at += row.take
            position = row.position + row.head_length + row.length
        count = os.preadv(files.get(first.file), buffers, first.position)
        if count != length:
            raise Doubt(f"{files.path(first.file)} at offset {first.position}: {count} bytes instead of {length}")
        at = 0
        for row, (head_bytes, data) in zip(span, parts, strict=True):
            if crc32c(data, crc32c(head_bytes)) != row.checksum:
                raise Doubt(f"{files.path(row.file)} at offset {row.position} fails its checksum")
            if row.take != row.length:
                into[at : at + row.take] = data[row.skip : row.skip + row.take]
            at += row.take


def _request(segment: str, start: int, end: int, *, objects: bool = False) -> Callable[[int, str], bytes]:
    def encode(request_id: int, token: str) -> bytes:
        return VERSIONED.encode(LocateSegment(segment, start, end - start, this_machine(), token, request_id, objects))

    return encode


class _Files:
    """The files of one reply, opened on first use and all closed at the end: one that the worker removes takes up space
    until then.
    """

    def __init__(self, located: tuple[LocatedFile, ...], objects: tuple[LocatedObject, ...]) -> None:
        self._located = located
        self._objects = objects
        self._open: dict[int, int] = {}
        self._is_local: dict[int, bool] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def is_local(self, number: int) -> bool:
        """Whether it is a file here; otherwise it is an object. Raises Doubt or OSError if it is neither."""
        if number not in self._is_local:
            try:
                self.get(number)
            except (Doubt, OSError):
                if not self._has_object(number):
                    raise
                self._is_local[number] = False
            else:
                self._is_local[number] = True
        return self._is_local[number]

    def _has_object(self, number: int) -> bool:
        return number < len(self._objects) and bool(self._objects[number].key)

    def path(self, number: int) -> str:
        return self._located[number].path

    def get(self, number: int) -> int:
        if number not in self._open:
            fd = os.open(self._checked(number), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            self._stack.callback(os.close, fd)
            self._check_identity(fd, self._located[number])
            self._open[number] = fd
        return self._open[number]

    def _checked(self, number: int) -> str:
        """The path: one of a journal's file, and of no other, whatever a worker replies."""
        if number >= len(self._located) or not self.path(number).endswith(_SUFFIX):
            raise Doubt("the worker has not named a journal's file")
        return self.path(number)

    def _check_identity(self, fd: int, located: LocatedFile) -> None:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or (found.st_dev, found.st_ino) != (located.device, located.inode):
            raise Doubt(f"{located.path} is another file here")


def _is_valid(row: LocatedRow) -> bool:
    return 0 < row.take <= row.length - row.skip and row.head_length + row.length <= _ROW_BYTES_MAX


def _size(rows: Iterable[LocatedRow]) -> int:
    return sum(row.take for row in rows)


def _whole(rows: Iterable[LocatedRow]) -> int:
    """The bytes that are read into their place."""
    return sum(row.length for row in rows if row.take == row.length)


def _pieces(rows: Iterable[LocatedRow]) -> Iterator[list[LocatedRow]]:
    """Rows that are read at once: up to PIECE_BYTES, unless one alone has more."""
    piece: list[LocatedRow] = []
    size = 0
    for row in rows:
        if piece and size + row.take > PIECE_BYTES:
            yield piece
            piece, size = [], 0
        piece.append(row)
        size += row.take
    if piece:
        yield piece


def _spans(rows: Iterable[LocatedRow]) -> Iterator[list[LocatedRow]]:
    """Rows that lie close enough together in one file for one system call."""
    span: list[LocatedRow] = []
    for row in rows:
        if span and not _is_near(span, row):
            yield span
            span = []
        span.append(row)
    if span:
        yield span


def _is_near(span: list[LocatedRow], row: LocatedRow) -> bool:
    last = span[-1]
    gap = row.position - (last.position + last.head_length + last.length)
    return row.file == last.file and 0 <= gap <= _GAP_BYTES and 2 * len(span) < _BUFFERS_MAX
