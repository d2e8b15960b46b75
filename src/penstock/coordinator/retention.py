"""Truncates what retention allows, in large steps, because every truncation first writes the tables of streams."""

import logging
from collections.abc import Callable, Iterator

from penstock.coordinator.ledger import Keeper
from penstock.coordinator.machine.commands import Expire, MarkTime, Truncate
from penstock.coordinator.machine.epochs import truncatable
from penstock.coordinator.machine.state import State, source_of
from penstock.coordinator.settings import CoordinatorSettings
from penstock.core.errors import Damaged, PenstockError, RequestError
from penstock.protocol.stored.names import CONNECTOR_PREFIX, OUTPUT_PREFIX, is_outbox, kind_of
from penstock.store.reader import SegmentInfo
from penstock.store.store import SegmentStore

log = logging.getLogger(__name__)

_MARKS = 100
"""Time marks per retention time: data is retained at most a hundredth of it too long."""
_MARK_SECONDS_MIN, _MARK_SECONDS_MAX = 1.0, 3600.0


class RetentionTask:
    """`clock` counts seconds, `now_us` is the time of day."""

    def __init__(
        self,
        store: SegmentStore,
        settings: CoordinatorSettings,
        clock: Callable[[], float],
        now_us: Callable[[], int],
    ) -> None:
        self._store = store
        self._settings = settings
        self._clock = clock
        self._now_us = now_us
        self._allowed: dict[str, int] = {}
        self._truncated_at: dict[str, float] = {}
        self._marked: dict[str, int] = {}
        self._marked_at: float | None = None
        self.is_paused: Callable[[], bool] = lambda: False
        """While it returns True, nothing is truncated."""
        for prefix in (CONNECTOR_PREFIX, OUTPUT_PREFIX):
            store.table.follow(prefix)

    def allow(self, truncate: Truncate) -> None:
        for name, offset in truncate.segments.items():
            self._allowed[name] = max(offset, self._allowed.get(name, 0))

    def tick(self, keeper: Keeper) -> None:
        """One step; the service calls it periodically."""
        match keeper.state.retention.mode:
            case "time":
                self._by_time(keeper)
            case "size":
                self._by_size(keeper.state.retention.amount)
            case "complete":
                self._bound(keeper.state)
            case "keep":
                pass
        if self.is_paused():
            return
        for name, offset in [*self._allowed.items()]:
            if not self._store.exists(name) or self._is_done(name, offset):
                del self._allowed[name]

    def _bound(self, state: State) -> None:
        """The offset that may still be truncated: a pipeline that has started in the meantime may need the data."""
        now = truncatable(state, {source_of(name) for name in self._allowed})
        self._allowed = {name: min(offset, now[name]) for name, offset in self._allowed.items() if name in now}

    def _is_done(self, name: str, offset: int) -> bool:
        """Truncate the segment if it is worthwhile by now. Returns whether nothing is left to do."""
        size = offset - self._store.info(name).start
        if size <= 0:
            return True
        now = self._clock()
        last = self._truncated_at.setdefault(name, now)
        if size < self._settings.truncate_bytes and now - last < self._settings.truncate_seconds:
            return False
        self._truncated_at[name] = now
        try:
            self._store.truncate(name, offset)
        except PenstockError as error:
            log.warning("segment %r could not be truncated: %s", name, error)
            return False
        return True

    def _by_time(self, keeper: Keeper) -> None:
        amount = keeper.state.retention.amount
        interval = min(max(amount / 1e6 / _MARKS, _MARK_SECONDS_MIN), _MARK_SECONDS_MAX)
        now = self._clock()
        if self._marked_at is None:
            for mark in keeper.state.marks:
                self._marked |= mark.segments
        elif now - self._marked_at < interval:
            return
        self._marked_at = now
        self._mark(keeper)
        if keeper.state.marks and keeper.state.marks[0].time_us <= self._now_us() - amount:
            keeper.commit(Expire(self._now_us() - amount))

    def _mark(self, keeper: Keeper) -> None:
        """Record the lengths of the segments that have grown since the last mark."""
        self._marked = {name: end for name, end in self._marked.items() if self._store.exists(name)}
        grown = {info.name: info.length for info in self._data() if info.length > self._marked.get(info.name, 0)}
        last = keeper.state.marks[-1].time_us if keeper.state.marks else 0
        if grown:
            keeper.commit(MarkTime(max(self._now_us(), last + 1), grown))
            self._marked |= grown

    def _by_size(self, amount: int) -> None:
        for info in self._data():
            if info.length - info.start > amount:
                try:
                    at = self._store.record(info.name, info.length - amount).start if amount else info.length
                except Damaged as error:  # an error of this segment must not stop the others
                    self._store.note_damage(info.name, error)
                else:
                    self.allow(Truncate({info.name: at}))

    def _data(self) -> Iterator[SegmentInfo]:
        """The segments with events of connectors and pipelines."""
        for prefix in (CONNECTOR_PREFIX, OUTPUT_PREFIX):
            for info in self._store.segments(prefix):
                if is_outbox(info.name):
                    continue
                try:
                    kind_of(info.name)
                except RequestError:
                    continue
                yield info
