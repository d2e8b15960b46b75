"""Compression: of each record or value alone, or of a whole stream as it arrives.

A decompressor never returns more than it is asked for at once, whatever its input is: a small input that expands to
gigabytes costs a limit, and no memory.
"""

import bz2
import gzip
import lzma
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from penstock.connectors.api import Options
from penstock.connectors.interceptors.api import (
    RECORD_BYTES_LIMIT,
    RECORD_BYTES_MAX,
    AboutInterceptor,
    BadBytes,
    BadRecord,
    Incoming,
    Interceptor,
    OutgoingInterceptor,
    RecordStage,
    ValueStage,
)
from penstock.core.plugins import needed

Algorithm = Literal["gzip", "zlib", "zstd", "lz4", "snappy", "snappy-raw", "xz", "bzip2", "brotli"]

MAGIC: dict[bytes, Algorithm] = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x04\x22\x4d\x18": "lz4",
    b"\xff\x06\x00\x00sNaPpY": "snappy",
    b"\xfd7zXZ\x00": "xz",
    b"\x78\x01": "zlib",
    b"\x78\x5e": "zlib",
    b"\x78\x9c": "zlib",
    b"\x78\xda": "zlib",
    **dict.fromkeys((b"BZh%d1AY&SY" % level for level in range(1, 10)), "bzip2"),
    **dict.fromkeys((b"BZh%d\x17rE8P\x90" % level for level in range(1, 10)), "bzip2"),  # of nothing
}
"""How compressed data of each format begins. Brotli, and Snappy without frames, have no mark."""

LEVELS: dict[Algorithm, range] = {
    **dict.fromkeys(("gzip", "zlib", "xz"), range(10)),
    "bzip2": range(1, 10),
    "zstd": range(1, 23),
    "lz4": range(17),
    "brotli": range(12),
}

_MAGIC_BYTES_MAX = max(map(len, MAGIC))

PIECE_BYTES = 1 << 18
"""The most that a decompressor returns at once."""

STREAM_FEED_BYTES = 1 << 15
"""Compressed bytes of a stream that are decompressed at once: with `expansion_max` it bounds what that takes."""

_ZSTD_FEED_BYTES = 1 << 10
"""zstandard returns all that its input contains: a kilobyte cannot contain more than 32 MiB (a block of 128 KiB has at
least four bytes)."""

_ZSTD_WRITE_BYTES = 1 << 16
"""The buffer that each call of zstandard takes. Most calls with so little input return nothing, so it is not larger."""

_XZ_MEMORY_MAX = 128 << 20
"""What a stream of xz may ask for as its dictionary: the largest preset asks for 64 MiB."""

_SNAPPY_CHUNK_BYTES_MAX = 4 + 4 + 76_490
"""A chunk of the framing format: its header, checksum, and 64 KiB that do not compress."""

_SNAPPY_CHUNKS = PIECE_BYTES >> 16
"""Chunks that are decompressed at once, of 64 KiB each."""

_SNAPPY_START = b"\xff\x06\x00\x00sNaPpY"


def detected(data: bytes) -> Algorithm | None:
    """The format of compressed data that begins like this; None if it has no known mark."""
    return next((name for magic, name in MAGIC.items() if data.startswith(magic)), None)


# Decompressors: each for one compressed piece, which others may follow.


class Decompressor(ABC):
    """Of one member, frame or stream of a format. Errors of its library come out as BadRecord."""

    @abstractmethod
    def feed(self, data: bytes) -> Iterator[bytes]:
        """What comes of it, in pieces of about PIECE_BYTES. Raises BadRecord."""

    @property
    @abstractmethod
    def is_done(self) -> bool:
        """Whether the end was reached: then `rest` is what follows it."""

    rest: bytes = b""
    is_padded: bool = False
    """Whether zero bytes may follow, up to a block of the tape or disk that it was written to."""


class _Zlib(Decompressor):
    def __init__(self, bits: int, *, is_padded: bool = False) -> None:
        self._inner = zlib.decompressobj(bits)
        self.is_padded = is_padded

    def feed(self, data: bytes) -> Iterator[bytes]:
        while data and not self._inner.eof:
            try:
                yield self._inner.decompress(data, PIECE_BYTES)
            except zlib.error as error:
                raise BadRecord(str(error)) from None
            data = self._inner.unconsumed_tail
        self.rest = self._inner.unused_data

    @property
    def is_done(self) -> bool:
        return self._inner.eof


class _WithLimit(Decompressor):
    """For libraries whose decompressors are like those of the standard library: lzma, bz2, lz4.frame."""

    def __init__(self, inner: Any, errors: tuple[type[Exception], ...]) -> None:
        self._inner = inner
        self._errors = errors

    def feed(self, data: bytes) -> Iterator[bytes]:
        inner = self._inner
        while not inner.eof and (data or not inner.needs_input):
            try:
                found = inner.decompress(data, PIECE_BYTES)
            except self._errors as error:
                raise BadRecord(str(error)) from None
            data = b""
            if not found and (inner.needs_input or inner.eof):
                break
            yield found
        self.rest = inner.unused_data or b""

    @property
    def is_done(self) -> bool:
        return bool(self._inner.eof)


class _Zstd(Decompressor):
    def __init__(self) -> None:
        library = needed("zstandard", "zstd", "compression")
        self._error = library.ZstdError
        self._inner = library.ZstdDecompressor(max_window_size=_XZ_MEMORY_MAX).decompressobj(_ZSTD_WRITE_BYTES)

    def feed(self, data: bytes) -> Iterator[bytes]:
        for start in range(0, len(data), _ZSTD_FEED_BYTES):
            try:
                yield self._inner.decompress(data[start : start + _ZSTD_FEED_BYTES])
            except self._error as error:
                raise BadRecord(str(error)) from None
            if self._inner.eof:
                self.rest = self._inner.unused_data + data[start + _ZSTD_FEED_BYTES :]
                return

    @property
    def is_done(self) -> bool:
        return bool(self._inner.eof)


class _Brotli(Decompressor):
    """Nothing can follow it: the format has no mark by which the next one would be known."""

    def __init__(self) -> None:
        library = needed("brotli", "brotli", "compression")
        self._error = library.error
        self._inner = library.Decompressor()

    def feed(self, data: bytes) -> Iterator[bytes]:
        if self._inner.is_finished():
            raise BadRecord("data after the end of a brotli stream")
        while True:
            try:
                found = self._inner.process(data, output_buffer_limit=PIECE_BYTES)
            except self._error as error:
                raise BadRecord(str(error) or "not valid brotli") from None
            data = b""
            yield found
            if self._inner.can_accept_more_data() or self._inner.is_finished():
                return

    @property
    def is_done(self) -> bool:
        return False

    @property
    def is_finished(self) -> bool:
        return bool(self._inner.is_finished())


class _Plain(Decompressor):
    """What is not compressed, to its end."""

    is_finished = True

    def feed(self, data: bytes) -> Iterator[bytes]:
        yield data

    @property
    def is_done(self) -> bool:
        return False


class _Snappy(Decompressor):
    """The framing format: a chunk becomes at most 64 KiB, and as many as fit into a piece are decompressed together."""

    def __init__(self) -> None:
        self._library = needed("cramjam", "snappy", "compression")
        self._buffer = b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        data, at, start, count = self._buffer + data, 0, 0, 0
        while at + 4 <= len(data):
            end = at + 4 + int.from_bytes(data[at + 1 : at + 4], "little")
            if end - at > _SNAPPY_CHUNK_BYTES_MAX and data[at] < 0x80:
                raise BadRecord(f"a snappy chunk of {end - at} bytes")
            if end > len(data):
                break
            if data[at] == 0xFF and data[at:end] != _SNAPPY_START:
                raise BadRecord("not the start of a snappy stream")
            if 1 < data[at] < 0x80:
                raise BadRecord(f"a snappy chunk of the unknown kind {data[at]}")
            count += data[at] <= 1
            at = end
            if count == _SNAPPY_CHUNKS:
                yield self._chunks(data[start:at])
                start, count = at, 0
        if count:
            yield self._chunks(data[start:at])
        self._buffer = data[at:]

    def _chunks(self, chunks: bytes) -> bytes:
        try:
            return bytes(self._library.snappy.decompress(_SNAPPY_START + chunks))
        except self._library.DecompressionError as error:
            raise BadRecord(str(error)) from None

    @property
    def is_done(self) -> bool:
        return False  # a stream may be followed by another one in the same frames

    @property
    def is_finished(self) -> bool:
        return not self._buffer


def decompressor(algorithm: Algorithm) -> Decompressor:
    """Raises NotInstalled."""
    match algorithm:
        case "gzip":
            return _Zlib(zlib.MAX_WBITS | 16, is_padded=True)
        case "zlib":
            return _Zlib(zlib.MAX_WBITS)
        case "xz":
            return _WithLimit(lzma.LZMADecompressor(lzma.FORMAT_XZ, _XZ_MEMORY_MAX), (lzma.LZMAError, MemoryError))
        case "bzip2":
            return _WithLimit(bz2.BZ2Decompressor(), (OSError, ValueError))
        case "lz4":
            library = needed("lz4.frame", "lz4", "compression")
            return _WithLimit(library.LZ4FrameDecompressor(), (RuntimeError, ValueError))
        case "zstd":
            return _Zstd()
        case "brotli":
            return _Brotli()
        case "snappy":
            return _Snappy()
        case "snappy-raw":
            raise BadRecord("snappy without frames cannot be decompressed as a stream")


class Members:
    """Decompresses members that follow each other, each of any length: what `cat a.gz b.gz` is."""

    def __init__(self, algorithm: Literal["auto"] | Algorithm, *, plain: bool) -> None:
        self._given = algorithm
        self._plain = plain
        self._current: Decompressor | None = None
        self._head = b""
        """The start of a member whose format is not known yet."""
        self._is_padded = False
        """Whether zero bytes between members are left out."""

    @property
    def is_between(self) -> bool:
        """Whether everything is complete."""
        current = self._current
        return not self._head and (current is None or getattr(current, "is_finished", False))

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Raises BadRecord."""
        while data:
            current = self._current
            if current is None and self._is_padded and not (data := data.lstrip(b"\0")):
                return
            if current is None:
                data, self._head = self._head + data, b""
                current = self._current = self._begun(data)
            if current is None:
                self._head = data
                return
            yield from current.feed(data)
            if not current.is_done:
                return
            data, self._current, self._is_padded = current.rest, None, current.is_padded

    def finish(self) -> bytes:
        """There is no more: what is left without compression. Raises BadRecord if a member is incomplete. It can be fed
        again afterwards.
        """
        is_between, head = self.is_between, self._head
        is_short = self._current is None and self._plain
        self._current, self._head, self._is_padded = None, b"", False
        if is_between or is_short:
            return head
        raise BadRecord("the compressed data is incomplete" if len(head) < 2 or detected(head) else _NO_MARK)

    def _begun(self, data: bytes) -> Decompressor | None:
        """None while its format is not known."""
        if self._given != "auto":
            return decompressor(self._given)
        found = detected(data)
        if found is not None:
            return decompressor(found)
        if any(magic.startswith(data) for magic in MAGIC):
            return None
        if not self._plain:
            raise BadRecord(_NO_MARK)
        return _Plain()


_NO_MARK = "the format of the compression is not known: it does not begin like any known format"


# The interceptors.


class CompressOptions(Options):
    algorithm: Algorithm = "gzip"
    """`snappy` is its framing format, and `snappy-raw` the plain one. zstd, lz4, snappy and brotli need
    `pip install 'penstock-streams[compression]'`."""
    level: int | None = None
    """How hard it tries, in the format's own numbers: 0 to 9 for gzip, zlib and xz, 1 to 9 for bzip2, 1 to 22 for zstd,
    0 to 16 for lz4, 0 to 11 for brotli. Snappy has none."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.level is None:
            return self
        levels = LEVELS.get(self.algorithm)
        if levels is None:
            raise ValueError(f"{self.algorithm} has no levels")
        if self.level not in levels:
            raise ValueError(f"a level of {self.algorithm} is {levels.start} to {levels.stop - 1}")
        return self


class Compress(Interceptor[CompressOptions]):
    """What is compressed alone can also follow each other in a stream, except with brotli and snappy-raw."""

    about = AboutInterceptor(
        "compress", "Compresses each value alone: put `join` before it to compress many together.", CompressOptions
    )

    def outgoing(self) -> OutgoingInterceptor:
        return ValueStage(compressor(self.options.algorithm, self.options.level))


def compressor(algorithm: Algorithm, level: int | None = None) -> Callable[[bytes], bytes]:
    """Raises NotInstalled."""
    match algorithm:
        case "gzip":
            return lambda value: gzip.compress(value, 6 if level is None else level, mtime=0)
        case "zlib":
            return lambda value: zlib.compress(value, -1 if level is None else level)
        case "xz":
            return lambda value: lzma.compress(value, preset=level)
        case "bzip2":
            return lambda value: bz2.compress(value, 9 if level is None else level)
        case "zstd":
            zstd = needed("zstandard", "zstd", "compression").ZstdCompressor(level=3 if level is None else level)
            return lambda value: bytes(zstd.compress(value))
        case "lz4":
            lz4 = needed("lz4.frame", "lz4", "compression")
            return lambda value: bytes(lz4.compress(value, compression_level=level or 0))
        case "brotli":
            brotli = needed("brotli", "brotli", "compression")
            return lambda value: bytes(brotli.compress(value, quality=5 if level is None else level))
        case "snappy":
            snappy = needed("cramjam", "snappy", "compression").snappy
            return lambda value: bytes(snappy.compress(value))
        case "snappy-raw":
            snappy = needed("cramjam", "snappy", "compression").snappy
            return lambda value: bytes(snappy.compress_raw(value))


class DecompressOptions(Options):
    """As the first interceptor of a connection or a file it decompresses the stream as it arrives, with as many members
    as follow each other: an interceptor that cuts records comes after it. Such a file is read from its beginning again
    after a restart, and what was stored is left out. Behind an interceptor that cuts records, and for connectors that
    send whole messages, it decompresses each record alone.
    """

    algorithm: Literal["auto"] | Algorithm = "auto"
    """`auto` finds the format by its first bytes; brotli and snappy-raw have no such mark. zstd, lz4, snappy and brotli
    need `pip install 'penstock-streams[compression]'`."""
    plain: bool = False
    """Pass what begins with none of the known marks as it is (with `auto`). Otherwise it is a dead letter."""
    record_bytes_max: int = Field(default=RECORD_BYTES_MAX, ge=1, le=RECORD_BYTES_LIMIT)
    """A record that becomes longer is a dead letter."""
    expansion_max: int = Field(default=1100, ge=2, le=1_000_000)
    """How many bytes may come of one compressed byte of a stream, after the first mebibyte. Beyond it the rest is a
    dead letter, and ends the stream. 1100 is more than gzip can reach."""


class Decompress(Interceptor[DecompressOptions]):
    about = AboutInterceptor("decompress", "Decompresses records, or a whole stream.", DecompressOptions)

    def incoming(self, *, framed: bool = False) -> Incoming:
        if self.options.algorithm != "auto":
            compressor(self.options.algorithm)  # raises NotInstalled
        return RecordStage(self._decompressed) if framed else DecompressedStream(self.options)

    def _decompressed(self, record: bytes) -> bytes:
        options, limit = self.options, self.options.record_bytes_max
        if options.algorithm == "snappy-raw":
            return _raw_snappy(record, limit)
        members, found, size = Members(options.algorithm, plain=options.plain), [], 0
        for piece in members.feed(record):
            found.append(piece)
            size += len(piece)
            if size > limit:
                raise BadRecord(f"it becomes longer than {limit} bytes (record_bytes_max)")
        found.append(members.finish())
        return b"".join(found)


def _raw_snappy(record: bytes, limit: int) -> bytes:
    library = needed("cramjam", "snappy", "compression")
    try:
        if library.snappy.decompress_raw_len(record) > limit:
            raise BadRecord(f"it becomes longer than {limit} bytes (record_bytes_max)")
        return bytes(library.snappy.decompress_raw(record))
    except library.DecompressionError as error:
        raise BadRecord(f"is not valid snappy: {error}") from None


class DecompressedStream(Incoming):
    """Of one stream, as it arrives."""

    is_transform = True
    feed_bytes = STREAM_FEED_BYTES
    _FREE = 1 << 20
    """Bytes that any input may become: small inputs compress best."""
    _LEFT_MAX = 8 << 20
    """The most that earlier inputs leave to later ones: a block, of at most 4 MiB, comes out as a whole when its last
    byte is there."""

    def __init__(self, options: DecompressOptions) -> None:
        self._options = options
        self._members = Members(options.algorithm, plain=options.plain)
        self._allowance = self._FREE

    @property
    def buffered(self) -> int:
        return 0 if self._members.is_between else 1

    def feed(self, data: bytes) -> list[bytes]:
        earned = len(data) * self._options.expansion_max
        self._allowance = earned + min(self._allowance, self._LEFT_MAX)
        found: list[bytes] = []
        try:
            for piece in self._members.feed(data):
                self._allowance -= len(piece)
                if self._allowance < 0:
                    raise BadRecord(f"more than {self._options.expansion_max} bytes from each one (expansion_max)")
                if piece:
                    found.append(piece)
        except BadRecord as bad:
            raise BadBytes(f"it cannot be decompressed: {bad}", data, found) from None
        return found

    def finish(self) -> list[bytes]:
        self._allowance = self._FREE
        try:
            rest = self._members.finish()
        except BadRecord as bad:
            raise BadBytes(f"it cannot be decompressed: {bad}", b"") from None
        return [rest] if rest else []
