"""Epochs that a sink was given, and what of them has left: what has is not given again when an epoch is."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from penstock.connectors.api import StreamRef
from penstock.core.errors import PenstockError
from penstock.delivery.outbox.rows import Row


class EpochName(NamedTuple):
    incarnation: int
    number: int

    @classmethod
    def parse(cls, name: str) -> "EpochName":
        """`pipeline:incarnation:epoch`."""
        _, incarnation, number = name.rsplit(":", 2)
        return cls(int(incarnation), int(number))


class Given:
    """One epoch. A Settling once all of its rows are under way: `flush` and `void` are the sink's."""

    def __init__(
        self, name: str, done: dict[StreamRef | None, int], flush: Callable[[], None], void: Callable[[], None]
    ) -> None:
        self.name = name
        self.place = EpochName.parse(name)
        self.done = done
        """Of each stream: the rows before this one have left, are held, or are dead letters."""
        self.waiting = 0
        """Rows that interceptors hold."""
        self.is_whole = False
        self._flush = flush
        self._void = void
        self._error: PenstockError | None = None
        self._calls: list[Callable[[], None]] = []

    def has_done(self, stream: StreamRef | None, row: Row) -> bool:
        return row.number < self.done.get(stream, 0)

    def leave(self, stream: StreamRef | None, rows: list[Row]) -> None:
        """The next rows of the stream are done with."""
        self.done[stream] = rows[-1].number + 1
        self.waiting -= len(rows)
        if self.is_done:
            self._tell()

    def fail(self, error: PenstockError) -> None:
        self._error = error
        self._tell()

    def begin(self, stored: Mapping[StreamRef | None, int]) -> None:
        """From its start, or once more. `stored`: of each stream, the rows that are held or gone."""
        self.done |= {stream: max(end, self.done.get(stream, 0)) for stream, end in stored.items()}
        self.void()
        self._error = None
        self._calls = []

    def void(self) -> None:
        """Nothing of it is under way any more."""
        self.waiting, self.is_whole = 0, False

    def _tell(self) -> None:
        calls, self._calls = self._calls, []
        for call in calls:
            call()

    # Settling.

    @property
    def is_done(self) -> bool:
        return self._error is not None or (self.is_whole and not self.waiting)

    def result(self) -> None:
        if self._error is not None:
            raise self._error

    def when_done(self, call: Callable[[], None]) -> None:
        if self.is_done:
            call()
        else:
            self._calls.append(call)

    def flush(self) -> None:
        self._flush()

    def cancel(self) -> None:
        self._void()


class Givens:
    """Those that may be given again: from the oldest on that is not settled."""

    def __init__(self, flush: Callable[[], None], void: Callable[[], None]) -> None:
        self._flush = flush
        self._void = void
        self._known: dict[str, Given] = {}

    def __getitem__(self, name: str) -> Given:
        return self._known[name]

    @property
    def oldest(self) -> EpochName:
        """Of those that may be given again; there is one."""
        return min(one.place for one in self._known.values())

    def begin(self, name: str, done: Callable[[str], dict[StreamRef | None, int]]) -> Given:
        """What was before the oldest that is not settled, and before this one, is followed: it is forgotten."""
        place = EpochName.parse(name)
        oldest = min([place, *(one.place for one in self._known.values() if one.waiting)])
        self._known = {key: one for key, one in self._known.items() if one.place >= oldest}
        given = self._known.get(name)
        if given is None:
            given = self._known[name] = Given(name, {}, self._flush, self._void)
        given.begin(done(name))
        return given

    def oldest_waiting(self) -> Given | None:
        return min((one for one in self._known.values() if one.waiting), key=lambda one: one.place, default=None)

    def void(self) -> None:
        """Nothing is under way any more; what has left stays so."""
        for given in self._known.values():
            given.void()
