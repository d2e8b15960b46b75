"""Records that are preceded by their length."""

from collections.abc import Sequence
from struct import Struct
from typing import Literal

from pydantic import Field

from penstock.connectors.api import Options
from penstock.connectors.interceptors.api import (
    RECORD_BYTES_LIMIT,
    RECORD_BYTES_MAX,
    AboutInterceptor,
    BadBytes,
    Incoming,
    Interceptor,
    OutgoingInterceptor,
)

_CODES = {1: "B", 2: "H", 4: "I", 8: "Q"}


class LengthPrefixedOptions(Options):
    length_bytes: Literal[1, 2, 4, 8] = 4
    """The size of the length, in bytes."""
    order: Literal["big", "little"] = "big"
    """The byte order of the length."""
    record_bytes_max: int = Field(default=RECORD_BYTES_MAX, ge=1, le=RECORD_BYTES_LIMIT)
    """A longer record is a dead letter, as far as it was received, and ends the stream."""


class LengthPrefixed(Interceptor[LengthPrefixedOptions]):
    about = AboutInterceptor("length-prefixed", "Each record has its length before it.", LengthPrefixedOptions)

    def incoming(self) -> Incoming:
        return Unprefixing(self.options)

    def outgoing(self) -> OutgoingInterceptor:
        return Prefixing(self.options)


def _length(options: LengthPrefixedOptions) -> Struct:
    return Struct((">" if options.order == "big" else "<") + _CODES[options.length_bytes])


class Unprefixing:
    """For one stream. The pieces of a record are joined once, when it is complete."""

    def __init__(self, options: LengthPrefixedOptions) -> None:
        self._length = _length(options)
        self._limit = options.record_bytes_max
        self._buffer = bytearray()
        """The start of a length and its record."""
        self._needed = self._length.size
        """The buffer size at which the next step is possible: a length, or the end of the record."""

    @property
    def buffered(self) -> int:
        return len(self._buffer)

    def feed(self, data: bytes) -> list[bytes]:
        if len(self._buffer) + len(data) < self._needed:
            self._buffer += data
            return []
        return self._cut(b"".join((self._buffer, data)))

    def finish(self) -> list[bytes]:
        rest = bytes(self._buffer)
        self._keep(b"", self._length.size)
        if rest:
            raise BadBytes(f"only {len(rest)} bytes of a record and its length", rest)
        return []

    def _cut(self, data: bytes) -> list[bytes]:
        length_at, width, limit, size = self._length.unpack_from, self._length.size, self._limit, len(data)
        records: list[bytes] = []
        start, needed = 0, width
        while start + width <= size:
            (length,) = length_at(data, start)
            if length > limit:
                self._keep(b"", width)
                raise BadBytes(f"a record of {length} bytes; at most {limit} (record_bytes_max)", data[start:], records)
            end = start + width + length
            if end > size:
                needed = end - start
                break
            records.append(data[start + width : end])
            start = end
        self._keep(data[start:], needed)
        return records

    def _keep(self, rest: bytes, needed: int) -> None:
        self._buffer, self._needed = bytearray(rest), needed


class Prefixing:
    """For one stream: each value leaves immediately."""

    buffered = 0
    counts = None
    wait_seconds = None

    def __init__(self, options: LengthPrefixedOptions) -> None:
        self._length = _length(options)
        self._limit = min(options.record_bytes_max, (1 << 8 * options.length_bytes) - 1)

    def feed(self, values: Sequence[bytes]) -> list[bytes]:
        if max(map(len, values), default=0) > self._limit:
            longest = max(values, key=len)
            raise BadBytes(f"a value of {len(longest)} bytes; at most {self._limit} can leave", longest)
        pack = self._length.pack
        return [pack(len(value)) + value for value in values]

    def flush(self) -> list[bytes]:
        return []
