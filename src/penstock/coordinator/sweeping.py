"""Removes what was staged and nobody will merge: of older generations, of batches that are done, of dead attempts."""

import logging
from collections.abc import Callable

from penstock.coordinator.machine.merging import NO_GENERATION
from penstock.coordinator.machine.state import State
from penstock.core.errors import NoSuchSegment, PenstockError
from penstock.protocol.stored.names import STAGING_PREFIX
from penstock.store.store import SegmentStore

log = logging.getLogger(__name__)


class Sweeper:
    def __init__(self, store: SegmentStore, orphan_seconds: float, clock: Callable[[], float]) -> None:
        self._store = store
        self._orphan_seconds = orphan_seconds
        self._clock = clock
        self._first_seen: dict[str, float] = {}
        store.table.follow(STAGING_PREFIX)

    def sweep(self, prefix: str) -> int:
        """Delete all that begins with this; returns how many. It is well if somebody else is quicker."""
        assert prefix.startswith(STAGING_PREFIX)
        return self._delete([info.name for info in self._store.segments(prefix)])

    def sweep_orphans(self, state: State) -> int:
        """Delete what the state says is of no use. What belongs to no known pipeline gets some time to become known."""
        names = [info.name for info in self._store.segments(STAGING_PREFIX)]
        now = self._clock()
        self._first_seen = {name: self._first_seen.get(name, now) for name in names if not _is_known(state, name)}
        orphans = [name for name in names if name not in self._first_seen and is_useless(state, name)]
        orphans += [name for name, seen in self._first_seen.items() if now - seen > self._orphan_seconds]
        return self._delete(orphans)

    def _delete(self, names: list[str]) -> int:
        count = 0
        for name in names:
            try:
                self._store.delete(name)
                count += 1
            except NoSuchSegment:
                pass
            except PenstockError as error:  # the next time, then
                log.warning("staged segment %r is not removed: %s", name, error)
                break
        return count


def _is_known(state: State, name: str) -> bool:
    _, pipeline, *_ = name.split("/", 2)
    return pipeline in state.pipelines


def is_useless(state: State, name: str) -> bool:
    """Of a known pipeline: of another generation than the newest, or of a batch that is merged."""
    _, pipeline, generation, batch, *_ = [*name.split("/", 4), "", "", ""]
    known = state.pipelines[pipeline]
    if generation not in (NO_GENERATION, str(known.generation)):
        return True
    last = known.last_batch
    return not batch.isdecimal() or (last is not None and int(batch) <= last)
