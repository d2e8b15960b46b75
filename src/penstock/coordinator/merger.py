"""Merges what the tasks of a batch have staged into the output segments: all of it, once."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from penstock.coordinator.ledger import NO_QUOTA
from penstock.coordinator.machine.commands import Merge
from penstock.coordinator.machine.epochs import NO_GENERATION, batch_prefix, check_ports, is_merged
from penstock.coordinator.machine.state import Pipeline, State
from penstock.coordinator.shared import Shared
from penstock.core.errors import NoSuchSegment, PenstockError, PipelineError, RequestError
from penstock.protocol.api.pipelines import Merged, Staged
from penstock.protocol.stored.names import STAGING_PREFIX, check_pipeline_name, output_segment
from penstock.store.store import SegmentStore

# Removes what was staged and nobody will merge: of older generations, of batches that are done, of dead attempts.

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


class Merger:
    def __init__(self, shared: Shared, sweeper: Sweeper) -> None:
        self._shared = shared
        self._sweeper = sweeper

    async def merge(self, name: str, generation: int | None, batch: int, staged: Sequence[Staged]) -> Merged:
        """In one record of the journal, with the ledger's entry. A batch that was merged before: nothing, but what is
        staged of it again is removed. Never refused for a quota.
        """
        _check(name, generation, batch, staged)
        shared = self._shared
        async with shared.lock(name):
            pipeline = self._pipeline(name, generation)
            command = Merge(name, generation, batch, {}, tuple((one.port, one.segment) for one in staged))
            done = is_merged(pipeline, command)
            if not done:
                check_ports(pipeline, command)
                command = replace(command, ends=self._ends(name, pipeline, staged))
            shared.keeper.commit(command)
            shared.watermarks.outputs.note(name, shared.state.pipelines[name])
            shared.heartbeats.merged(name, shared.state.pipelines[name].running[1])
            if not done:
                merged = shared.state.pipelines[name]
                shared.flow.merged(name, merged, merged.batches[batch], staged)
            await shared.keeper.settled()
        return Merged(not done, batch)

    def _pipeline(self, name: str, generation: int | None) -> Pipeline:
        """A sink that was given no generation is not fenced, and makes its pipeline known."""
        if generation is not None:
            return self._shared.living(name, generation)
        return self._shared.state.pipelines.get(name) or Pipeline(incarnation=0, generation=0)

    def _ends(self, name: str, pipeline: Pipeline, staged: Sequence[Staged]) -> dict[str, int]:
        """Where the output segments will end; made if they are not there. Raises PipelineError for what is not staged
        as the tasks have said.
        """
        store = self._shared.store
        for one in staged:
            if not store.exists(one.segment) or store.length(one.segment) != one.length:
                there = store.length(one.segment) if store.exists(one.segment) else "no"
                raise PipelineError(
                    f"{one.segment!r} holds {there} bytes, not {one.length} as its task has said",
                    "It was swept or aborted: let Spark run the batch again.",
                )
        ends: dict[str, int] = {}
        for port in dict.fromkeys([*pipeline.ports, *(one.port for one in staged)]):
            segment = output_segment(name, port)
            if not store.exists(segment):
                store.create(segment, NO_QUOTA, draining=True)
            ends[port] = store.length(segment) + sum(one.length for one in staged if one.port == port)
        return ends

    async def abort(self, name: str, generation: int | None, batch: int) -> None:
        """Remove what the batch has staged. An older generation removes its own alone."""
        async with self._shared.lock(name):
            self._sweeper.sweep(batch_prefix(check_pipeline_name(name), generation, batch))
            self._shared.keeper.cover()
            await self._shared.keeper.settled()


def _check(name: str, generation: int | None, batch: int, staged: Sequence[Staged]) -> None:
    check_pipeline_name(name)
    prefix = batch_prefix(name, generation, batch)
    for one in staged:
        check_pipeline_name(one.port, "port")
        if not one.segment.startswith(prefix):
            raise RequestError(f"{one.segment!r} was not staged by this batch", f"Its names begin with {prefix}.")
    if len({one.segment for one in staged}) < len(staged):
        raise RequestError("a segment is staged twice", "Every attempt of a task stages segments of its own.")
