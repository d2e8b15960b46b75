"""Tracks a sink's progress in each epoch: settled rows are not sent again when the epoch is delivered again."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from penstock.connectors.api import StreamRef
from penstock.core.errors import PenstockError
from penstock.delivery.outbox.rows import Rows


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
        self.is_complete = False
        self._pending: dict[StreamRef | None, int] = {}
        """By stream: the row up to which the sink has received it, until all of these rows are settled."""
        self._flush = flush
        self._void = void
        self._error: PenstockError | None = None
        self._callbacks: list[Callable[[], None]] = []

    def unsettled(self, stream: StreamRef | None, rows: Rows) -> Rows:
        return rows.since(self.settled.get(stream, 0))

    @property
    def is_pending(self) -> bool:
        """Whether interceptors buffer some of its rows, or some are being sent."""
        return bool(self._pending)

    def receive(self, stream: StreamRef | None, rows: Rows) -> None:
        """The sink has received the next rows of the stream."""
        self._pending[stream] = rows.numbers[-1] + 1

    def settle(self, stream: StreamRef | None, rows: Rows) -> None:
        """The next rows of the stream are settled: also rows that were being sent when the epoch was voided."""
        end = self.settled[stream] = rows.numbers[-1] + 1
        if self._pending.get(stream, 0) <= end:
            self._pending.pop(stream, None)
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
        """Discard what interceptors had buffered of the epoch."""
        self.is_complete = False
        self._pending = {}

    def _notify(self) -> None:
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    # Settling.

    @property
    def is_done(self) -> bool:
        return self._error is not None or (self.is_complete and not self._pending)

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
        self._failed: EpochProgress | None = None
        """The first epoch that must be delivered again, with all after it. The caller that delivers them may not know
        yet.
        """

    @property
    def oldest(self) -> EpochName:
        """There is always one after `begin`."""
        return min(one.place for one in self._epochs.values())

    def begin(self, name: str, stored: Callable[[str], dict[StreamRef | None, int]]) -> EpochProgress:
        """Begin an epoch. Earlier ones are forgotten, back to the oldest with pending rows: they are delivered. Raises
        the error of an earlier epoch that has failed.
        """
        place = EpochName.parse(name)
        if self._failed is not None and self._failed.place >= place:
            self._failed = None
        self.raise_failure()
        oldest = min([place, *(one.place for one in self._epochs.values() if one.is_pending)])
        self._epochs = {key: one for key, one in self._epochs.items() if one.place >= oldest}
        epoch = self._epochs.get(name)
        if epoch is None:
            epoch = self._epochs[name] = EpochProgress(name, {}, self._flush, self._void)
        epoch.begin(stored(name))
        return epoch

    def settle(self, name: str, stream: StreamRef | None, rows: Rows) -> None:
        """An epoch that was skipped while its rows were being sent is no longer known."""
        epoch = self._epochs.get(name)
        if epoch is not None:
            epoch.settle(stream, rows)

    def fail(self, error: PenstockError) -> None:
        """All epochs with pending rows must be delivered again, from the oldest on."""
        pending = (one for one in self._epochs.values() if one.is_pending)
        failed = self._failed or min(pending, key=lambda one: one.place, default=None)
        self.void()
        if failed is not None:
            self._failed = failed
            failed.fail(error)

    def raise_failure(self) -> None:
        """Raise the failure, once. Rows must not be sent while earlier rows of their stream wait to be
        delivered again.
        """
        failed, self._failed = self._failed, None
        if failed is not None:
            failed.result()

    def void(self) -> None:
        """Buffered rows are discarded, and all epochs are delivered again; settled rows stay settled."""
        self._failed = None
        for epoch in self._epochs.values():
            epoch.void()
