"""The lifecycle of pipelines: start, complete, reset, fork and drop."""

import logging
from collections.abc import Callable, Mapping, Sequence

from penstock.coordinator.ledger import NO_QUOTA
from penstock.coordinator.machine.apply import check_fresh, check_initial, current, forked_at, known, left
from penstock.coordinator.machine.commands import Complete, Describe, Drop, Fork, Reset, Start
from penstock.coordinator.machine.epochs import SEGMENTS_MAX
from penstock.coordinator.machine.replays import own_sources
from penstock.coordinator.machine.state import Pipeline, source_of
from penstock.coordinator.machine.subscriptions import readers_of
from penstock.coordinator.mirrored_checkpoints import MirroredCheckpoints
from penstock.coordinator.remote import StartedSources
from penstock.coordinator.shared import Shared
from penstock.coordinator.side_outputs import SideOutputs
from penstock.core.errors import LimitExceeded, PipelineError, RequestError, Unavailable
from penstock.core.types import NO_EPOCH
from penstock.protocol.api.pipelines import (
    AtSegments,
    Forked,
    InputOffset,
    InputSpec,
    Limits,
    QueryFailure,
    QueryReport,
    Segments,
    Started,
    Starting,
    StoredInput,
)
from penstock.protocol.stored.names import REPLAY_PREFIX, check_pipeline_name, output_segment

log = logging.getLogger(__name__)

INPUTS_MAX = 100
"""Per pipeline: each is a process of its own in Spark's driver."""

OUTPUTS_MAX = 100
"""Ports per pipeline: each is a segment of its own for every partition of every epoch."""

SCHEMAS_CHARACTERS_MAX = 256 << 10
"""Names and types of all ports: they are in the ledger. A PostgreSQL table has at most 1,600 columns."""

TEXT_MAX = 1000
"""Characters of a request's text and of a source's name: they are in the ledger, and compared by every command."""


class Lifecycle:
    """`address` returns the segment port, and whether it uses TLS."""

    def __init__(
        self,
        shared: Shared,
        address: Callable[[], tuple[int, bool]],
        sides: SideOutputs,
        mirrored: MirroredCheckpoints,
    ) -> None:
        self._shared = shared
        self._mirrored = mirrored
        self._sides = sides
        self._address = address

    async def start(
        self,
        name: str,
        inputs: Mapping[str, InputSpec],
        outputs: Sequence[str] | None,
        limits: Limits,
        *,
        fresh: bool | None,
        request: str,
    ) -> Started:
        """Starts a new generation. The same request again returns the same generation, with these inputs added."""
        started = await self._start(name, inputs, outputs, limits, fresh=fresh, request=request)
        self._shared.heartbeats.started(name)
        return started

    async def register(self, name: str, inputs: Mapping[str, InputSpec], request: str) -> None:
        """Registers a pipeline before a driver runs it: its input is retained from now on."""
        await self._start(name, inputs, None, Limits(), fresh=None, request=request)

    async def _start(
        self,
        name: str,
        inputs: Mapping[str, InputSpec],
        outputs: Sequence[str] | None,
        limits: Limits,
        *,
        fresh: bool | None,
        request: str,
    ) -> Started:
        _check(name, inputs, outputs, request)
        shared = self._shared
        async with shared.lock(name):
            old = shared.state.pipelines.get(name)
            if fresh and old is not None and old.request != request and not self._mirrored.is_restorable(old):
                check_fresh(name, old)
            async with shared.remote.starting(name) as subscribing:
                given = {key: await self._input(old, key, spec, subscribing) for key, spec in inputs.items()}
                for port in outputs or ():
                    self._make_output(output_segment(name, port))
                numbers = (limits.bytes, limits.rows, limits.undelivered_bytes)
                shared.keeper.commit(Start(name, request, given, None if outputs is None else tuple(outputs), numbers))
                pipeline = shared.state.pipelines[name]
                await shared.keeper.settled()
        numbers = (pipeline.generation, pipeline.incarnation, pipeline.planned)
        return Started(*numbers, *self._address(), self._mirrored.store, pipeline.manifest)

    async def _input(
        self, old: Pipeline | None, key: str, spec: InputSpec, subscribing: StartedSources
    ) -> tuple[tuple[str, ...], Segments]:
        """Resolves where the input starts in those of its sources that it does not read yet. A source that was read
        before continues where it was, whatever `starting` is.
        """
        sources = await self._shared.remote.partitions(spec.sources)
        known = old.inputs.get(key) if old is not None else None
        read = known.sources if known is not None and known.resolved else ()
        before = {source_of(segment) for segment in left(old)} if old is not None else set()
        new = [source for source in sources if source not in read]
        first, again = [one for one in new if one not in before], [one for one in new if one in before]
        starting = _of(first, spec.starting) if read or again else spec.starting
        remote = await self._shared.remote.place(new)

        async def resolve(wanted: Sequence[str], at: Starting) -> dict[str, int]:
            there = [source for source in wanted if source in remote]
            here = [source for source in wanted if source not in there]
            found = await subscribing.resolve(there, at)
            return found | (await self._shared.sources.resolve(here, _of(here, at) if there else at) if here else {})

        return sources, (await resolve(first, starting) if first else {}) | await resolve(again, "earliest")

    def _make_output(self, segment: str) -> None:
        if not self._shared.store.exists(segment):
            self._shared.store.create(segment, NO_QUOTA)

    async def initial(self, name: str, generation: int, key: str) -> InputOffset:
        """Where epoch 0 starts. Raises PipelineError if that epoch is over: then the checkpoint is lost."""
        shared = self._shared
        async with shared.lock(name):
            pipeline = shared.living(name, generation)
            check_initial(name, pipeline)
            if key not in pipeline.inputs:
                raise PipelineError(f"pipeline {name!r} has no input {key!r}", f"It has: {', '.join(pipeline.inputs)}.")
            await shared.keeper.settled()
            watermark = pipeline.cuts[NO_EPOCH].watermark
            return InputOffset(pipeline.offset(key, NO_EPOCH), NO_EPOCH, pipeline.incarnation, watermark)

    async def complete(self, name: str, generation: int, epoch: int) -> None:
        """Spark has committed all epochs up to this one."""
        shared = self._shared
        async with shared.lock(name):
            shared.living(name, generation)
            await self._sides.collect(name, epoch)
            shared.keeper.commit(Complete(name, generation, epoch))
            shared.heartbeats.merged(name, epoch)
            await shared.keeper.settled()

    async def describe(self, name: str, generation: int, schemas: Mapping[str, Sequence[tuple[str, str]]]) -> None:
        """Records the fields of the ports' rows, from which SQL sinks create tables. Too long ones are not recorded."""
        shared = self._shared
        given = {check_pipeline_name(port, "port"): tuple(fields) for port, fields in schemas.items()}
        if sum(len(name) + len(kind) for fields in given.values() for name, kind in fields) > SCHEMAS_CHARACTERS_MAX:
            log.warning("pipeline %s: the schemas of its outputs are too long and are not kept", name)
            given = {}
        async with shared.lock(name):
            shared.keeper.commit(Describe(name, generation, given))
            await shared.keeper.settled()

    def heartbeat(
        self,
        name: str,
        generation: int,
        *,
        stopped: bool,
        failed: bool = False,
        failure: QueryFailure | None = None,
        query: QueryReport | None = None,
    ) -> None:
        current(self._shared.state, name, generation)
        self._shared.heartbeats.beat(name, stopped=stopped, failed=failed, failure=failure, query=query)

    def stored_input(self, name: str) -> StoredInput:
        """How much of its input a pipeline would read again after a reset, if it started where it first started.
        Replayed dead letters do not count: it does not read those again.
        """
        pipeline, view = known(self._shared.state, name), self._shared.remote.view(name)
        if view.blocked is not None:
            raise Unavailable(f"the input of pipeline {name!r} is not known: {view.blocked}", "Try again.")
        declared = [one for key, spec in pipeline.inputs.items() for one in own_sources(name, key, spec)]
        stored = total = 0
        for segment in view.all_segments(declared):
            named = [spec.starting[segment] for spec in pipeline.inputs.values() if segment in spec.starting]
            first, end = min(named, default=0), view.records.stored_end(segment)
            total += max(0, end - first)
            stored += max(0, end - max(first, view.records.begin(segment)))
        return StoredInput(stored, total)

    async def reset(self, name: str, *, accept_partial: bool = False) -> None:
        """Starts a new incarnation; the next start decides where it reads from. Raises PipelineError if retention has
        removed some of the pipeline's input, unless `accept_partial`: its results would silently differ.
        """
        shared = self._shared
        async with shared.lock(name):
            left = self.stored_input(name)
            if not left.is_whole and not accept_partial:
                raise PipelineError(
                    f"{left.stored} of {left.total} bytes of the input of pipeline {name!r} are still stored: results "
                    "that need the removed part would be missing or wrong",
                    "Reset it all the same with --accept-partial; a worker with --retention keep removes no input.",
                )
            self._write_watermarks(name)
            async with shared.remote.starting(name) as subscribing:
                # What it reads again must be retained before it counts: a release may be on its way.
                pipeline = known(shared.state, name)
                for source in sorted(pipeline.sources & shared.remote.shards.keys()):
                    await subscribing.resolve([source], AtSegments(_first_read(pipeline, source)))
                shared.keeper.commit(Reset(name))
                shared.heartbeats.forget(name)
                await shared.keeper.settled()

    async def fork(self, name: str, origin: str) -> Forked:
        """Registers a new pipeline that starts after the last committed epoch of another one, without state. Raises
        PipelineError if the name is taken, or if the other one is unknown or has not committed an epoch.
        """
        shared, command = self._shared, Fork(check_pipeline_name(name), origin)
        async with shared.lock(name):
            at = forked_at(shared.state, command)
            last = shared.state.pipelines[origin].last_epoch
            shared.keeper.commit(command)
            await shared.keeper.settled()
        shared.remote.refresh()
        return Forked(at if last is None else last)

    async def drop(self, name: str, *, outputs: bool = False) -> None:
        """Unregisters the pipeline: nothing waits for it any more. With `outputs` its output is deleted too."""
        shared = self._shared
        async with shared.lock(name):
            segments = self._outputs(name) if outputs else []
            self._write_watermarks(name)
            shared.keeper.commit(Drop(name, tuple(segments)))
            # After the entry in the journal: a crash may leave segments without a pipeline, but not the reverse.
            for segment in segments:
                shared.store.delete(segment)
            shared.watermarks.forget(name, outputs=outputs)
            shared.heartbeats.forget(name)
            shared.keeper.cover()
            await shared.keeper.settled()
        shared.remote.refresh()

    def _write_watermarks(self, name: str) -> None:
        """Its epochs are about to be forgotten; readers of its output still need their watermarks."""
        pipeline = self._shared.state.pipelines.get(name)
        if pipeline is not None:
            self._shared.watermarks.outputs.write(name, pipeline)

    def _outputs(self, name: str) -> list[str]:
        """Its output segments. Raises PipelineError if another pipeline reads one."""
        shared = self._shared
        found = [info.name for info in shared.store.segments(output_segment(check_pipeline_name(name), ""))]
        for reader, pipeline in shared.state.pipelines.items():
            read = [segment for segment in found if source_of(segment) in pipeline.sources]
            if reader != name and read:
                raise PipelineError(f"{read[0]} is read by pipeline {reader!r}", "Drop that one first.")
        for segment in found:
            for who in readers_of(shared.state.subscriptions, source_of(segment)):
                raise PipelineError(f"{segment} is read by pipeline {who}", "Drop that one first.")
        return found


def _check(name: str, inputs: Mapping[str, InputSpec], outputs: Sequence[str] | None, request: str) -> None:
    check_pipeline_name(name)
    if not request:
        raise RequestError("the start has no request text", "Send one: it identifies a repeated start.")
    if len(inputs) > INPUTS_MAX or len(outputs or ()) > OUTPUTS_MAX:
        raise RequestError(f"a pipeline has at most {INPUTS_MAX} inputs and {OUTPUTS_MAX} outputs")
    for port in outputs or ():
        check_pipeline_name(port, "port")
        if port.startswith(REPLAY_PREFIX):
            raise RequestError(f"{port!r} is not a valid port name", f"{REPLAY_PREFIX}… is used for replays.")
    for key in inputs:
        check_pipeline_name(key, "input")
    _check_size(inputs, request)


def _first_read(pipeline: Pipeline, source: str) -> dict[str, int]:
    """Where the pipeline first started in the source's segments."""
    found: dict[str, int] = {}
    for segment in pipeline.segments(pipeline.planned):
        if source_of(segment) == source:
            found[segment] = min((one.starting.get(segment, 0) for one in pipeline.inputs.values()), default=0)
    return found


def _of(sources: Sequence[str], starting: Starting) -> Starting:
    """The starting offsets of these sources alone: the others are read already."""
    if not isinstance(starting, AtSegments):
        return starting
    return AtSegments({name: at for name, at in starting.segments.items() if source_of(name) in sources})


def _check_size(inputs: Mapping[str, InputSpec], request: str) -> None:
    """Raises LimitExceeded for a start that would make every later command slow."""
    named = [spec.starting.segments for spec in inputs.values() if isinstance(spec.starting, AtSegments)]
    if max(sum(len(spec.sources) for spec in inputs.values()), sum(map(len, named))) > SEGMENTS_MAX:
        raise LimitExceeded(
            f"the pipeline would read more than {SEGMENTS_MAX} segments", "Move some sources to another pipeline."
        )
    if max(map(len, [request, *(source for spec in inputs.values() for source in spec.sources)])) > TEXT_MAX:
        raise LimitExceeded(f"the request's text, or a source's name, is longer than {TEXT_MAX} characters")
