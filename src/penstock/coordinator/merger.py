"""Merges what the tasks of a batch have staged into the output segments: all of it, once."""

from collections.abc import Sequence
from dataclasses import replace

from penstock.coordinator.ledger.ledger import NO_QUOTA
from penstock.coordinator.machine.commands import Merge
from penstock.coordinator.machine.merging import batch_prefix, check_ports, is_merged
from penstock.coordinator.machine.state import Pipeline
from penstock.coordinator.messages import Merged, Staged
from penstock.coordinator.shared import Shared
from penstock.coordinator.sweeping import Sweeper
from penstock.core.errors import PipelineError, RequestError
from penstock.protocol.stored.names import check_pipeline_name, output_segment


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
            shared.heartbeats.merged(name)
            if not done:
                merged = shared.state.pipelines[name]
                shared.flow.merged(name, merged, merged.batches[batch], staged)
            await shared.keeper.settled()
        return Merged(not done, pipeline.running[1])

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
