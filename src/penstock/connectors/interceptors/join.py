"""Several values as one, with a delimiter: batches by number, bytes and time."""

from collections.abc import Sequence

from pydantic import Field

from penstock.connectors.api import Options
from penstock.connectors.interceptors.api import (
    RECORD_BYTES_LIMIT,
    RECORD_BYTES_MAX,
    AboutInterceptor,
    Delimiter,
    Interceptor,
    OutgoingInterceptor,
    delimiter_bytes,
)


class JoinOptions(Options):
    delimiter: Delimiter = r"\n"
    r"""Stands after each value. It can contain the escapes \n \r \t \0 \\ and \xNN."""
    max_elements: int = Field(default=1000, ge=1, le=1_000_000)
    """The largest number of values that are sent together."""
    max_wait_ms: int = Field(default=0, ge=0, le=3_600_000)
    """How long a value waits for others. 0: values that are delivered together are sent together, and none waits."""
    terminate: bool = True
    """Also put a delimiter after the last value, so that batches can follow each other in a connection."""
    record_bytes_max: int = Field(default=RECORD_BYTES_MAX, ge=1, le=RECORD_BYTES_LIMIT)
    """The largest batch. A longer value is sent alone."""


class Join(Interceptor[JoinOptions]):
    about = AboutInterceptor("join", "Joins several values into one, with a delimiter after each.", JoinOptions)

    def outgoing(self) -> OutgoingInterceptor:
        return Joining(self.options)


class Joining:
    """For one stream."""

    def __init__(self, options: JoinOptions) -> None:
        self._options = options
        self._delimiter = delimiter_bytes(options.delimiter)
        self._waiting: list[bytes] = []
        self._bytes = 0
        self._counts: list[int] = []

    @property
    def buffered(self) -> int:
        return len(self._waiting)

    @property
    def counts(self) -> Sequence[int]:
        return self._counts

    @property
    def wait_seconds(self) -> float:
        return self._options.max_wait_ms / 1000

    def feed(self, values: Sequence[bytes]) -> list[bytes]:
        self._counts = []
        results: list[bytes] = []
        at, step = 0, self._options.max_elements
        while at < len(values):
            piece = values[at : at + step - len(self._waiting)]
            at += len(piece)
            self._take(piece, results)
        return results

    def flush(self) -> list[bytes]:
        self._counts = []
        results: list[bytes] = []
        self._leave(results)
        return results

    def _take(self, piece: Sequence[bytes], results: list[bytes]) -> None:
        """Take as many values as fit into the batch."""
        if len(piece) == self._options.max_elements:  # none waits
            joined = self._joined(piece)
            if len(joined) + (0 if self._options.terminate else len(self._delimiter)) <= self._options.record_bytes_max:
                results.append(joined)
                self._counts.append(len(piece))
                return
        size = sum(map(len, piece)) + len(piece) * len(self._delimiter)
        if self._bytes + size > self._options.record_bytes_max:
            self._take_in_bytes(piece, results)
        else:
            self._waiting.extend(piece)
            self._bytes += size
        if len(self._waiting) >= self._options.max_elements:
            self._leave(results)

    def _take_in_bytes(self, piece: Sequence[bytes], results: list[bytes]) -> None:
        for value in piece:
            size = len(value) + len(self._delimiter)
            if self._bytes + size > self._options.record_bytes_max:
                self._leave(results)
            self._waiting.append(value)
            self._bytes += size

    def _leave(self, results: list[bytes]) -> None:
        if not self._waiting:
            return
        results.append(self._joined(self._waiting))
        self._counts.append(len(self._waiting))
        self._waiting, self._bytes = [], 0

    def _joined(self, values: Sequence[bytes]) -> bytes:
        end = (b"",) if self._options.terminate else ()
        return self._delimiter.join((*values, *end))
