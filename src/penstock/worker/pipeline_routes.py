"""The routes of pipelines: their epochs, readers, sinks, windows and dead letters."""

import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from starlette.requests import Request
from starlette.routing import Route

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
from penstock.protocol.api.dead_letters import BuriedList, Bury, Replay
from penstock.protocol.api.delivery import Bind, EpochList, Park, Rewind, SinkSpec, Unbind
from penstock.protocol.api.pipelines import in_order, starting_of
from penstock.protocol.api.shards import AskPlaces, Places
from penstock.protocol.stored.dead_letters import DEAD_LETTER_PORTS
from penstock.protocol.stored.names import Source, access_name, check_pipeline_name, kind_of
from penstock.worker.routes import MERGE_BYTES_MAX, Routed, get, number_of, post, principal_of
from penstock.worker.visibility import visible_batch, visible_pipelines

_MISTAKES_MAX = 20
"""Mistakes that a refusal lists: finding a suggestion for each takes a while."""

STREAMS_SHOWN = 100
"""Of a source: people look for the slowest ones."""


def routes(worker: Routed) -> list[Route]:
    pipelines, readers, sinks, dead_letters = _Pipelines(worker), _Readers(worker), _Sinks(worker), _DeadLetters(worker)
    name = "/pipelines/{name}/"
    return [
        get("/pipelines", pipelines.listed, is_filtered=True),
        get(name + "running", pipelines.running),
        get(name + "batch", pipelines.batch),
        get(name + "input", pipelines.stored_input),
        post("/starting", api.Announce, pipelines.announce, names=announced),
        post(name + "start", api.Start, pipelines.start, names=_started_inputs),
        post(name + "attach", api.Attach, pipelines.attach, names=_attached),
        post(name + "initial", api.Initial, pipelines.initial),
        post(name + "cut", api.AskCut, pipelines.cut),
        post(name + "reading", api.Reading, pipelines.reading),
        post(name + "merge", api.Merge, pipelines.merge, names=_merged_targets, body_bytes_max=MERGE_BYTES_MAX),
        post(name + "route", api.AskRoute, pipelines.route, names=_routed_target),
        post(name + "side-plan", side_outputs.PlanReader, pipelines.plan_reader, body_bytes_max=MERGE_BYTES_MAX),
        post(name + "side-register", side_outputs.Register, pipelines.register),
        post(name + "side-missing", side_outputs.AskMissing, pipelines.missing_parts),
        post(name + "mirrored", api.Mirror, pipelines.record_mirrored),
        get(name + "mirrored", pipelines.mirrored),
        post(name + "abort", api.Abort, pipelines.abort),
        post(name + "complete", api.Complete, pipelines.complete),
        post(name + "describe", api.Describe, pipelines.describe),
        post(name + "heartbeat", api.Heartbeat, pipelines.heartbeat),
        post(name + "reset", api.Reset, pipelines.reset, is_audited=True),
        post(name + "fork", api.Fork, pipelines.fork, names=pipelines.forked_names, is_audited=True),
        post(name + "drop", api.Drop, pipelines.drop, is_audited=True),
        post(name + "windows", api.ReportWindows, pipelines.report_windows),
        post("/sources/resolve", api.Resolve, readers.resolve, role=Role.READ, names=_read_sources),
        post("/sources/cut", api.CutSources, readers.cut, role=Role.READ, names=_read_sources),
        get("/sources/{name}/streams", readers.listed_streams),
        post("/sources/{name}/streams", api.NameStreams, readers.streams, role=Role.READ),
        post("/splits", api.AskSplits, readers.splits, role=Role.READ, names=_read_ranges),
        post("/places", AskPlaces, readers.places, role=Role.READ, names=_placed_segments),
        post(name + "bind", Bind, sinks.bind, names=_used_by_sinks, is_audited=True),
        post(name + "unbind", Unbind, sinks.unbind, is_audited=True),
        post(name + "retry", Empty, sinks.retry, is_audited=True),
        post(name + "park", Park, sinks.park, is_audited=True),
        post(name + "rewind", Rewind, sinks.rewind, records_who=True, is_audited=True),
        get(name + "epochs", sinks.epochs),
        get(name + "sinks/{sink}/ddl", sinks.ddl),
        get(name + "dead-letters", dead_letters.listed),
        get(name + "dead-letters/{port}/{at}", dead_letters.show),
        post(name + "replay", Replay, dead_letters.replay, is_audited=True),
        get("/sources/{name}/dead-letters", dead_letters.listed_of_source),
        get("/sources/{name}/dead-letters/{at}", dead_letters.show_of_source),
        get(name + "buried", dead_letters.buried),
        post(name + "bury", Bury, dead_letters.bury, names=_buried_segments, is_audited=True),
    ]


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

    async def listed(self, request: Request) -> Any:
        pipelines = self._worker.coordinator().pipelines()
        return api.PipelineList(visible_pipelines(pipelines, principal_of(request)))

    async def start(self, name: str, body: api.Start) -> Any:
        return await self._worker.coordinator().lifecycle.start(
            name,
            {key: one.spec() for key, one in body.inputs.items()},
            body.outputs,
            body.limits or api.Limits(),
            fresh=body.fresh,
            request=body.request,
        )

    async def announce(self, _: str, body: api.Announce) -> None:
        self._worker.coordinator().announce(body.pipelines)

    async def initial(self, name: str, body: api.Initial) -> Any:
        return await self._worker.coordinator().lifecycle.initial(name, body.generation, body.input)

    async def attach(self, name: str, body: api.Attach) -> None:
        await self._worker.coordinator().cuts.attach(
            name,
            body.generation,
            body.input,
            body.load,
            body.sources,
            upto=None if body.upto is None else in_order(body.upto),
        )

    async def cut(self, name: str, body: api.AskCut) -> Any:
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

    async def reading(self, name: str, body: api.Reading) -> Any:
        cuts = self._worker.coordinator().cuts
        return await cuts.reading(name, body.generation, body.input, body.start, body.end)

    async def running(self, request: Request) -> Any:
        asked = request.query_params.get("generation")
        generation = None if asked is None else number_of(asked, "generation")
        return self._worker.coordinator().cuts.running(request.path_params["name"], generation)

    async def batch(self, request: Request) -> Any:
        batch = self._worker.coordinator().cuts.batch(request.path_params["name"])
        return visible_batch(batch, principal_of(request))

    async def stored_input(self, request: Request) -> Any:
        return self._worker.coordinator().lifecycle.stored_input(request.path_params["name"])

    async def merge(self, name: str, body: api.Merge) -> Any:
        merger = self._worker.coordinator().merger
        return await merger.merge(name, body.generation, body.batch, body.staged, body.manifest)

    async def route(self, name: str, body: api.AskRoute) -> Any:
        merger = self._worker.coordinator().merger
        return api.SegmentRoute(merger.route(name, body.generation, body.epoch, body.target))

    async def record_mirrored(self, name: str, body: api.Mirror) -> None:
        await self._worker.coordinator().mirrored.record(name, body.generation, body.before, body.manifest)

    async def mirrored(self, request: Request) -> Any:
        asked = request.query_params.get("generation")
        generation = None if asked is None else number_of(asked, "generation")
        return await self._worker.coordinator().mirrored.known(request.path_params["name"], generation)

    async def plan_reader(self, name: str, body: side_outputs.PlanReader) -> Any:
        return await self._worker.coordinator().sides.plan(name, body.generation, body.epoch, body.plan)

    async def register(self, name: str, body: side_outputs.Register) -> Any:
        sides = self._worker.coordinator().sides
        return await sides.register(name, body.generation, body.epoch, body.registration, body.prefix)

    async def missing_parts(self, name: str, body: side_outputs.AskMissing) -> Any:
        found = await self._worker.coordinator().sides.missing(name, body.generation, body.epoch)
        return side_outputs.MissingParts(found)

    async def abort(self, name: str, body: api.Abort) -> None:
        await self._worker.coordinator().merger.abort(name, body.generation, body.batch)

    async def complete(self, name: str, body: api.Complete) -> None:
        await self._worker.coordinator().lifecycle.complete(name, body.generation, body.epoch)

    async def describe(self, name: str, body: api.Describe) -> None:
        await self._worker.coordinator().lifecycle.describe(name, body.generation, body.schemas)

    async def heartbeat(self, name: str, body: api.Heartbeat) -> None:
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
        await self._worker.coordinator().lifecycle.reset(name, accept_partial=body.accept_partial)

    def forked_names(self, body: api.Fork) -> dict[str, str]:
        """As for a start: the acknowledgements of what it reads will wait for it."""
        pipelines = self._worker.coordinator().deliveries.state.pipelines
        sources = pipelines[body.origin].sources if body.origin in pipelines else ()
        return _delayed(sources) | {body.origin: f"pipeline {body.origin!r}"}

    async def fork(self, name: str, body: api.Fork) -> Any:
        return await self._worker.coordinator().lifecycle.fork(name, body.origin)

    async def drop(self, name: str, body: api.Drop) -> None:
        await self._worker.drop(name, outputs=body.outputs)

    async def report_windows(self, name: str, body: api.ReportWindows) -> None:
        windows = self._worker.coordinator().windows
        windows.report(name, body.generation, body.operator, body.epoch, body.buckets)


class _Readers:
    def __init__(self, worker: Routed) -> None:
        self._worker = worker

    async def resolve(self, _: str, body: api.Resolve) -> Any:
        readers = self._worker.coordinator().readers
        return api.SegmentOffsets(await readers.resolve(body.sources, starting_of(body.position)))

    async def cut(self, _: str, body: api.CutSources) -> Any:
        segments = await self._worker.coordinator().readers.cut(
            body.sources,
            in_order(body.start),
            upto=None if body.upto is None else in_order(body.upto),
            limits=body.limits,
            wait_seconds=body.wait_ms / 1000,
        )
        return api.SegmentOffsets(segments)

    async def splits(self, _: str, body: api.AskSplits) -> Any:
        readers = self._worker.coordinator().readers
        return await readers.splits(body.ranges, body.parts, body.bytes_min, skip_lost=body.skip_lost)

    async def places(self, _: str, body: AskPlaces) -> Any:
        return Places(await self._worker.coordinator().readers.places(body.segments))

    async def listed_streams(self, request: Request) -> Any:
        return self._worker.source_streams(request.path_params["name"], STREAMS_SHOWN)

    async def streams(self, name: str, body: api.NameStreams) -> Any:
        """A stream that is not here may be in another partition of the source."""
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
        _check_sinks(body, self._worker.permissions)
        await self._worker.bind(name, body.sinks)

    async def unbind(self, name: str, body: Unbind) -> None:
        await self._worker.delivery().unbind(name, body.sink)

    async def retry(self, name: str, _: Empty) -> None:
        self._worker.delivery().retry(name)

    async def park(self, name: str, body: Park) -> None:
        await self._worker.delivery().park(name, body.epoch, body.sink)

    async def rewind(self, name: str, body: Rewind, who: str) -> Any:
        consent = Consent(body.accept_gap, body.accept_duplicates, who, time.time_ns() // 1000)
        return await self._worker.delivery().rewind(name, body.sink, consent)

    async def epochs(self, request: Request) -> Any:
        return EpochList(self._worker.delivery().epochs(request.path_params["name"]))

    async def ddl(self, request: Request) -> Any:
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


class _DeadLetters:
    def __init__(self, worker: Routed) -> None:
        self._worker = worker

    async def listed(self, request: Request) -> Any:
        query = request.query_params
        ports = [query["port"]] if "port" in query else list(DEAD_LETTER_PORTS)
        limit, oldest = number_of(query.get("limit", "0"), "limit"), query.get("oldest") == "true"
        dead_letters = self._worker.coordinator().dead_letters
        return await dead_letters.listed(request.path_params["name"], ports, limit, oldest=oldest)

    async def show(self, request: Request) -> Any:
        path = request.path_params
        return await self._worker.coordinator().dead_letters.show(
            path["name"], path["port"], number_of(path["at"], "place")
        )

    async def listed_of_source(self, request: Request) -> Any:
        query = request.query_params
        limit, oldest = number_of(query.get("limit", "0"), "limit"), query.get("oldest") == "true"
        dead_letters = self._worker.coordinator().dead_letters
        return await dead_letters.listed_of_source(request.path_params["name"], limit, oldest=oldest)

    async def show_of_source(self, request: Request) -> Any:
        path = request.path_params
        return await self._worker.coordinator().dead_letters.show_of_source(
            path["name"], number_of(path["at"], "place")
        )

    async def replay(self, name: str, body: Replay) -> Any:
        return await self._worker.coordinator().dead_letters.replay(name, body.port, body.after, body.upto, body.input)

    async def bury(self, name: str, body: Bury) -> Any:
        return await self._worker.coordinator().burials.bury(name, body.at, body.reason, undo=body.undo)

    async def buried(self, request: Request) -> Any:
        found, principal = self._worker.coordinator().burials.listed(request.path_params["name"]), principal_of(request)
        return BuriedList([one for one in found if principal.may(Role.READ, access_name(one.segment))])
