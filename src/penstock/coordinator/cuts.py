"""Answers Spark's requests for the latest offset: decides where the next epoch ends."""

import asyncio
from collections.abc import Callable, Collection, Container, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

from penstock.coordinator import readers
from penstock.coordinator.machine.apply import known
from penstock.coordinator.machine.burials import left_out
from penstock.coordinator.machine.commands import Ask, Attach, Plan, Read
from penstock.coordinator.machine.epochs import OLDER_CHECKPOINT, answer, check_offset, uncommitted
from penstock.coordinator.machine.replays import own_sources
from penstock.coordinator.machine.state import Pipeline, source_of
from penstock.coordinator.readers import Allowance
from penstock.coordinator.shared import Shared
from penstock.coordinator.side_outputs import SideOutputs
from penstock.coordinator.spans import LINKS_MAX, origins
from penstock.core.errors import DataLoss, Fenced, PipelineError
from penstock.core.types import NO_EPOCH
from penstock.protocol.api.pipelines import (
    BatchRanges,
    Cut,
    InputOffset,
    Limits,
    LoadState,
    Range,
    Rereading,
    Running,
    Segments,
)
from penstock.protocol.stored.event import END_OF_TIME
from penstock.protocol.stored.names import epoch_prefix, replay_source

ONE_EACH = "Use a separate `input` for each load."


@dataclass(slots=True)
class Query:
    """The running query of a pipeline: its loads, and how far each reads. In memory only; every load repeats it."""

    generation: int
    sources: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Input → its sources, for each input that a load has attached to."""
    upto: dict[str, Segments] = field(default_factory=dict)
    """Input → where it ends; an input that is not named has no end."""
    loads: set[str] = field(default_factory=set)
    state: set[LoadState] = field(default_factory=set)
    """What its loads of control rows report about their operators; empty if there is no such operator."""
    past: set[str] = field(default_factory=set)
    """Loads of earlier queries of the same generation."""
    planned: int = NO_EPOCH
    """The last epoch that the query has planned."""
    began_before: bool = True
    """No load of it has attached since the worker was started: it may be in the middle of an epoch."""


class Queries:
    """All loads of a query attach before the first of them asks for a cut; a later one belongs to a new query."""

    def __init__(self) -> None:
        self._queries: dict[str, Query] = {}

    def attach(
        self, name: str, generation: int, key: str, load: str, sources: Sequence[str], *, is_new_query: bool
    ) -> None:
        """`is_new_query`: an earlier query of this generation has asked already. Raises PipelineError for a second load
        of the same input with other sources: only one of the two would be read.
        """
        query = self.of(name, generation)
        if is_new_query:
            query = self._queries[name] = Query(generation, past=query.past | query.loads)
        query.began_before = False
        known = query.sources.setdefault(key, tuple(sources))
        if known != tuple(sources):
            raise PipelineError(
                f"input {key!r} of pipeline {name!r} is {', '.join(known)} in one load of the query, and "
                f"{', '.join(sources)} in another",
                ONE_EACH,
            )
        query.loads.add(load)

    def of(self, name: str, generation: int) -> Query:
        """The query of the generation; empty if the worker was started after it."""
        query = self._queries.get(name)
        if query is None or query.generation != generation:
            query = self._queries[name] = Query(generation)
        return query

    def state(self, name: str, generation: int) -> Collection[LoadState]:
        """The state that the generation's query has reported; empty if there is none."""
        query = self._queries.get(name)
        return query.state if query is not None and query.generation == generation else ()

    def check(self, name: str, generation: int, load: str) -> None:
        """Raises Fenced for a load of a query that another one has replaced in the same generation."""
        if load in self.of(name, generation).past:
            raise Fenced(
                f"another query of pipeline {name!r} has begun in generation {generation}",
                "Stop the older query, or start a generation for each.",
            )

    def keep(self, names: Container[str]) -> None:
        """Forget all but these pipelines."""
        self._queries = {name: query for name, query in self._queries.items() if name in names}


class Cuts:
    def __init__(self, shared: Shared, sides: SideOutputs, store_gathered: Callable[[], bool]) -> None:
        self._shared = shared
        self._sides = sides
        self._store_gathered = store_gathered
        self.queries = self._queries = Queries()
        self.epochs_left: int | None = None
        """How many more epochs may be planned; None: any number. For tests that decide what an epoch contains."""

    async def attach(
        self,
        name: str,
        generation: int,
        key: str,
        load: str,
        sources: Sequence[str],
        *,
        upto: Segments | None = None,
    ) -> None:
        """Registers a load of a query that starts; all its loads attach before the first of them asks for a cut. If
        another query of this generation has asked before, that one is over. Raises PipelineError if the input has
        other sources.
        """
        shared = self._shared
        async with shared.lock(name):
            pipeline = shared.living(name, generation)
            given = await shared.remote.partitions(sources)
            _check_sources(name, pipeline, key, given)
            self._queries.keep(shared.state.pipelines)
            self._queries.attach(name, generation, key, load, given, is_new_query=pipeline.leader is not None)
            self._queries.of(name, generation).upto.pop(key, None)
            self._remember(name, generation, key, upto)
            shared.keeper.commit(Attach(name, generation))
            await shared.keeper.settled()

    async def cut(
        self,
        name: str,
        generation: int,
        key: str,
        start: InputOffset,
        *,
        load: str = "",
        upto: Segments | None = None,
        limits: Limits | None = None,
        wait_seconds: float = 0.0,
        state: LoadState | None = None,
    ) -> Cut:
        """The same start always gets the same end. If there is nothing new, or the pipeline is blocked, it waits up to
        `wait_seconds` and then returns the start. `load` distinguishes loads of the same input: Spark reads a DataFrame
        twice if it is joined with itself. `state` comes from a load of control rows; it is repeated with every request,
        because the worker may have been restarted.
        """
        asker = f"{key}/{load}" if load else key
        shared, loop = self._shared, asyncio.get_running_loop()
        deadline = loop.time() + min(wait_seconds, shared.settings.wait_seconds_max)
        if shared.living(name, generation).leader in (None, asker):
            await self._stored()
        while True:
            seen = shared.news.count
            async with shared.lock(name):
                pipeline = shared.living(name, generation)
                shared.heartbeats.asked(name)
                self._queries.check(name, generation, load)
                self._remember(name, generation, key, upto)
                self._queries.of(name, generation).state |= {state} if state is not None else set()
                epoch = check_offset(name, pipeline, key, start)
                self._check_stored(name, pipeline, epoch)
                is_lacking = await self._sides.collect(name, epoch)
                end, blocked_by = await self._next(name, pipeline, asker, epoch, limits)
                await self._planned(name, generation, epoch, end)
                pipeline = shared.state.pipelines[name]
                leads = pipeline.leader == asker
            # Waiting does not help a load that is not the leader: the leader's request decides the cut.
            if end > epoch or not leads or loop.time() >= deadline:
                if end > epoch:
                    shared.trace(partial(shared.traces.returned, name, pipeline, end))
                await shared.keeper.settled()
                offset = _offset(pipeline, key, end)
                workers = await shared.remote.addresses(offset.segments) if end > epoch and shared.remote.shards else {}
                return Cut(offset, blocked_by, is_lacking, _left_out(pipeline, epoch, end), workers)
            await shared.news.wait(seen, deadline - loop.time())

    async def _stored(self) -> None:
        """What has arrived by now belongs to the next epoch: store it, even if more of it would have been gathered. Not
        while a request waits: then every message would be stored at once.
        """
        if self._store_gathered():
            self._shared.keeper.cover()
            await self._shared.keeper.settled()

    async def _next(
        self, name: str, pipeline: Pipeline, asker: str, start: int, limits: Limits | None
    ) -> tuple[int, str | None]:
        """The epoch to return, and what the pipeline is blocked by, if it is."""
        shared, blocked_by = self._shared, None
        end = answer(pipeline, asker, start)
        if end is None:
            blocked_by = shared.reports.blocked(shared.state, name)
            may_plan = blocked_by is None and self.epochs_left != 0
            if may_plan and await self._plan(name, pipeline, asker, limits or pipeline.limits):
                self.epochs_left = None if self.epochs_left is None else self.epochs_left - 1
                return shared.state.pipelines[name].planned, None
            end = start
            blocked_by = blocked_by or self._lacks(name, pipeline)
        shared.keeper.commit(Ask(name, pipeline.generation, asker, start, end))
        return end, blocked_by

    def _lacks(self, name: str, pipeline: Pipeline) -> str | None:
        """Why a query with an end has nothing to read although it is not there: Spark takes an empty epoch for it."""
        upto = self._queries.of(name, pipeline.generation).upto
        view = self._shared.remote.view(name)
        return next((waits for ends in upto.values() if (waits := view.lacks(ends)) is not None), None)

    async def _plan(self, name: str, pipeline: Pipeline, asker: str, limits: Limits) -> bool:
        """Decide the next cut, if there is anything new."""
        shared, began_ns = self._shared, self._shared.traces.now_ns()
        self._check_there(name, pipeline)
        view = shared.remote.view(name)
        if not shared.watermarks.is_recovered(name, pipeline):  # the heads that it needs have just arrived
            await shared.watermarks.recover_or_lose(shared.state, name)
        segments = view.all_segments(pipeline.sources)
        positions = {segment: pipeline.position(pipeline.planned, segment) for segment in segments}
        allowed = Allowance(
            _first(limits.bytes, pipeline.limits.bytes, shared.settings.epoch_bytes),
            limits.rows if limits.rows is not None else pipeline.limits.rows,
        )
        await view.prepare(positions, allowed.bytes)
        admitted = shared.streams.admitted(positions)
        waiting = readers.backlogs(view.records, admitted, self._limit(name, pipeline, segments))
        lost = self._lost(pipeline)
        if not waiting and not lost:
            return self._plan_watermark(name, pipeline, asker)
        ends = await readers.ends(view.records, waiting, allowed) | lost
        folded = await shared.watermarks.fold(shared.state, name, ends)
        shared.keeper.commit(Plan(name, pipeline.generation, asker, ends, folded.watermark))
        shared.watermarks.keep(name, folded, pipeline.watermark, ends)
        view.read({**positions, **ends})
        taken = shared.flow.cut(name, pipeline, ends, folded.events)
        await self._trace(name, pipeline, began_ns, ends, taken)
        if folded.events:
            shared.heartbeats.got_epoch(name, shared.state.pipelines[name].planned)
        return True

    def _lost(self, pipeline: Pipeline) -> dict[str, int]:
        """What streams of Pravega's clients have lost by truncations before it was read: the query that reads up to
        there fails, unless it may continue without it.
        """
        begun = {segment for spec in pipeline.inputs.values() for segment in spec.starting}
        position = partial(pipeline.position, pipeline.planned)
        return self._shared.streams.lost(pipeline.sources, position, begun)

    async def _trace(self, name: str, before: Pipeline, began_ns: int, ends: Segments, taken: tuple[int, int]) -> None:
        shared = self._shared
        shared.traces.cut(name, before, shared.state, began_ns, ends, taken)
        # An epoch may read a thousand segments, and has few links: Spark must not wait for a sample of each.
        here = [(name, end) for name, end in ends.items() if source_of(name) not in shared.remote.shards]
        for segment, end in islice(here, LINKS_MAX) if shared.traces.is_on else ():
            events = await shared.records.samples(segment, before.position(before.planned, segment), end)
            shared.traces.link(name, shared.state.pipelines[name].planned, origins(events))

    def _plan_watermark(self, name: str, pipeline: Pipeline, asker: str) -> bool:
        """Decide a cut without data if the watermark of an output that it reads has advanced: windows may be due. A
        query with an end gets such a cut only when everything that it reads has ended.
        """
        shared, began_ns = self._shared, self._shared.traces.now_ns()
        folded = shared.watermarks.moved(shared.state, name)
        is_bounded = bool(self._queries.of(name, pipeline.generation).upto)
        if folded is None or (is_bounded and folded.watermark != END_OF_TIME):
            return False
        shared.keeper.commit(Plan(name, pipeline.generation, asker, {}, folded.watermark))
        shared.watermarks.keep(name, folded, pipeline.watermark, {})
        shared.traces.cut(name, pipeline, shared.state, began_ns, {}, shared.flow.cut(name, pipeline, {}, 0))
        return True

    def _check_there(self, name: str, pipeline: Pipeline) -> None:
        """Raises DataLoss if a segment was deleted: if it is created again, its offsets mean other bytes."""
        records, streams = self._shared.remote.view(name).records, self._shared.streams
        streams.check(pipeline.sources)
        for segment, at in pipeline.segments(pipeline.planned).items():
            if at > records.stored_end(segment) and not streams.was_removed(segment, at):
                raise DataLoss(
                    f"pipeline {name!r} has read segment {segment!r} up to {at}, but it ends before that",
                    f"Start the pipeline from scratch: penstock pipeline reset {name}",
                )

    def _check_stored(self, name: str, pipeline: Pipeline, epoch: int) -> None:
        """Raises PipelineError for a checkpoint that is older than any crash leaves one, if the input after it was
        removed. If it is still there, the epochs run again, and merging them again changes nothing.
        """
        if epoch >= pipeline.floor:
            return
        records = self._shared.remote.view(name).records
        for segment, at in pipeline.segments(epoch).items():
            if at < records.begin(segment):
                raise PipelineError(
                    f"the checkpoint of pipeline {name!r} is older than the ledger: it is at epoch {epoch}, Spark has "
                    f"committed epoch {pipeline.proved}, and the input in between was removed",
                    f"{OLDER_CHECKPOINT} {name}",
                )

    def _remember(self, name: str, generation: int, key: str, upto: Segments | None) -> None:
        """A query with an end also reads what was replayed before it started."""
        if upto is not None:
            query = self._queries.of(name, generation)
            replays = str(replay_source(name, key).segment)
            end = query.upto.get(key, {}).get(replays, self._shared.records.end(replays))
            query.upto[key] = {replays: end, **upto}

    def _limit(self, name: str, pipeline: Pipeline, segments: list[str]) -> dict[str, int]:
        """Segment → how far its inputs read. Inputs without an end do not count."""
        limits: dict[str, int] = {}
        for key, upto in self._queries.of(name, pipeline.generation).upto.items():
            sources = pipeline.inputs[key].sources if key in pipeline.inputs else ()
            for segment in self._shared.remote.view(name).all_segments(sources):
                limits[segment] = max(limits.get(segment, 0), upto.get(segment, 0))
        return {segment: limits[segment] for segment in segments if segment in limits}

    async def reading(self, name: str, generation: int, key: str, start: InputOffset, end: InputOffset) -> Rereading:
        """Spark runs a batch of its offset log again, between these offsets. Returns where the input starts, also in
        segments that `start` does not name because their source was added since, and what it leaves out.
        """
        shared = self._shared
        async with shared.lock(name):
            pipeline = shared.living(name, generation)
            epochs = check_offset(name, pipeline, key, start), check_offset(name, pipeline, key, end)
            self._check_stored(name, pipeline, epochs[0])
            shared.heartbeats.asked(name)
            shared.heartbeats.got_epoch(name, epochs[1])
            shared.keeper.commit(Read(name, generation, *epochs))
            await self._planned(name, generation, *epochs)
            shared.trace(partial(shared.traces.returned, name, pipeline, epochs[1]))
            await shared.keeper.settled()
            return Rereading(pipeline.offset(key, epochs[0]), _left_out(pipeline, *epochs))

    async def _planned(self, name: str, generation: int, start: int, end: int) -> None:
        """A query runs the epochs after `start` for the first time: side outputs of earlier tries no longer count, as
        the user may have changed the function in between. If the query is older than the worker, this may not be the
        first time, as with a second job in `foreachBatch`: what its own generation has registered still counts.
        """
        query = self._queries.of(name, generation)
        if end > max(start, query.planned):
            query.planned = end
            await self._sides.drop_after(name, start, keep=generation if query.began_before else None)
            pipeline = self._shared.state.pipelines[name]
            self._sides.plan_buried(epoch_prefix(name, generation, end), pipeline, start, end)

    def running(self, name: str, generation: int | None) -> Running:
        """What the tasks of Spark's current batch read. It is already durable, so this does not wait. `generation` None
        means the newest one; raises Fenced for an older one.
        """
        shared = self._shared
        pipeline = known(shared.state, name) if generation is None else shared.living(name, generation)
        start, end = pipeline.running
        if start not in pipeline.cuts:
            raise PipelineError(f"pipeline {name!r} is not running a batch", "Its query has not asked for a cut yet.")
        watermarks = pipeline.cuts[start].watermark, pipeline.cuts[end].watermark
        return Running(start, end, *watermarks, tuple(sorted(pipeline.sources)))

    def batch(self, name: str) -> BatchRanges:
        """What the first epoch reads that is planned and not committed, to find the event at which it fails; without
        one, what Spark's last batch has read. Raises PipelineError if no batch was planned.
        """
        running, pipeline = self.running(name, None), known(self._shared.state, name)
        found = uncommitted(pipeline)
        start, end = found or (running.start_epoch, running.end_epoch)
        inputs = {key: _ranges(pipeline, key, start, end) for key in pipeline.inputs}
        return BatchRanges(end, inputs, pipeline.cuts[start].watermark, found is None)


def _left_out(pipeline: Pipeline, start: int, end: int) -> list[Range]:
    return [one for one, _ in left_out(pipeline, start, end)]


def _ranges(pipeline: Pipeline, key: str, first: int, last: int) -> list[Range]:
    start, end = pipeline.offset(key, first), pipeline.offset(key, last)
    ranges = [Range(segment, start.get(segment, 0), at) for segment, at in end.items()]
    return [one for one in ranges if one.end > one.start]


def _check_sources(name: str, pipeline: Pipeline, key: str, given: tuple[str, ...]) -> None:
    declared = pipeline.inputs.get(key)
    if declared is None:
        raise PipelineError(f"pipeline {name!r} has no input {key!r}", f"It has: {', '.join(pipeline.inputs)}.")
    own = own_sources(name, key, declared)
    if set(own) != set(given):
        raise PipelineError(f"input {key!r} of pipeline {name!r} is {', '.join(own)}, not {', '.join(given)}", ONE_EACH)


def _first(*values: int | None) -> int:
    return next(value for value in values if value is not None)


def _offset(pipeline: Pipeline, key: str, epoch: int) -> InputOffset:
    return InputOffset(pipeline.offset(key, epoch), epoch, pipeline.incarnation, pipeline.cuts[epoch].watermark)
