"""Records that are preceded by their length: binary, as a varint, or in decimal digits."""

from collections.abc import Sequence
from struct import Struct
from typing import Literal, NamedTuple, Protocol

from pydantic import Field

from penstock.connectors.api import Options
from penstock.connectors.interceptors.api import (
    RECORD_BYTES_LIMIT,
    RECORD_BYTES_MAX,
    AboutInterceptor,
    AnyDelimiter,
    BadBytes,
    BadRecord,
    Delimiter,
    Incoming,
    Interceptor,
    OutgoingInterceptor,
    ValueStage,
    delimiter_bytes,
)

_CODES = {1: "B", 2: "H", 4: "I", 8: "Q"}

_VARINT_BYTES_MAX = 10
"""64 bits, seven in each byte."""

_DIGITS_MAX = 20
"""Those of 64 bits."""


class LengthPrefixedOptions(Options):
    form: Literal["binary", "varint", "text"] = "binary"
    """`binary`: an unsigned number of `length_bytes`. `varint`: as in Protocol Buffers, the lowest seven bits first.
    `text`: decimal digits and a `separator`, as in RFC 6587 (syslog over TCP)."""
    length_bytes: Literal[1, 2, 4, 8] = 4
    """The size of a binary length, in bytes."""
    order: Literal["big", "little"] = "big"
    """The byte order of a binary length."""
    separator: Delimiter = " "
    """Stands between a length in digits and its record. A netstring has `:` here, and `,` as its terminator."""
    terminator: AnyDelimiter = ""
    """Stands after each record, and does not count in its length."""
    record_bytes_max: int = Field(default=RECORD_BYTES_MAX, ge=1, le=RECORD_BYTES_LIMIT)
    """A longer record is a dead letter, as far as it was received, and ends the stream."""


class LengthPrefixed(Interceptor[LengthPrefixedOptions]):
    about = AboutInterceptor("length-prefixed", "Each record has its length before it.", LengthPrefixedOptions)
    cuts = True
    takes_parts = True

    def incoming(self, *, framed: bool = False) -> Incoming:  # noqa: ARG002  records may cross those before it
        return Unprefixing(self.options)

    def outgoing(self) -> OutgoingInterceptor:
        return Prefixing(self.options) if self.options.form == "binary" else ValueStage(_prefixed(self.options))


# Lengths.


class Length(NamedTuple):
    """A record starts `start` bytes after the place of its length, and is `bytes` long."""

    start: int
    bytes: int


class _ReadLength(Protocol):
    def __call__(self, data: bytes, at: int) -> Length | int:
        """The length that starts there, or how many bytes are needed to know more. Raises BadRecord."""


def _reader(options: LengthPrefixedOptions) -> _ReadLength:
    if options.form == "varint":
        return _read_varint
    if options.form == "text":
        return _digits_reader(delimiter_bytes(options.separator))
    binary = _struct(options)
    unpack, width = binary.unpack_from, binary.size

    def read(data: bytes, at: int) -> Length | int:
        return width if len(data) - at < width else Length(width, unpack(data, at)[0])

    return read


def _read_varint(data: bytes, at: int) -> Length | int:
    value = 0
    for count in range(min(_VARINT_BYTES_MAX, len(data) - at)):
        byte = data[at + count]
        value |= (byte & 0x7F) << 7 * count
        if byte < 0x80:
            return Length(count + 1, value)
    if len(data) - at >= _VARINT_BYTES_MAX:
        raise BadRecord(f"a varint of more than {_VARINT_BYTES_MAX} bytes")
    return len(data) - at + 1


def _digits_reader(separator: bytes) -> _ReadLength:
    def read(data: bytes, at: int) -> Length | int:
        end = data.find(separator, at, at + _DIGITS_MAX + len(separator))
        digits = data[at : end if end >= 0 else at + _DIGITS_MAX]
        if end < 0 and len(data) - at < _DIGITS_MAX + len(separator):
            if not digits.rstrip(separator).isdigit() and digits:
                raise BadRecord(f"{digits[:_DIGITS_MAX]!r} is not a length in decimal digits")
            return len(data) - at + 1
        if end < 0 or not digits.isdigit():
            raise BadRecord(f"{digits!r} is not a length in decimal digits")
        return Length(len(digits) + len(separator), int(digits))

    return read


def _struct(options: LengthPrefixedOptions) -> Struct:
    return Struct((">" if options.order == "big" else "<") + _CODES[options.length_bytes])


class Unprefixing(Incoming):
    """For one stream. The pieces of a record are joined once, when it is complete."""

    def __init__(self, options: LengthPrefixedOptions) -> None:
        self._read = _reader(options)
        self._terminator = delimiter_bytes(options.terminator)
        self._binary = _struct(options) if options.form == "binary" and not options.terminator else None
        self._limit = options.record_bytes_max
        self._buffer = bytearray()
        """The start of a length and its record."""
        self._needed = 1
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
        self._keep(b"", 1)
        if rest:
            raise BadBytes(f"only {len(rest)} bytes of a record and its length", rest)
        return []

    def _cut(self, data: bytes) -> list[bytes]:
        return self._cut_any(data) if self._binary is None else self._cut_binary(data, self._binary)

    def _cut_binary(self, data: bytes, length: Struct) -> list[bytes]:
        """The usual case, without a call for each length."""
        length_at, width, limit, size = length.unpack_from, length.size, self._limit, len(data)
        records: list[bytes] = []
        start, needed = 0, width
        while start + width <= size:
            (found,) = length_at(data, start)
            if found > limit:
                self._keep(b"", 1)
                raise BadBytes(f"a record of {found} bytes; at most {limit} (record_bytes_max)", data[start:], records)
            end = start + width + found
            if end > size:
                needed = end - start
                break
            records.append(data[start + width : end])
            start = end
        self._keep(data[start:], needed)
        return records

    def _cut_any(self, data: bytes) -> list[bytes]:
        read, size, behind = self._read, len(data), self._terminator
        records: list[bytes] = []
        start, needed = 0, 1
        try:
            while start < size:
                found = read(data, start)
                if isinstance(found, int):
                    needed = found
                    break
                begins, length = start + found[0], found[1]
                if length > self._limit:
                    raise BadRecord(f"a record of {length} bytes; at most {self._limit} (record_bytes_max)")
                end = begins + length
                if end + len(behind) > size:
                    needed = end + len(behind) - start
                    break
                if behind and not data.startswith(behind, end):
                    raise BadRecord(f"a record of {length} bytes without its terminator")
                records.append(data[begins:end])
                start = end + len(behind)
        except BadRecord as bad:
            self._keep(b"", 1)
            raise BadBytes(str(bad), data[start:], records) from None
        self._keep(data[start:], needed)
        return records

    def _keep(self, rest: bytes, needed: int) -> None:
        self._buffer, self._needed = bytearray(rest), needed


class Prefixing:
    """For one stream: each value leaves immediately, with a binary length."""

    buffered = 0
    counts = None
    wait_seconds = None

    def __init__(self, options: LengthPrefixedOptions) -> None:
        self._length = _struct(options)
        self._limit = min(options.record_bytes_max, (1 << 8 * options.length_bytes) - 1)
        self._terminator = delimiter_bytes(options.terminator)

    def feed(self, values: Sequence[bytes]) -> list[bytes]:
        if max(map(len, values), default=0) > self._limit:
            longest = max(values, key=len)
            raise BadBytes(f"a value of {len(longest)} bytes; at most {self._limit} can leave", longest)
        pack, behind = self._length.pack, self._terminator
        return [pack(len(value)) + value + behind for value in values]

    def flush(self) -> list[bytes]:
        return []


class _prefixed:  # noqa: N801  a function with options
    """One value with its length as a varint, or in digits."""

    def __init__(self, options: LengthPrefixedOptions) -> None:
        self._is_text = options.form == "text"
        self._limit = options.record_bytes_max
        self._separator = delimiter_bytes(options.separator)
        self._terminator = delimiter_bytes(options.terminator)

    def __call__(self, value: bytes) -> bytes:
        if len(value) > self._limit:
            raise BadRecord(f"a value of {len(value)} bytes; at most {self._limit} can leave")
        length = b"%d%s" % (len(value), self._separator) if self._is_text else _varint(len(value))
        return length + value + self._terminator


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)
