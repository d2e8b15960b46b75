"""Answers Spark's question for the latest offset: where the next epoch ends."""

import asyncio

from penstock.coordinator.machine.commands import Ask, Plan, Read
from penstock.coordinator.machine.epochs import answer, check_offset
from penstock.coordinator.machine.state import Pipeline
from penstock.coordinator.messages import Cut, InputOffset, Limits, Segments
from penstock.coordinator.reading import cutting
from penstock.coordinator.reading.cutting import Allowance
from penstock.coordinator.shared import Shared
from penstock.core.errors import DataLoss


class Cuts:
    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._upto: dict[str, tuple[int, dict[str, Segments]]] = {}
        """Of each pipeline: the generation, and how far each of its inputs wants to go in it, if it has said so."""

    async def cut(
        self,
        name: str,
        generation: int,
        key: str,
        start: InputOffset,
        *,
        upto: Segments | None = None,
        limits: Limits | None = None,
        wait_seconds: float = 0.0,
    ) -> Cut:
        """The same start gets the same end. Nothing new, or held: the start itself, after waiting for it."""
        shared, loop = self._shared, asyncio.get_running_loop()
        deadline = loop.time() + min(wait_seconds, shared.settings.wait_seconds_max)
        while True:
            seen = shared.news.count
            async with shared.lock(name):
                pipeline = shared.living(name, generation)
                self._remember(name, generation, key, upto)
                epoch = check_offset(pipeline, key, start)
                end, held = await self._next(name, pipeline, key, epoch, limits)
                pipeline = shared.state.pipelines[name]
                leads = pipeline.leader == key
            # Whoever does not lead gets nothing by waiting: it is the leader's asking that decides.
            if end > epoch or not leads or loop.time() >= deadline:
                await shared.keeper.settled()
                return Cut(_offset(pipeline, key, end), held)
            await shared.news.wait(seen, deadline - loop.time())

    async def _next(
        self, name: str, pipeline: Pipeline, key: str, start: int, limits: Limits | None
    ) -> tuple[int, str | None]:
        """The epoch to tell, and what holds it back."""
        shared, held = self._shared, None
        end = answer(pipeline, key, start)
        if end is None:
            held = shared.reports.held(shared.state, name)
            if held is None and await self._plan(name, pipeline, key, limits or pipeline.limits):
                return start + 1, None
            end = start
        shared.keeper.commit(Ask(name, pipeline.generation, key, start, end))
        return end, held

    async def _plan(self, name: str, pipeline: Pipeline, key: str, limits: Limits) -> bool:
        """Decide the next cut, if there is anything new."""
        shared = self._shared
        self._check_there(name, pipeline)
        known = shared.sources.all_segments(pipeline.sources)
        positions = {segment: pipeline.position(pipeline.planned, segment) for segment in known}
        waiting = cutting.backlogs(shared.records, positions, self._limit(name, pipeline, known))
        if not waiting:
            return False
        allowed = Allowance(
            _first(limits.bytes, pipeline.limits.bytes, shared.settings.epoch_bytes),
            limits.rows if limits.rows is not None else pipeline.limits.rows,
        )
        ends = await cutting.ends(shared.records, waiting, allowed)
        table, watermark = await shared.watermarks.fold(shared.state, name, ends)
        shared.keeper.commit(Plan(name, pipeline.generation, key, ends, watermark))
        shared.watermarks.keep(name, table, ends)
        return True

    def _check_there(self, name: str, pipeline: Pipeline) -> None:
        """What was read is no longer there if a segment was deleted; made again, its offsets mean something else."""
        for segment, at in pipeline.segments(pipeline.planned).items():
            if at > self._shared.records.end(segment):
                raise DataLoss(
                    f"pipeline {name!r} has read segment {segment!r} up to {at}, but it ends before that",
                    f"Let the pipeline begin anew: penstock pipeline reset {name}",
                )

    def _remember(self, name: str, generation: int, key: str, upto: Segments | None) -> None:
        of, known = self._upto.get(name, (generation, {}))
        if of != generation:
            del self._upto[name]
            known = {}
        if upto is not None:
            self._upto = {one: said for one, said in self._upto.items() if one in self._shared.state.pipelines}
            self._upto[name] = generation, {**known, key: upto}

    def _limit(self, name: str, pipeline: Pipeline, segments: list[str]) -> dict[str, int]:
        """How far the inputs that read a segment want to go in it. An input that has not said so does not count."""
        limits: dict[str, int] = {}
        for key, upto in self._upto.get(name, (0, {}))[1].items():
            sources = pipeline.inputs[key].sources if key in pipeline.inputs else ()
            for segment in self._shared.sources.all_segments(sources):
                limits[segment] = max(limits.get(segment, 0), upto.get(segment, 0))
        return {segment: limits[segment] for segment in segments if segment in limits}

    async def reading(self, name: str, generation: int, key: str, start: InputOffset, end: InputOffset) -> None:
        """Spark runs a batch again that its log holds: this says which epochs are in it."""
        shared = self._shared
        async with shared.lock(name):
            pipeline = shared.living(name, generation)
            epochs = check_offset(pipeline, key, start), check_offset(pipeline, key, end)
            shared.keeper.commit(Read(name, generation, *epochs))
            await shared.keeper.settled()


def _first(*values: int | None) -> int:
    return next(value for value in values if value is not None)


def _offset(pipeline: Pipeline, key: str, epoch: int) -> InputOffset:
    return InputOffset(pipeline.offset(key, epoch), epoch, pipeline.incarnation, pipeline.cuts[epoch].watermark)
