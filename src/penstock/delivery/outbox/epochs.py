"""How far a sink is with each epoch: rows that are settled are not sent again when the epoch is delivered again."""

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


class EpochProgress:
    """One epoch. A row is settled when it was sent, is retained in the outbox, or became a dead letter.

    A Settling (see delivery/sink.py) once `is_complete`: all its rows have reached the sink. `flush` and `void` are the
    sink's.
    """

    def __init__(
        self, name: str, settled: dict[StreamRef | None, int], flush: Callable[[], None], void: Callable[[], None]
    ) -> None:
        self.name = name
        self.place = EpochName.parse(name)
        self.settled = settled
        """By stream: rows with a number below this are settled."""
        self.buffered = 0
        """Rows that interceptors buffer."""
        self.is_complete = False
        self._flush = flush
        self._void = void
        self._error: PenstockError | None = None
        self._callbacks: list[Callable[[], None]] = []

    def is_settled(self, stream: StreamRef | None, row: Row) -> bool:
        return row.number < self.settled.get(stream, 0)

    def settle(self, stream: StreamRef | None, rows: list[Row]) -> None:
        """The next rows of the stream are settled."""
        self.settled[stream] = rows[-1].number + 1
        self.buffered -= len(rows)
        if self.is_done:
            self._notify()

    def fail(self, error: PenstockError) -> None:
        self._error = error
        self._notify()

    def begin(self, stored: Mapping[StreamRef | None, int]) -> None:
        """The epoch is delivered, for the first time or again. `stored`: by stream, the rows that the outbox knows."""
        self.settled |= {stream: max(end, self.settled.get(stream, 0)) for stream, end in stored.items()}
        self.void()
        self._error = None
        self._callbacks = []

    def void(self) -> None:
        """What interceptors had buffered of it is gone."""
        self.buffered, self.is_complete = 0, False

    def _notify(self) -> None:
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    # Settling.

    @property
    def is_done(self) -> bool:
        return self._error is not None or (self.is_complete and not self.buffered)

    def result(self) -> None:
        if self._error is not None:
            raise self._error

    def when_done(self, call: Callable[[], None]) -> None:
        if self.is_done:
            call()
        else:
            self._callbacks.append(call)

    def flush(self) -> None:
        self._flush()

    def cancel(self) -> None:
        self._void()


class EpochsInProgress:
    """The epochs that may be delivered again: the oldest one that is not settled, and all after it."""

    def __init__(self, flush: Callable[[], None], void: Callable[[], None]) -> None:
        self._flush = flush
        self._void = void
        self._epochs: dict[str, EpochProgress] = {}

    def __getitem__(self, name: str) -> EpochProgress:
        return self._epochs[name]

    @property
    def oldest(self) -> EpochName:
        """There is always one after `begin`."""
        return min(one.place for one in self._epochs.values())

    def begin(self, name: str, stored: Callable[[str], dict[StreamRef | None, int]]) -> EpochProgress:
        """Epochs before this one, and before the oldest with buffered rows, are delivered: they are forgotten."""
        place = EpochName.parse(name)
        oldest = min([place, *(one.place for one in self._epochs.values() if one.buffered)])
        self._epochs = {key: one for key, one in self._epochs.items() if one.place >= oldest}
        epoch = self._epochs.get(name)
        if epoch is None:
            epoch = self._epochs[name] = EpochProgress(name, {}, self._flush, self._void)
        epoch.begin(stored(name))
        return epoch

    def oldest_buffered(self) -> EpochProgress | None:
        return min((one for one in self._epochs.values() if one.buffered), key=lambda one: one.place, default=None)

    def void(self) -> None:
        """Nothing is buffered any more; what is settled stays settled."""
        for epoch in self._epochs.values():
            epoch.void()
