"""Tables that are polled by a column that grows: what the sources of databases share.

    integer        the value is the event's id and the point of reference: exactly once
    time           µs << 10, and the next number for each row with the same time: at least once. After a restart the
                   rows of the last second are read again, because the id does not say which of them were stored

A Reader asks its database, in a thread of its own; `follow` moves what it finds into the stream.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, Protocol

from penstock.connectors.api import Host, Lost, Stream
from penstock.connectors.streams import ready_or_draining, until_draining
from penstock.connectors.threaded import OneThread
from penstock.core.errors import RequestError

TIE_BITS = 10
"""Numbers for rows with the same microsecond; more of them use the numbers of the next ones."""

REREAD_US = 1_000_000
"""Read again after a restart: longer than the numbers of a billion rows with the same time."""

ROW_BYTES_MAX = 8_000_000
"""An event must fit into a record of a segment."""


class Rows(NamedTuple):
    """Rows in the order of the column."""

    values: Sequence[bytes]
    ids: Sequence[int]
    is_all: bool
    """Whether there was nothing more when they were read."""


NO_ROWS = Rows((), (), True)


class Reader(Protocol):
    """Blocking; one call at a time, in one thread. Each call raises Lost."""

    def open(self, last_id: int) -> None:
        """Connect. Continue after the row of this id; 0: there is none."""

    def read(self) -> Rows:
        """The next rows; those of the last call are stored."""

    def close(self) -> None:
        """In any state, without raising."""


async def follow(host: Host, name: str, reader: Reader, poll_seconds: float) -> None:
    """Reads until the connector is drained. A lost connection raises Lost."""
    thread = OneThread(f"{host.name} ({name})")
    stream = await host.open_stream(name, resume=True)
    try:
        await thread.call(reader.open, stream.last_id)
        host.connected()
        await _pump(host, stream, lambda: thread.call(reader.read), poll_seconds)
    finally:
        thread.stop(reader.close)
        await stream.close()


async def _pump(host: Host, stream: Stream, read: Callable[[], Awaitable[Rows]], poll_seconds: float) -> None:
    while await ready_or_draining(stream, host):
        rows = await read()
        if rows.values:
            check_sizes(rows)
            await stream.put(rows.values, ids=rows.ids)
        if rows.is_all and await until_draining(host, poll_seconds):
            return


def check_sizes(rows: Rows) -> None:
    """Raises Lost: a row that is too large for an event stops the stream, because it cannot be left out silently."""
    for value, id_ in zip(rows.values, rows.ids, strict=True):
        if len(value) > ROW_BYTES_MAX:
            raise Lost(
                f"the row {id_} has {len(value):,} bytes as JSON, but an event has at most {ROW_BYTES_MAX:,}",
                "Use a query that leaves out or shortens its large columns.",
            )


def check_positive(lowest: int | None, column: str) -> None:
    """Raises RequestError: ids are positive."""
    if lowest is not None and lowest <= 0:
        raise RequestError(
            f"the column {column} has the value {lowest}, but its values must be above 0",
            "Use a query that adds a constant to it, or another column.",
        )


# Times.


@dataclass(slots=True)
class TimeIds:
    """Ids of rows in the order of their times."""

    last: int = 0

    def start_us(self) -> int | None:
        """From where to read after a restart; None: from the beginning."""
        return (self.last >> TIE_BITS) - REREAD_US if self.last else None

    def of(self, times_us: Sequence[int]) -> list[int]:
        ids = []
        for time in times_us:
            self.last = max(self.last + 1, time << TIE_BITS)
            ids.append(self.last)
        return ids


def time_literal(time_us: int) -> str:
    """In a form that databases read."""
    found = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=time_us)
    return found.isoformat(sep=" ", timespec="microseconds")


# Commits out of order: a transaction may commit a lower value after another one has committed a higher one.


@dataclass(slots=True)
class Settling:
    """Up to which value no more rows can appear. A writer locks the table before it draws a value, and until its commit
    is visible: when all writers that had locked it after a value was seen are gone, everything up to it is visible.
    """

    settled: int = 0
    _seen: int = 0
    _writers: frozenset[str] = field(default_factory=frozenset)

    def note(self, highest: int, writers: frozenset[str]) -> None:
        """The highest value that is visible, and then, later, who has locked the table."""
        if self._seen > self.settled and not self._writers & writers:
            self.settled, self._writers = self._seen, frozenset()
        if self._seen <= self.settled and highest > self.settled:
            self._seen, self._writers = highest, writers
            if not writers:
                self.settled = highest
