"""Merges the staged output of an epoch's tasks into the output segments, exactly once, and removes leftovers."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import Enum
from functools import partial

from penstock.coordinator.ledger import NO_QUOTA
from penstock.coordinator.machine.commands import Merge
from penstock.coordinator.machine.epochs import check_ports, is_merged
from penstock.coordinator.machine.state import Pipeline, State, source_of
from penstock.coordinator.shared import Shared
from penstock.coordinator.side_outputs import SideOutputs
from penstock.core.errors import Fenced, NoSuchSegment, PenstockError, PipelineError, RequestError
from penstock.protocol.api.pipelines import Span, Staged
from penstock.protocol.api.side_outputs import Merged
from penstock.protocol.stored.names import (
    NO_GENERATION,
    STAGING_PREFIX,
    check_pipeline_name,
    epoch_prefix,
    output_segment,
)
from penstock.protocol.stored.side_outputs import SIDE
from penstock.store.store import SegmentStore

log = logging.getLogger(__name__)


class Sweeper:
    """Deletes staged segments that will never be merged: of older generations, merged epochs and failed attempts."""

    def __init__(self, store: SegmentStore, orphan_seconds: float, clock: Callable[[], float]) -> None:
        self._store = store
        self._orphan_seconds = orphan_seconds
        self._clock = clock
        self._first_seen: dict[str, float] = {}
        store.table.follow(STAGING_PREFIX)

    def sweep(self, prefix: str) -> int:
        """Delete all segments with this prefix; returns how many. Segments that are already gone are skipped."""
        assert prefix.startswith(STAGING_PREFIX)
        return self._delete([info.name for info in self._store.segments(prefix)])

    def sweep_orphans(self, state: State) -> int:
        """Delete what the state does not need. Segments that a task may still write stay for a while: those of an
        unknown pipeline, which may be starting, and those of a merged epoch that Spark may be running again.
        """
        names = [info.name for info in self._store.segments(STAGING_PREFIX)]
        now = self._clock()
        uses = {name: use_of(state, name) for name in names}
        self._first_seen = {name: self._first_seen.get(name, now) for name in names if uses[name] is Use.UNCLEAR}
        orphans = [name for name in names if uses[name] is Use.NONE]
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
            except PenstockError as error:  # the next sweep tries again
                log.warning("staged segment %r could not be deleted: %s", name, error)
                break
        return count


class Use(Enum):
    """Of a staged segment."""

    MERGE = "it will be merged"
    UNCLEAR = "it will not be merged, but a task may be writing it"
    NONE = "nothing needs it"


def use_of(state: State, name: str) -> Use:
    """An epoch that is already merged runs again after a crash, or from an older checkpoint: its tasks must be able to
    stage their output, and the merge then discards it. That is over when Spark runs a later epoch.

    Side outputs of a pipeline whose epochs are not merged, because it writes with Spark's own sinks, are needed until
    they are proved, also by a later generation; `SideOutputs` removes them.
    """
    _, pipeline, generation, epoch, rest, *_ = [*name.split("/", 4), "", "", "", ""]
    known = state.pipelines.get(pipeline)
    if known is None:
        return Use.UNCLEAR
    if known.is_merged_by_proof and rest.startswith(SIDE):
        return Use.MERGE
    if generation not in (NO_GENERATION, str(known.generation)) or not epoch.isdecimal():
        return Use.NONE
    last = known.last_epoch
    if last is None or int(epoch) > last:
        return Use.MERGE
    return Use.NONE if int(epoch) < known.running[1] else Use.UNCLEAR


class Merger:
    def __init__(self, shared: Shared, sweeper: Sweeper, sides: SideOutputs) -> None:
        self._shared = shared
        self._sweeper = sweeper
        self._sides = sides

    def check_staging(self, segment: str) -> None:
        """Raises Fenced if a task may not stage this segment: its pipeline has started a newer generation, so it would
        never be merged. An unknown pipeline may be starting, and a query that uses only the sink has no generation.
        """
        _, pipeline, generation, *_ = [*segment.split("/", 3), "", ""]
        known = self._shared.state.pipelines.get(pipeline)
        if known is not None and generation not in (NO_GENERATION, str(known.generation)):
            raise Fenced(
                f"segment {segment!r} cannot be staged: pipeline {pipeline!r} runs as generation {known.generation}"
            )

    def route(self, name: str, generation: int | None, epoch: int, target: str) -> Sequence[Span]:
        """Where all tasks of an epoch route the rows for this target. Raises Fenced, RequestError."""
        self._pipeline(check_pipeline_name(name), generation)
        return self._shared.streams.route(name, epoch, target)

    async def merge(
        self, name: str, generation: int | None, epoch: int, staged: Sequence[Staged], manifest: str = ""
    ) -> Merged:
        """Merge the epoch in one journal record, together with the ledger entry and what is registered as its side
        outputs. If it is already merged, only the newly staged segments are deleted. Never refused for a quota.
        `manifest`: its mirrored checkpoint.

        If no task has finished some planned parts of the epoch, nothing is merged, and the reply names them: the
        caller decodes and registers them, and merges again.
        """
        _check(name, generation, epoch, staged)
        shared, began_ns = self._shared, self._shared.traces.now_ns()
        async with shared.lock(name):
            pipeline = self._pipeline(name, generation)
            done = is_merged(pipeline, Merge(name, generation, epoch, {}))
            if not done:
                sides, missing = await self._sides.staged(name, generation, epoch, pipeline)
                if missing:
                    return Merged(False, epoch, missing)
                staged = [*staged, *sides]
            own = [one for one in staged if not one.target]
            pairs = tuple((one.port, one.segment) for one in own)
            command = Merge(name, generation, epoch, {}, pairs, manifest)
            if done:
                shared.keeper.commit(command)
            else:
                check_ports(pipeline, command)
                self._check_lengths(staged)
                with shared.streams.merging(name, epoch, staged) as merges:
                    ends = self._ends(name, pipeline, own)
                    shared.keeper.commit(replace(command, ends=ends, merges=merges))
            shared.watermarks.outputs.note(name, shared.state.pipelines[name])
            shared.heartbeats.merged(name, shared.state.pipelines[name].running[1])
            # Tasks of the epoch have ended, so that nothing needs what losing attempts have left.
            for one in {generation, pipeline.generation, None}:
                self._sweeper.sweep(epoch_prefix(name, one, epoch))
            if not done:
                merged = shared.state.pipelines[name]
                shared.flow.merged(name, merged, merged.epochs[epoch], staged)
                shared.trace(partial(shared.traces.merged, name, merged, epoch, began_ns, staged))
            await shared.keeper.settled()
        return Merged(not done, epoch)

    def _pipeline(self, name: str, generation: int | None) -> Pipeline:
        """A sink without a generation is not fenced, and registers its pipeline."""
        if generation is not None:
            return self._shared.living(name, generation)
        return self._shared.state.pipelines.get(name) or Pipeline(incarnation=0, generation=0)

    def _ends(self, name: str, pipeline: Pipeline, staged: Sequence[Staged]) -> dict[str, int]:
        """Port → where its output segment will end. Creates missing segments."""
        store, ends = self._shared.store, dict[str, int]()
        for port in dict.fromkeys([*pipeline.ports, *(one.port for one in staged)]):
            segment = output_segment(name, port)
            if not store.exists(segment):
                store.create(segment, NO_QUOTA, draining=True)
            ends[port] = store.length(segment) + sum(one.length for one in staged if one.port == port)
        return ends

    def _check_lengths(self, staged: Sequence[Staged]) -> None:
        """Raises PipelineError if the length of a staged segment is not what its task has reported."""
        store = self._shared.store
        for one in staged:
            if not store.exists(one.segment) or store.length(one.segment) != one.length:
                there = store.length(one.segment) if store.exists(one.segment) else "no"
                raise PipelineError(
                    f"{one.segment!r} has {there} bytes, but its task has reported {one.length}",
                    "It was deleted or aborted: let Spark run the batch again.",
                )

    async def abort(self, name: str, generation: int | None, epoch: int) -> None:
        """Delete what the epoch has staged. An older generation deletes only its own segments."""
        async with self._shared.lock(name):
            self._sweeper.sweep(epoch_prefix(check_pipeline_name(name), generation, epoch))
            self._shared.keeper.cover()
            await self._shared.keeper.settled()


def _check(name: str, generation: int | None, epoch: int, staged: Sequence[Staged]) -> None:
    check_pipeline_name(name)
    prefix = epoch_prefix(name, generation, epoch)
    for one in staged:
        check_pipeline_name(one.port, "port")
        if not one.segment.startswith(prefix):
            raise RequestError(f"{one.segment!r} was not staged by this epoch", f"Its names start with {prefix}.")
    if len({source_of(one.target) for one in staged if one.target}) > 1:
        raise RequestError("an epoch has one target", "Write to each from a query of its own.")
    if len({one.segment for one in staged}) < len(staged):
        raise RequestError("a segment is listed twice", "Every attempt of a task stages segments of its own.")
