"""A sink that writes files: data in its final place, and a transaction log that records how much of it counts.

    PATH/part-00000000000000000000.txt     from the first byte on; the number counts the bytes before it
    PATH/part-00000000000001048620.txt     started between two epochs, when the one before was large or old enough
    PATH/part-NUMBER.txt.gz                with `compression`: each epoch is a member of its own
    PATH/state/log                         votes and decisions, like those of `penstock.client.Sink`

Readers find out with `read_committed_parts` what is committed.
"""

import lzma
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numba import types

from penstock.client.sink.log import Aborted, Applied, Bound, Committed, TransactionLog, Voted, open_log
from penstock.client.sink.participant import NO_ROOM
from penstock.connectors.file.options import FileOptions
from penstock.connectors.file.parts import (
    STATE,
    RotatingFile,
    find_parts,
    make_directory,
)
from penstock.connectors.sink_api import (
    YES,
    Block,
    CheckReport,
    Position,
    SinkLost,
    SinkReport,
    Transaction,
    Vote,
    accept_any,
)
from penstock.core.errors import PenstockError, RequestError
from penstock.core.plugins import needed
from penstock.core.types import Buffer
from penstock.protocol.intrinsics import BYTES, I64S, U8S, compiled, copy, store8, store32
from penstock.protocol.stored.bulk import Bytes

# The kernels of the file sink's formats, compiled by numba: loops over the rows of a column of bytes.
#
# They have no bounds checks: they trust the offsets, which come from the decoder.

NEWLINE = 10


@compiled(types.void(I64S, BYTES, U8S))
def fill_lines(offsets: Any, data: Any, out: Any) -> Any:
    """Each row and a newline. `out` has one byte more for each row than the rows have."""
    to = 0
    for row in range(offsets.shape[0] - 1):
        start = offsets[row]
        size = offsets[row + 1] - start
        copy(out, to, data, start, size)
        store8(out, to + size, NEWLINE)
        to += size + 1


@compiled(types.void(I64S, BYTES, U8S))
def fill_frames(offsets: Any, data: Any, out: Any) -> Any:
    """The length as a u32, and the row. `out` has four bytes more for each row than the rows have."""
    to = 0
    for row in range(offsets.shape[0] - 1):
        start = offsets[row]
        size = offsets[row + 1] - start
        store32(out, to, size)
        copy(out, to + 4, data, start, size)
        to += size + 4


def lines(values: Bytes) -> memoryview:
    return _filled(fill_lines, values, 1)


def frames(values: Bytes) -> memoryview:
    return _filled(fill_frames, values, 4)


def _filled(fill: Any, values: Bytes, extra: int) -> memoryview:
    offsets = np.ascontiguousarray(values.offsets, np.int64)
    out = np.empty(int(offsets[-1] - offsets[0]) + extra * len(values), np.uint8)
    data = values.data if len(values.data) else b"\0"  # numpy rejects an empty buffer
    fill(offsets, np.frombuffer(data, np.uint8), out)
    return out.data


# The layout of messages in the files of a file sink: whole blocks at a time, by compiled kernels.


class FileFormat(Enum):
    """None of them contains keys or event times."""

    LINES = "lines"
    """Payload and newline. A newline inside a payload is not escaped: use `frames` for those."""
    RAW = "raw"
    """The payloads, with nothing between them."""
    FRAMES = "frames"
    """The length of the payload as a big-endian u32, and the payload."""

    @property
    def suffix(self) -> str:
        """The suffix of file names."""
        return _SUFFIXES[self]


_SUFFIXES = {FileFormat.LINES: ".txt", FileFormat.RAW: ".bin", FileFormat.FRAMES: ".frames"}


def encode(values: Bytes, form: FileFormat) -> Buffer:
    """The bytes of these payloads, in order. At most four bytes are added to each; RAW copies nothing."""
    if form is FileFormat.RAW:
        return memoryview(values.data)[int(values.offsets[0]) : int(values.offsets[len(values)])]
    return lines(values) if form is FileFormat.LINES else frames(values)


# Compressed parts: what is committed ends with the end of a member, so every prefix of it can be decompressed.


class Compressor(Protocol):
    def compress(self, data: Buffer, /) -> bytes: ...

    def flush(self) -> bytes:
        """The end of the member."""


class Compression(NamedTuple):
    suffix: str
    make: Callable[[], Compressor | None]


def _zstd() -> Compressor:
    made: Compressor = needed("zstandard", "zstd", "compression").ZstdCompressor().compressobj()
    return made


COMPRESSIONS = {
    "none": Compression("", lambda: None),
    "gzip": Compression(".gz", lambda: zlib.compressobj(wbits=zlib.MAX_WBITS | 16)),
    "xz": Compression(".xz", lzma.LZMACompressor),
    "zstd": Compression(".zst", _zstd),
}


_OWNER = "delivery"
"""The owner of the log: bound when the sink takes over its directory."""


class FileSink:
    """A BlockingSink, exactly once: a vote is durable before it is returned, and the data before the vote.

    No epoch is split between two parts. On a full disk it votes no. One process at a time can own the directory.
    """

    def __init__(self, options: FileOptions, clock: Callable[[], float] = time.time) -> None:
        self._options = options
        self._path = Path(options.path)
        self._format = FileFormat(options.format)
        self._clock = clock
        self._compression = COMPRESSIONS[options.compression]
        self._compression.make()  # or NotInstalled
        self._file = RotatingFile(self._path, self._format.suffix + self._compression.suffix)
        self._member: Compressor | None = None
        """Of the transaction that is being written."""
        self._log: TransactionLog | None = None
        self._written_at: float | None = None
        """When the last part was committed to, or its file was written before this run."""
        self._begun_at: float | None = None
        """When the transaction that is being written started."""
        self._no_room = ""

    def open(self, decided: bytes, check: CheckReport = accept_any) -> None:
        with _lost(self._path):
            make_directory(self._path)
            self._log = open_log(self._path / STATE)
            self._take_over(self._log)
            check(_report(self._log))
            self._settle(self._log, decided)
            self._rewind(self._log)
            self._written_at = self._file.written_at()

    def write(self, block: Block) -> None:
        if self._no_room:
            return
        try:
            if self._begun_at is None:
                self._begin()
            data = encode(block.values, self._format)
            self._file.append(data if self._member is None else self._member.compress(data))
        except OSError as error:
            self._note_full(error)

    def prepare(self, transaction: Transaction) -> Vote:
        log = self._opened()
        try:
            if not self._no_room:
                self._end_member()
                self._file.sync()
            if not log.has_room:
                log.make_room()
        except OSError as error:
            self._note_full(error)
        if self._no_room:
            no = Vote(False, self._no_room)
            self.abort()
            return no
        with _lost(self._path):
            log.append(Voted(transaction.id, transaction.start, transaction.end, self._file.size))
        return YES

    def commit(self, transaction: Transaction) -> None:
        log = self._opened()
        last, in_doubt = log.state.last, log.state.in_doubt
        if in_doubt is not None and in_doubt.txn_id == transaction.id:
            with _lost(self._path):
                _commit(log, transaction.id)
            self._written_at, self._begun_at = self._begun_at or self._written_at, None
        elif last is None or last.txn_id != transaction.id:
            raise SinkLost(
                f"{self._path}: it has not voted on {transaction.id.decode()}, which is to be committed", _RESTORED
            )

    def abort(self) -> None:
        log = self._opened()
        with _lost(self._path):
            if log.state.in_doubt is not None:
                log.append(Aborted(log.state.in_doubt.txn_id))
            self._rewind(log)

    def close(self) -> None:
        with suppress(OSError):
            self._file.close()
        if self._log is not None:
            with suppress(OSError):
                self._log.close()
            self._log = None

    def _opened(self) -> TransactionLog:
        if self._log is None:
            raise SinkLost(f"{self._path} is not open")
        return self._log

    def _take_over(self, log: TransactionLog) -> None:
        if log.state.instance is not None:
            return
        for _, path in find_parts(self._path):
            hint = "Restore its state directory, or move the parts away to start from scratch."
            raise RequestError(f"{path} exists, but the transaction log is empty", hint)
        log.append(Bound(_OWNER))

    @staticmethod
    def _settle(log: TransactionLog, decided: bytes) -> None:
        in_doubt = log.state.in_doubt
        if in_doubt is None:
            return
        if in_doubt.txn_id == decided:
            _commit(log, decided)
        else:
            log.append(Aborted(in_doubt.txn_id))

    def _rewind(self, log: TransactionLog) -> None:
        self._file.rewind(log.state.mark)
        self._member = None
        self._begun_at, self._no_room = None, ""

    def _begin(self) -> None:
        """A new part can start only at the start of a transaction."""
        now = self._clock()
        if self._file.part_size and self._is_due(now):
            self._file.start_part()
        self._begun_at = now
        self._member = self._compression.make()

    def _end_member(self) -> None:
        if self._member is not None:
            self._file.append(self._member.flush())
            self._member = None

    def _is_due(self, now: float) -> bool:
        rotate_bytes, rotate_seconds = self._options.rotate_bytes, self._options.rotate
        if rotate_bytes is not None and self._file.part_size >= rotate_bytes:
            return True
        if rotate_seconds is None or self._written_at is None:
            return False
        return now // rotate_seconds != self._written_at // rotate_seconds

    def _note_full(self, error: OSError) -> None:
        if error.errno not in NO_ROOM:
            raise SinkLost(f"{self._path}: {error}") from error
        self._no_room = f"no room for the epoch in {self._path}: {error.strerror}"


def _report(log: TransactionLog) -> SinkReport:
    last, in_doubt = log.state.last, log.state.in_doubt
    return SinkReport(
        Position(b"", 0) if last is None else Position(last.txn_id, last.end),
        None if in_doubt is None else Position(in_doubt.txn_id, in_doubt.end),
    )


def _commit(log: TransactionLog, txn_id: bytes) -> None:
    """Only the log changes: the data is already where it will stay."""
    log.append(Committed(txn_id))
    log.append_lazily(Applied(txn_id))


@contextmanager
def _lost(path: Path) -> Iterator[None]:
    """Any error of the disk or the log becomes the reason why the sink cannot work now."""
    try:
        yield
    except OSError as error:
        raise SinkLost(f"{path}: {error}") from error
    except PenstockError as error:
        raise SinkLost(str(error), error.hint) from error


_RESTORED = "Is its state directory older than the worker's data? Restore both from the same copy."
