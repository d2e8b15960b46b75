"""The routes of pipelines: their epochs, readers, sinks, windows and dead letters."""

import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from starlette.requests import Request

from penstock.access.principals import WHOLE_WORKER, Role
from penstock.connectors.api import paths_in
from penstock.connectors.permissions import Permissions
from penstock.connectors.segment import SegmentOptions
from penstock.connectors.urls import ParsedSink, is_url, parse_sink
from penstock.core.errors import RequestError, Unavailable
from penstock.delivery.rewind import Consent
from penstock.protocol.api import pipelines as api
from penstock.protocol.api import side_outputs
from penstock.protocol.api.codec import Empty
from penstock.protocol.api.dead_letters import (
    BuriedList,
    Bury,
    BuryDone,
    DeadLetter,
    DeadLetterList,
    Replay,
    ReplayChosen,
    Replayed,
)
from penstock.protocol.api.delivery import (
    Bind,
    EpochList,
    Park,
    Rewind,
    Rewound,
    SinkSpec,
    TableDdl,
    Unbind,
)
from penstock.protocol.api.history import SourceStreams
from penstock.protocol.api.pipelines import InputOffset, in_order, starting_of
from penstock.protocol.api.shards import AskPlaces, Places
from penstock.protocol.stored.dead_letters import DEAD_LETTER_PORTS
from penstock.protocol.stored.names import Source, access_name, check_pipeline_name, kind_of
from penstock.worker.api_route import ApiRoute, Query, Subject, about
from penstock.worker.routes import MERGE_BYTES_MAX, Routed, get, number_of, post, principal_of
from penstock.worker.visibility import visible_batch, visible_pipelines

_MISTAKES_MAX = 20
"""Mistakes that a refusal lists: finding a suggestion for each takes a while."""

STREAMS_SHOWN = 100
"""Of a source: people look for the slowest ones."""


def routes(worker: Routed) -> list[ApiRoute]:
    pipelines, readers, sinks, dead_letters = _Pipelines(worker), _Readers(worker), _Sinks(worker), _DeadLetters(worker)
    return [
        *_of_pipelines(pipelines),
        *_of_drivers(pipelines),
        *_of_readers(readers),
        *_of_sinks(sinks),
        *_of_dead_letters(dead_letters),
    ]


_NAME = "/pipelines/{name}/"
_GENERATION = Query("generation", "refuses with 409 if a newer generation has started", int)
_LISTED = (
    Query("limit", "the most of each port: without it, only their places", int),
    Query("oldest", "with `true`, the oldest ones instead of the latest"),
    Query("before", "the latest of those that end at this offset of their port, or earlier", int),
)


def _of_pipelines(pipelines: "_Pipelines") -> list[ApiRoute]:
    return about(
        Subject.PIPELINES,
        get("/pipelines", pipelines.listed, is_filtered=True),
        get(_NAME + "running", pipelines.running, query=[_GENERATION]),
        get(_NAME + "batch", pipelines.batch),
        get(_NAME + "input", pipelines.stored_input),
        post(_NAME + "reset", api.Reset, pipelines.reset, is_audited=True),
        post(_NAME + "fork", api.Fork, pipelines.fork, names=pipelines.forked_names, is_audited=True),
        post(_NAME + "drop", api.Drop, pipelines.drop, is_audited=True),
    )


def _of_drivers(pipelines: "_Pipelines") -> list[ApiRoute]:
    return about(
        Subject.DRIVERS,
        post("/starting", api.Announce, pipelines.announce, names=announced),
        post(_NAME + "start", api.Start, pipelines.start, names=_started_inputs),
        post(_NAME + "attach", api.Attach, pipelines.attach, names=_attached),
        post(_NAME + "initial", api.Initial, pipelines.initial),
        post(_NAME + "cut", api.AskCut, pipelines.cut),
        post(_NAME + "reading", api.Reading, pipelines.reading),
        post(_NAME + "merge", api.Merge, pipelines.merge, names=_merged_targets, body_bytes_max=MERGE_BYTES_MAX),
        post(_NAME + "route", api.AskRoute, pipelines.route, names=_routed_target),
        post(_NAME + "side-plan", side_outputs.PlanReader, pipelines.plan_reader, body_bytes_max=MERGE_BYTES_MAX),
        post(_NAME + "side-register", side_outputs.Register, pipelines.register),
        post(_NAME + "side-missing", side_outputs.AskMissing, pipelines.missing_parts),
        post(_NAME + "mirrored", api.Mirror, pipelines.record_mirrored),
        get(_NAME + "mirrored", pipelines.mirrored, query=[_GENERATION]),
        post(_NAME + "abort", api.Abort, pipelines.abort),
        post(_NAME + "complete", api.Complete, pipelines.complete),
        post(_NAME + "describe", api.Describe, pipelines.describe),
        post(_NAME + "heartbeat", api.Heartbeat, pipelines.heartbeat),
        post(_NAME + "windows", api.ReportWindows, pipelines.report_windows),
    )


def _of_readers(readers: "_Readers") -> list[ApiRoute]:
    return [
        *about(
            Subject.READERS,
            post("/sources/resolve", api.Resolve, readers.resolve, role=Role.READ, names=_read_sources),
            post("/sources/cut", api.CutSources, readers.cut, role=Role.READ, names=_read_sources),
            post("/splits", api.AskSplits, readers.splits, role=Role.READ, names=_read_ranges),
            post("/places", AskPlaces, readers.places, role=Role.READ, names=_placed_segments),
        ),
        *about(
            Subject.SOURCES,
            get("/sources/{name}/streams", readers.listed_streams),
            post("/sources/{name}/streams", api.NameStreams, readers.streams, role=Role.READ),
        ),
    ]


def _of_sinks(sinks: "_Sinks") -> list[ApiRoute]:
    return about(
        Subject.SINKS,
        post(_NAME + "bind", Bind, sinks.bind, names=_used_by_sinks, is_audited=True),
        post(_NAME + "unbind", Unbind, sinks.unbind, is_audited=True),
        post(_NAME + "retry", Empty, sinks.retry, is_audited=True),
        post(_NAME + "park", Park, sinks.park, is_audited=True),
        post(_NAME + "rewind", Rewind, sinks.rewind, records_who=True, is_audited=True),
        get(_NAME + "epochs", sinks.epochs),
        get(_NAME + "sinks/{sink}/ddl", sinks.ddl),
    )


def _of_dead_letters(dead_letters: "_DeadLetters") -> list[ApiRoute]:
    port = Query("port", "only those of this port, `err` or `late`")
    return about(
        Subject.DEAD_LETTERS,
        get(_NAME + "dead-letters", dead_letters.listed, query=[port, *_LISTED]),
        get(_NAME + "dead-letters/{port}/{at}", dead_letters.show),
        post(_NAME + "replay", Replay, dead_letters.replay, is_audited=True),
        post(_NAME + "replay-chosen", ReplayChosen, dead_letters.replay_chosen, is_audited=True),
        get("/sources/{name}/dead-letters", dead_letters.listed_of_source, query=_LISTED),
        get("/sources/{name}/dead-letters/{at}", dead_letters.show_of_source),
        get(_NAME + "buried", dead_letters.buried),
        post(_NAME + "bury", Bury, dead_letters.bury, names=_buried_segments, is_audited=True),
    )


# The names in a body on which its sender needs the route's role.


def announced(body: api.Announce) -> dict[str, str]:
    """A program that sends to a source waits for the pipelines that are announced for it."""
    sources = _delayed(source for sources in body.pipelines.values() for source in sources)
    return sources | {name: f"pipeline {name!r}" for name in body.pipelines}


def _started_inputs(body: api.Start) -> dict[str, str]:
    return _delayed(source for one in body.inputs.values() for source in one.sources)


def _attached(body: api.Attach) -> dict[str, str]:
    return _delayed(body.sources)


def _delayed(sources: Iterable[str]) -> dict[str, str]:
    """A pipeline delays the acknowledgements and the retention of what it reads, so the role read is not enough."""
    why = "its acknowledgements would wait for the pipeline"
    return {Source.parse(source).access_name: f"source {source!r} ({why})" for source in sources}


def _buried_segments(body: Bury) -> dict[str, str]:
    """As for a start: the pipeline decides what becomes of their events."""
    return {access_name(one.segment): f"segment {one.segment!r}" for one in body.at}


def _merged_targets(body: api.Merge) -> dict[str, str]:
    targets = {kind_of(one.target).source for one in body.staged if one.target}
    return {Source.parse(target).access_name: f"target {target!r}" for target in targets}


def _routed_target(body: api.AskRoute) -> dict[str, str]:
    return {Source.parse(body.target).access_name: f"target {body.target!r}"}


def _read_sources(body: api.Resolve | api.CutSources) -> dict[str, str]:
    return {Source.parse(source).access_name: f"source {source!r}" for source in body.sources}


def _read_ranges(body: api.AskSplits) -> dict[str, str]:
    return {access_name(one.segment): f"segment {one.segment!r}" for one in body.ranges}


def _placed_segments(body: AskPlaces) -> dict[str, str]:
    return {access_name(segment): f"segment {segment!r}" for segment in body.segments}


def _used_by_sinks(body: Bind) -> dict[str, str]:
    """The segments that the worker itself appends to for them, whatever their names are, and the application's
    connectors. Only principals without a prefix may use the worker's environment and files.
    """
    names = {}
    for spec in body.sinks.values():
        if "${" in spec.url:
            names[WHOLE_WORKER] = "the worker's environment variables and files"
        elif not is_url(spec.url):
            names[spec.url] = f"connector {spec.url!r}"
        else:
            with suppress(RequestError):  # reported with all other mistakes, when they are bound
                names |= _used_by(parse_sink(spec.url))
    return names


_OWN_MACHINE = frozenset({"callback", "file", "postgres", "sqlite", "stdio"})
"""Types of sinks that use what belongs to the worker's owners: files, code, output, and the credentials that the client
library of PostgreSQL finds by itself.
"""


def _used_by(sink: ParsedSink) -> dict[str, str]:
    options = sink.options
    if isinstance(options, SegmentOptions) and options.worker is None:
        return {access_name(options.segment): f"segment {options.segment!r}"}
    if sink.kind in _OWN_MACHINE or [*paths_in(options)]:
        return {WHOLE_WORKER: "the worker's files and credentials"}
    return {}


class _Pipelines:
    def __init__(self, worker: Routed) -> None:
        self._worker = worker

    async def listed(self, request: Request) -> api.PipelineList:
        """List the pipelines, with their state, epochs and watermarks."""
        pipelines = self._worker.coordinator().pipelines()
        return api.PipelineList(visible_pipelines(pipelines, principal_of(request)))

    async def start(self, name: str, body: api.Start) -> api.Started:
        """Start a new generation of a pipeline. Older generations are refused from then on."""
        return await self._worker.coordinator().lifecycle.start(
            name,
            {key: one.spec() for key, one in body.inputs.items()},
            body.outputs,
            body.limits or api.Limits(),
            fresh=body.fresh,
            request=body.request,
        )

    async def announce(self, _: str, body: api.Announce) -> None:
        """Announce pipelines that will start, so that programs that send to their sources wait for them."""
        self._worker.coordinator().announce(body.pipelines)

    async def initial(self, name: str, body: api.Initial) -> InputOffset:
        """Return where an input of a pipeline begins."""
        return await self._worker.coordinator().lifecycle.initial(name, body.generation, body.input)

    async def attach(self, name: str, body: api.Attach) -> None:
        """Attach another load of an input, and the sources that it reads."""
        await self._worker.coordinator().cuts.attach(
            name,
            body.generation,
            body.input,
            body.load,
            body.sources,
            upto=None if body.upto is None else in_order(body.upto),
        )

    async def cut(self, name: str, body: api.AskCut) -> api.Cut:
        """Plan the next epoch, or return it if it is planned: the same start always gets the same end."""
        return await self._worker.coordinator().cuts.cut(
            name,
            body.generation,
            body.input,
            body.start,
            load=body.load,
            upto=None if body.upto is None else in_order(body.upto),
            limits=body.limits,
            wait_seconds=body.wait_ms / 1000,
            state=body.state,
        )

    async def reading(self, name: str, body: api.Reading) -> api.Rereading:
        """Return where an epoch that is run again starts, and what no task may read."""
        cuts = self._worker.coordinator().cuts
        return await cuts.reading(name, body.generation, body.input, body.start, body.end)

    async def running(self, request: Request) -> api.Running:
        """Show which epochs Spark's current batch contains, with the watermarks at both ends."""
        asked = request.query_params.get("generation")
        generation = None if asked is None else number_of(asked, "generation")
        return self._worker.coordinator().cuts.running(request.path_params["name"], generation)

    async def batch(self, request: Request) -> api.BatchRanges:
        """Show what the first epoch reads that is planned and not committed, or the last one."""
        batch = self._worker.coordinator().cuts.batch(request.path_params["name"])
        return visible_batch(batch, principal_of(request))

    async def stored_input(self, request: Request) -> api.StoredInput:
        """Show how much of a pipeline's input since its first epoch is still stored."""
        return self._worker.coordinator().lifecycle.stored_input(request.path_params["name"])

    async def merge(self, name: str, body: api.Merge) -> side_outputs.Merged:
        """Commit an epoch: its staged output becomes visible at all ports, or nothing does. Idempotent."""
        merger = self._worker.coordinator().merger
        return await merger.merge(name, body.generation, body.batch, body.staged, body.manifest)

    async def route(self, name: str, body: api.AskRoute) -> api.SegmentRoute:
        """Return the segments of a stream of Pravega's clients, among which tasks route their rows."""
        merger = self._worker.coordinator().merger
        return api.SegmentRoute(merger.route(name, body.generation, body.epoch, body.target))

    async def record_mirrored(self, name: str, body: api.Mirror) -> None:
        """Record that a checkpoint was mirrored into the bucket."""
        await self._worker.coordinator().mirrored.record(name, body.generation, body.before, body.manifest)

    async def mirrored(self, request: Request) -> api.MirroredCheckpoint:
        """Show what the bucket has of a pipeline's checkpoint."""
        asked = request.query_params.get("generation")
        generation = None if asked is None else number_of(asked, "generation")
        return await self._worker.coordinator().mirrored.known(request.path_params["name"], generation)

    async def plan_reader(self, name: str, body: side_outputs.PlanReader) -> side_outputs.ReaderPlan:
        """Store how a reader divides an epoch, unless that is stored; return what is stored."""
        return await self._worker.coordinator().sides.plan(name, body.generation, body.epoch, body.plan)

    async def register(self, name: str, body: side_outputs.Register) -> side_outputs.Registration:
        """Register the side outputs that a task has staged, unless an attempt has; return what is stored."""
        sides = self._worker.coordinator().sides
        return await sides.register(name, body.generation, body.epoch, body.registration, body.prefix)

    async def missing_parts(self, name: str, body: side_outputs.AskMissing) -> side_outputs.MissingParts:
        """List the parts of epochs that no task has finished."""
        found = await self._worker.coordinator().sides.missing(name, body.generation, body.epoch)
        return side_outputs.MissingParts(found)

    async def abort(self, name: str, body: api.Abort) -> None:
        """Delete what was staged for an epoch."""
        await self._worker.coordinator().merger.abort(name, body.generation, body.batch)

    async def complete(self, name: str, body: api.Complete) -> None:
        """Report that Spark's own sinks have an epoch."""
        await self._worker.coordinator().lifecycle.complete(name, body.generation, body.epoch)

    async def describe(self, name: str, body: api.Describe) -> None:
        """Store the fields of each port, for sinks with columns."""
        await self._worker.coordinator().lifecycle.describe(name, body.generation, body.schemas)

    async def heartbeat(self, name: str, body: api.Heartbeat) -> None:
        """Report that the driver lives, and what it knows about its query."""
        lifecycle = self._worker.coordinator().lifecycle
        lifecycle.heartbeat(
            name,
            body.generation,
            stopped=body.stopped,
            failed=body.failed,
            failure=body.failure,
            query=body.query,
        )

    async def reset(self, name: str, body: api.Reset) -> None:
        """Forget a pipeline's progress: its next start begins a new incarnation."""
        await self._worker.coordinator().lifecycle.reset(name, accept_partial=body.accept_partial)

    def forked_names(self, body: api.Fork) -> dict[str, str]:
        """As for a start: the acknowledgements of what it reads will wait for it."""
        pipelines = self._worker.coordinator().deliveries.state.pipelines
        sources = pipelines[body.origin].sources if body.origin in pipelines else ()
        return _delayed(sources) | {body.origin: f"pipeline {body.origin!r}"}

    async def fork(self, name: str, body: api.Fork) -> api.Forked:
        """Make a new pipeline that continues where another one is."""
        return await self._worker.coordinator().lifecycle.fork(name, body.origin)

    async def drop(self, name: str, body: api.Drop) -> None:
        """Remove a pipeline: it no longer delays acknowledgements and retention."""
        await self._worker.drop(name, outputs=body.outputs)

    async def report_windows(self, name: str, body: api.ReportWindows) -> None:
        """Report the open windows of an operator's buckets after an epoch."""
        windows = self._worker.coordinator().windows
        windows.report(name, body.generation, body.operator, body.epoch, body.buckets)


class _Readers:
    def __init__(self, worker: Routed) -> None:
        self._worker = worker

    async def resolve(self, _: str, body: api.Resolve) -> api.SegmentOffsets:
        """Return the offsets of sources at a starting position."""
        readers = self._worker.coordinator().readers
        return api.SegmentOffsets(await readers.resolve(body.sources, starting_of(body.position)))

    async def cut(self, _: str, body: api.CutSources) -> api.SegmentOffsets:
        """Return how far a reader without a pipeline may read. Waits until there is something new, or `wait_ms`."""
        segments = await self._worker.coordinator().readers.cut(
            body.sources,
            in_order(body.start),
            upto=None if body.upto is None else in_order(body.upto),
            limits=body.limits,
            wait_seconds=body.wait_ms / 1000,
        )
        return api.SegmentOffsets(segments)

    async def splits(self, _: str, body: api.AskSplits) -> api.Splits:
        """Divide ranges of segments into parts of about equal size, for tasks."""
        readers = self._worker.coordinator().readers
        return await readers.splits(body.ranges, body.parts, body.bytes_min, skip_lost=body.skip_lost)

    async def places(self, _: str, body: AskPlaces) -> Places:
        """Return the workers that serve these segments."""
        return Places(await self._worker.coordinator().readers.places(body.segments))

    async def listed_streams(self, request: Request) -> SourceStreams:
        """List the slowest streams of a source, with their positions and event times."""
        return self._worker.source_streams(request.path_params["name"], STREAMS_SHOWN)

    async def streams(self, name: str, body: api.NameStreams) -> api.StreamNames:
        """Return the names of streams by their ids. A stream that is not here may be in another partition of the
        source.
        """
        names = self._worker.stream_names(name, body.ids)
        for other in await self._worker.other_partitions(name) if not all(names) else ():
            with suppress(Unavailable):
                found = (await other.ask("streams", body, api.StreamNames)).names
                names = [own or there for own, there in zip(names, found, strict=True)]
        return api.StreamNames(names)


class _Sinks:
    def __init__(self, worker: Routed) -> None:
        self._worker = worker

    async def bind(self, name: str, body: Bind) -> None:
        """Bind sinks to a pipeline's ports. All of them are validated and opened before any is bound."""
        _check_sinks(body, self._worker.permissions)
        await self._worker.bind(name, body.sinks)

    async def unbind(self, name: str, body: Unbind) -> None:
        """Unbind a sink: it gets nothing more."""
        await self._worker.delivery().unbind(name, body.sink)

    async def retry(self, name: str, _: Empty) -> None:
        """Deliver waiting epochs now, without waiting for the next attempt."""
        self._worker.delivery().retry(name)

    async def park(self, name: str, body: Park) -> None:
        """Park an epoch: a sink, or all sinks of the pipeline, never get it."""
        await self._worker.delivery().park(name, body.epoch, body.sink)

    async def rewind(self, name: str, body: Rewind, who: str) -> Rewound:
        """Deliver again to a sink what it lacks, from the data that it actually has."""
        consent = Consent(body.accept_gap, body.accept_duplicates, who, time.time_ns() // 1000)
        return await self._worker.delivery().rewind(name, body.sink, consent)

    async def epochs(self, request: Request) -> EpochList:
        """List the epochs that some sink lacks, and what they wait for."""
        return EpochList(self._worker.delivery().epochs(request.path_params["name"]))

    async def ddl(self, request: Request) -> TableDdl:
        """Show the statements that make the table of a SQL sink fit its rows."""
        return await self._worker.delivery().ddl(request.path_params["name"], request.path_params["sink"])


def _check_sinks(body: Bind, permissions: Permissions) -> None:
    """Raises RequestError that lists what is wrong with any of them: then none is bound."""
    mistakes = []
    for name, spec in body.sinks.items():
        try:
            _check_sink(name, spec, permissions)
        except RequestError as error:
            mistakes.append(error)
        if len(mistakes) == _MISTAKES_MAX:
            break
    if mistakes:
        hints = dict.fromkeys(error.hint for error in mistakes if error.hint)
        raise RequestError("\n".join(map(str, mistakes)), " ".join(hints))


def _check_sink(name: str, spec: SinkSpec, permissions: Permissions) -> None:
    check_pipeline_name(name, "sink")
    check_pipeline_name(spec.port, "port")
    if is_url(spec.url):  # the name of a connector, which delivery looks up
        parse_sink(spec.url, permissions).check_installed()


def _which(query: Mapping[str, str]) -> dict[str, Any]:
    """Of dead letters, to list. Raises RequestError."""
    before = number_of(query["before"], "offset") if "before" in query else None
    limit, oldest = number_of(query.get("limit", "0"), "limit"), query.get("oldest") == "true"
    return {"limit": limit, "oldest": oldest, "before": before}


class _DeadLetters:
    def __init__(self, worker: Routed) -> None:
        self._worker = worker

    async def listed(self, request: Request) -> DeadLetterList:
        """List a pipeline's dead letters and late events, without their values."""
        query = request.query_params
        ports = [query["port"]] if "port" in query else list(DEAD_LETTER_PORTS)
        dead_letters = self._worker.coordinator().dead_letters
        return await dead_letters.listed(request.path_params["name"], ports, **_which(query))

    async def show(self, request: Request) -> DeadLetter:
        """Show a dead letter, with its value in base64."""
        path = request.path_params
        return await self._worker.coordinator().dead_letters.show(
            path["name"], path["port"], number_of(path["at"], "place")
        )

    async def listed_of_source(self, request: Request) -> DeadLetterList:
        """List the dead letters of a source: input that could not become events."""
        dead_letters = self._worker.coordinator().dead_letters
        return await dead_letters.listed_of_source(request.path_params["name"], **_which(request.query_params))

    async def show_of_source(self, request: Request) -> DeadLetter:
        """Show a dead letter of a source, with its value in base64."""
        path = request.path_params
        return await self._worker.coordinator().dead_letters.show_of_source(
            path["name"], number_of(path["at"], "place")
        )

    async def replay(self, name: str, body: Replay) -> Replayed:
        """Replay the dead letters of a port between two offsets."""
        return await self._worker.coordinator().dead_letters.replay(name, body.port, body.after, body.upto, body.input)

    async def replay_chosen(self, name: str, body: ReplayChosen) -> Replayed:
        """Replay single dead letters of a port."""
        return await self._worker.coordinator().dead_letters.replay_chosen(name, body.port, body.at, body.input)

    async def bury(self, name: str, body: Bury) -> BuryDone:
        """Bury events that make an epoch fail: no task reads them, and they become dead letters."""
        return await self._worker.coordinator().burials.bury(name, body.at, body.reason, undo=body.undo)

    async def buried(self, request: Request) -> BuriedList:
        """List the buried events that Spark may still read."""
        found, principal = self._worker.coordinator().burials.listed(request.path_params["name"]), principal_of(request)
        return BuriedList([one for one in found if principal.may(Role.READ, access_name(one.segment))])
