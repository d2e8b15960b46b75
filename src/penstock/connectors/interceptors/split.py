"""Records that end with a delimiter, such as lines."""

from typing import Literal

from pydantic import Field

from penstock.connectors.api import Options
from penstock.connectors.interceptors.api import (
    RECORD_BYTES_LIMIT,
    RECORD_BYTES_MAX,
    AboutInterceptor,
    BadBytes,
    Delimiter,
    Incoming,
    Interceptor,
    delimiter_bytes,
)


class SplitOptions(Options):
    delimiter: Delimiter = r"\n"
    r"""Ends a record. It can contain the escapes \n \r \t \0 \\ and \xNN."""
    skip_empty: bool = True
    """Skip empty records, such as empty lines."""
    unterminated: Literal["event", "dead-letter", "drop"] = "event"
    """What becomes of a last record without a delimiter when the peer ends properly: an event, a dead letter, or
    nothing."""
    separates: bool = False
    """The delimiter stands between records, and not after each: what follows the last one is a record, even if it is
    empty."""
    record_bytes_max: int = Field(default=RECORD_BYTES_MAX, ge=1, le=RECORD_BYTES_LIMIT)
    """A longer record is a dead letter, and ends the stream."""


class Split(Interceptor[SplitOptions]):
    about = AboutInterceptor("split", "Splits bytes into events at a delimiter.", SplitOptions)
    cuts = True
    takes_parts = True

    def incoming(self, *, framed: bool = False) -> Incoming:  # noqa: ARG002  records may cross those before it
        return Splitting(self.options)


class Splitting(Incoming):
    """For one stream. Each byte is searched for the delimiter once, however small the pieces are."""

    def __init__(self, options: SplitOptions) -> None:
        self._options = options
        self._delimiter = delimiter_bytes(options.delimiter)
        self._buffer = bytearray()
        """The start of an incomplete record."""
        self._is_separated = False
        """Whether a record follows, even if it is empty."""

    @property
    def buffered(self) -> int:
        return len(self._buffer)

    def feed(self, data: bytes) -> list[bytes]:
        size = len(self._buffer) + len(data)
        records = self._cut(data)
        if not records:
            self._buffer += data
            return self._bounded([])
        self._buffer, self._is_separated = bytearray(records.pop()), self._options.separates
        return self._without_empty(records) if size <= self._options.record_bytes_max else self._bounded(records)

    def _cut(self, data: bytes) -> list[bytes]:
        """At its delimiters, with what is buffered before the first part; nothing if none ends here."""
        if len(self._delimiter) == 1:  # it cannot have begun before: only the first part is copied again
            parts = data.split(self._delimiter)
            if self._buffer and len(parts) > 1:
                parts[0] = b"".join((self._buffer, parts[0]))
        else:
            parts = b"".join((self._buffer, data)).split(self._delimiter) if self._ends_in(data) else []
        return parts if len(parts) > 1 else []

    def finish(self) -> list[bytes]:
        last, self._buffer = bytes(self._buffer), bytearray()
        separated, self._is_separated = self._is_separated, False
        if separated:
            return self._without_empty([last])
        if last and self._options.unterminated == "dead-letter":
            raise BadBytes(f"{len(last)} bytes without the delimiter that ends a record", last)
        return [last] if last and self._options.unterminated == "event" else []

    def _ends_in(self, data: bytes) -> bool:
        """Whether a delimiter ends in it, including one that started before."""
        reach = len(self._delimiter) - 1
        return self._delimiter in data or (reach > 0 and self._delimiter in self._buffer[-reach:] + data[:reach])

    def _bounded(self, records: list[bytes]) -> list[bytes]:
        limit = self._options.record_bytes_max
        if max(map(len, records), default=0) > limit or len(self._buffer) > limit:
            raise self._too_long([*records, bytes(self._buffer)], limit)
        return self._without_empty(records)

    def _too_long(self, parts: list[bytes], limit: int) -> BadBytes:
        first = next(at for at, part in enumerate(parts) if len(part) > limit)
        self._buffer = bytearray()
        message = f"a record of more than {limit} bytes (record_bytes_max)"
        return BadBytes(message, self._delimiter.join(parts[first:]), self._without_empty(parts[:first]))

    def _without_empty(self, records: list[bytes]) -> list[bytes]:
        return records if not self._options.skip_empty or all(records) else [*filter(None, records)]
