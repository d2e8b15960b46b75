"""Records that end with a delimiter, such as lines."""

from typing import Literal, Self

import numpy as np
from pydantic import Field, model_validator

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
from penstock.protocol.stored.bulk import Bytes

COLUMNS_BYTES_MIN = 4 << 10
"""For less, numpy costs more than an object for each record."""


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
    empty. `unterminated` must then be `event`."""
    record_bytes_max: int = Field(default=RECORD_BYTES_MAX, ge=1, le=RECORD_BYTES_LIMIT)
    """A longer record is a dead letter, and ends the stream."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.separates and self.unterminated != "event":
            raise ValueError("with `separates`, no delimiter follows the last record: leave `unterminated` out")
        return self


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

    def feed_columns(self, data: bytes) -> Bytes | None:
        """Delimiters of one byte are found by numpy, and removed all at once."""
        buffer, one = self._buffer, self._delimiter
        if len(one) > 1 or not COLUMNS_BYTES_MIN <= len(data) <= self._options.record_bytes_max - len(buffer):
            return None
        end = data.rfind(one)
        if end < 0:
            return None
        whole = b"".join((buffer, data[:end])) if buffer else data[:end]
        (ends,) = np.nonzero(np.frombuffer(whole, np.uint8) == one[0])
        offsets = np.empty(len(ends) + 2, np.int64)
        offsets[0], offsets[-1] = 0, len(whole) - len(ends)
        np.subtract(ends, np.arange(len(ends)), out=offsets[1:-1])
        if self._options.skip_empty:
            is_row = offsets[1:] > offsets[:-1]
            if not is_row.all():
                offsets = np.concatenate((offsets[:1], offsets[1:][is_row]))
        self._buffer, self._is_separated = bytearray(data[end + 1 :]), self._options.separates
        return Bytes(offsets, whole.replace(one, b""))

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
