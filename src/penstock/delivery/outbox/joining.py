"""One stream's rows on their way through the interceptors: which of them wait, and which leave as what."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, chain
from typing import NamedTuple

from penstock.connectors.interceptors.api import BadBytes
from penstock.connectors.interceptors.chain import OutgoingChain
from penstock.delivery.outbox.rows import Row

MakeChain = Callable[[], OutgoingChain]


class Waiting(NamedTuple):
    """A row, and the name of its epoch."""

    epoch: str
    row: Row


class Leaving(NamedTuple):
    """Values for the connector, and the rows that end in them: so many in each."""

    values: list[bytes]
    rows: list[Waiting]
    counts: Sequence[int]

    @property
    def last_rows(self) -> list[Row]:
        """Of each value."""
        found, at = [], 0
        for count in self.counts:
            at += count
            found.append(self.rows[at - 1].row)
        return found

    def rows_at(self, places: Sequence[int] | None) -> list[Waiting]:
        """Those that end in the values at these places; None: all."""
        if places is None:
            return self.rows
        ends = [*accumulate(self.counts, initial=0)]
        return [row for place in places for row in self.rows[ends[place] : ends[place + 1]]]

    @property
    def is_joined(self) -> bool:
        return any(count != 1 for count in self.counts)

    @classmethod
    def of(cls, parts: "Iterable[Leaving | None]") -> "Leaving | None":
        """All of them, one behind the other; None if there is nothing."""
        found = [part for part in parts if part is not None]
        if not found:
            return None
        return cls(*(list(chain.from_iterable(column)) for column in zip(*found, strict=True)))


class Flow:
    """Of one stream. `due` is when what waits has to leave, by the clock that `feed` is given."""

    def __init__(self, chain: OutgoingChain) -> None:
        self._chain = chain
        self.waiting: deque[Waiting] = deque()
        self.due: float | None = None

    def feed(self, epoch: str, rows: Sequence[Row], now: float) -> Leaving | None:
        """What leaves now, if anything does. Raises BadBytes: then the flow is not used again."""
        was_empty = not self.waiting
        self.waiting.extend(Waiting(epoch, row) for row in rows)
        values = self._chain.feed([row.value for row in rows])
        leaving = self._leaving(values)
        wait = self._chain.wait_seconds
        if self._chain.held and not wait:
            return Leaving.of([leaving, self.flush()])
        if wait and (was_empty or leaving is not None):
            self.due = now + wait
        return leaving

    def flush(self) -> Leaving | None:
        return self._leaving(self._chain.flush())

    def _leaving(self, values: list[bytes]) -> Leaving | None:
        counts = [*self._chain.counts]
        rows = [self.waiting.popleft() for _ in range(sum(counts))]
        if not self.waiting:
            self.due = None
        return Leaving(values, rows, counts) if values else None


def plain(epoch: str, rows: Sequence[Row]) -> Leaving:
    """Where there are no interceptors."""
    return Leaving([row.value for row in rows], [Waiting(epoch, row) for row in rows], [1] * len(rows))


def through(make: MakeChain | None, epoch: str, rows: Sequence[Row]) -> Leaving:
    """Rows that have waited long enough: all of them leave now."""
    if make is None:
        return plain(epoch, rows)
    flow = Flow(make())
    leaving = Leaving.of([flow.feed(epoch, rows, 0.0), flow.flush()])
    assert leaving is not None, "interceptors drop nothing"
    return leaving


def bad_rows(make: MakeChain, rows: Sequence[Waiting]) -> dict[Waiting, str]:
    """Those that can never leave through these interceptors, and why. Each is tried alone."""
    found = {}
    for one in rows:
        try:
            make().feed([one.row.value])
        except BadBytes as error:
            found[one] = str(error)
    return found
