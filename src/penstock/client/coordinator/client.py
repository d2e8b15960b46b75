"""The blocking client of the coordinator: a method for each of its routes."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeVar
from urllib.parse import quote
from uuid import uuid4

from penstock.client.coordinator.connection import WorkerClient
from penstock.core.errors import RequestError
from penstock.protocol.api import pipelines as api
from penstock.protocol.api.codec import Done, Empty, Request, decode_reply, encode
from penstock.protocol.api.dead_letters import (
    BuriedEvent,
    BuriedList,
    Bury,
    BuryDone,
    DeadLetter,
    DeadLetterList,
    EventPlace,
    Replay,
    ReplayChosen,
    Replayed,
)
from penstock.protocol.api.delivery import (
    Bind,
    EpochList,
    EpochStatus,
    Park,
    Rewind,
    Rewound,
    SinkSpec,
    SinkStatus,
    TableDdl,
    Unbind,
)
from penstock.protocol.api.deployment import Answer, Apply, Deployed, Deployment, SelectStreams, SetLogLevel
from penstock.protocol.api.pipelines import (
    BatchRanges,
    Cut,
    InputOffset,
    InputSpec,
    Limits,
    LoadState,
    PipelineStatus,
    Range,
    Rereading,
    Running,
    Segments,
    Splits,
    Staged,
    Started,
    Starting,
    StoredInput,
)
from penstock.protocol.api.shards import AskPlaces, Places
from penstock.protocol.api.side_outputs import (
    AskMissing,
    Merged,
    MissingPart,
    MissingParts,
    PlanReader,
    ReaderPlan,
    Register,
    Registration,
)
from penstock.protocol.stored.names import check_pipeline_name

NO_LIMITS = Limits()

T = TypeVar("T")

DATABASE_SECONDS_MAX = 30.0
"""Time for a worker to inspect a database."""


class CoordinatorClient(WorkerClient):
    """Every call may be repeated, and is, for `retry_seconds` while the worker is away; then Unavailable is raised.

    What a reply reports is durable. Refusals are raised at once, as the errors of `penstock.core.errors`. It connects
    when it is first used. Not thread-safe: give each thread its own.
    """

    def start(
        self,
        name: str,
        inputs: Mapping[str, InputSpec],
        outputs: Sequence[str] | None = None,
        limits: Limits = NO_LIMITS,
        *,
        fresh: bool | None = None,
        request: str | None = None,
    ) -> Started:
        """Begin a new generation; the older ones are fenced. The same `request` text gets the same generation again,
        and its inputs are added; None is a new one. `outputs`: [] for Spark's own sinks, None if not known yet.
        `fresh`: True if there is no checkpoint, which is refused if the ledger has epochs.
        """
        spec = api.Start(
            inputs={
                key: api.StartInput(sources=one.sources, starting=api.place_of(one.starting))
                for key, one in inputs.items()
            },
            outputs=outputs,
            limits=limits,
            fresh=fresh,
            request=request or str(uuid4()),
        )
        return self._pipeline(name, "start", spec, Started)

    def announce(self, pipelines: Mapping[str, Sequence[str]]) -> None:
        """Announce that Spark is starting for these pipelines, which will read these sources. The status has it until
        they start; repeat it every few seconds.
        """
        self._post("/starting", api.Announce(pipelines=pipelines), Done)

    def describe(self, name: str, generation: int, schemas: Mapping[str, Sequence[tuple[str, str]]]) -> None:
        """Declare the fields of each port's JSON rows: their names and Spark types. SQL sinks create tables from them.
        A port whose rows have no columns is left out.
        """
        self._pipeline(name, "describe", api.Describe(generation=generation, schemas=schemas), Done)

    def initial(self, name: str, generation: int, input: str) -> InputOffset:  # noqa: A002  the contract's word
        """The offset of epoch 0. Refused if the ledger has epochs: Spark asks for it only without a checkpoint."""
        return self._pipeline(name, "initial", api.Initial(generation=generation, input=input), InputOffset)

    def attach(
        self,
        name: str,
        generation: int,
        input: str,  # noqa: A002
        load: str,
        sources: Sequence[str],
        *,
        upto: Segments | None = None,
    ) -> None:
        """Register a load of a new query, which reads up to `upto`: all loads of the query register before the first
        one asks for a cut. An earlier query of the same generation is over. `load` is unique to this load.
        """
        spec = api.Attach(generation=generation, input=input, load=load, sources=sources, upto=upto)
        self._pipeline(name, "attach", spec, Done)

    def cut(
        self,
        name: str,
        generation: int,
        input: str,  # noqa: A002
        start: InputOffset,
        *,
        load: str = "",
        upto: Segments | None = None,
        limits: Limits | None = None,
        wait_ms: int = 0,
        state: LoadState | None = None,
    ) -> Cut:
        """The end of the epoch that begins at `start`: the same one however often it is requested. The request proves
        that everything before `start` is committed. Waits up to `wait_ms` for something new. `load`: as it was
        attached. `state`: of a load whose rows pass the watermark to a stateful operator.
        """
        asked = api.AskCut(
            generation=generation,
            input=input,
            load=load,
            start=start,
            upto=upto,
            limits=limits,
            wait_ms=wait_ms,
            state=state,
        )
        return self._pipeline(name, "cut", asked, Cut, wait_ms / 1000)

    def reading(
        self,
        name: str,
        generation: int,
        input: str,  # noqa: A002
        start: InputOffset,
        end: InputOffset,
    ) -> Rereading:
        """Report that Spark reads this range, unless it has just asked for the cut. Returns where it really begins,
        also in segments that `start` does not name, such as those of a source that was linked since, and what its
        tasks may not read.
        """
        request = api.Reading(generation=generation, input=input, start=start, end=end)
        return self._pipeline(name, "reading", request, Rereading)

    def running(self, name: str, generation: int | None = None) -> Running:
        """The epochs of Spark's current batch and the watermarks at both ends, for the tasks that work on it."""
        asked = "" if generation is None else f"?generation={generation}"
        return self._get(f"/pipelines/{check_pipeline_name(name)}/running{asked}", Running)

    def report_windows(
        self,
        name: str,
        operator: str,
        epoch: int,
        buckets: Sequence[api.BucketNumbers],
        *,
        generation: int | None = None,
    ) -> None:
        """Report what the buckets of a window operator hold after an epoch, for `/metrics`."""
        report = api.ReportWindows(generation=generation, operator=operator, epoch=epoch, buckets=buckets)
        self._pipeline(name, "windows", report, Done)

    def plan_reader(self, name: str, epoch: int, plan: ReaderPlan, *, generation: int | None = None) -> ReaderPlan:
        """Record how a reader divides an epoch among tasks. Returns how it was first divided."""
        return self._pipeline(name, "side-plan", PlanReader(generation=generation, epoch=epoch, plan=plan), ReaderPlan)

    def register(
        self, name: str, epoch: int, registration: Registration, *, generation: int | None = None, prefix: str = ""
    ) -> Registration:
        """Record which side outputs a task has staged. Returns the first registration of its key. `prefix`: that of a
        missing part.
        """
        request = Register(generation=generation, epoch=epoch, registration=registration, prefix=prefix)
        return self._pipeline(name, "side-register", request, Registration)

    def missing_parts(self, name: str, generation: int, epoch: int) -> Sequence[MissingPart]:
        """The parts of epochs up to this one that no task has finished; of pipelines with Spark's own sinks."""
        request = AskMissing(generation=generation, epoch=epoch)
        return self._pipeline(name, "side-missing", request, MissingParts).parts

    def merge(
        self, name: str, batch: int, staged: Iterable[Staged], *, generation: int | None = None, manifest: str = ""
    ) -> Merged:
        """Make what was staged, in this order, and the registered side outputs part of the output segments: all of it,
        once. Merges nothing if parts of the epoch are missing. `manifest`: the mirrored checkpoint of the epoch.
        """
        request = api.Merge(generation=generation, batch=batch, staged=[*staged], manifest=manifest)
        return self._pipeline(name, "merge", request, Merged)

    def route(self, name: str, epoch: int, target: str, *, generation: int | None = None) -> Sequence[api.Span]:
        """The segments to which all tasks of an epoch route the rows for `pravega:SCOPE/STREAM`."""
        request = api.AskRoute(generation=generation, epoch=epoch, target=target)
        return self._pipeline(name, "route", request, api.SegmentRoute).spans

    def mirrored(self, name: str, generation: int | None = None) -> api.MirroredCheckpoint:
        """The mirrored checkpoint that counts. Raises Fenced if this generation is not the newest."""
        asked = "" if generation is None else f"?generation={generation}"
        return self._get(f"/pipelines/{check_pipeline_name(name)}/mirrored{asked}", api.MirroredCheckpoint)

    def record_mirrored(self, name: str, generation: int, before: str, manifest: str) -> None:
        """For Spark's own sinks, which have no merge: this manifest counts from now on. Refused if `before` does not
        count until now.
        """
        self._pipeline(name, "mirrored", api.Mirror(generation=generation, before=before, manifest=manifest), Done)

    def abort(self, name: str, batch: int, *, generation: int | None = None) -> None:
        """Delete what the batch has staged."""
        self._pipeline(name, "abort", api.Abort(generation=generation, batch=batch), Done)

    def complete(self, name: str, generation: int, epoch: int) -> None:
        """Report that Spark has committed all epochs up to this one."""
        self._pipeline(name, "complete", api.Complete(generation=generation, epoch=epoch), Done)

    def heartbeat(
        self,
        name: str,
        generation: int,
        *,
        stopped: bool = False,
        failed: bool = False,
        failure: api.QueryFailure | None = None,
        query: api.QueryReport | None = None,
    ) -> None:
        """Report that this generation is alive, that it has `stopped` normally, or that it has `failed`, and why.
        `query`: what is known about its query. Raises Fenced when it is not the newest.
        """
        beat = api.Heartbeat(generation=generation, stopped=stopped, failed=failed, failure=failure, query=query)
        self._pipeline(name, "heartbeat", beat, Done)

    def batch(self, name: str) -> BatchRanges:
        """What Spark's current batch reads, or the one that has failed."""
        return self._get(f"/pipelines/{check_pipeline_name(name)}/batch", BatchRanges)

    def stored_input(self, name: str) -> StoredInput:
        """How much of its input is still there for a pipeline that is reset."""
        return self._get(f"/pipelines/{check_pipeline_name(name)}/input", StoredInput)

    def reset(self, name: str, *, accept_partial: bool = False) -> None:
        """Begin a new incarnation: the next start decides where to begin. Refused when retention has removed some of
        its input, unless `accept_partial`.
        """
        self._pipeline(name, "reset", api.Reset(accept_partial=accept_partial), Done)

    def fork(self, name: str, origin: str) -> api.Forked:
        """Register a new pipeline that starts where `origin` is: after its last committed epoch, without state."""
        return self._pipeline(name, "fork", api.Fork(origin=origin), api.Forked)

    def drop(self, name: str, *, outputs: bool = False) -> None:
        """Forget the pipeline: nothing waits for it any more. It need not exist. With `outputs` its output
        segments are deleted, too.
        """
        self._pipeline(name, "drop", api.Drop(outputs=outputs), Done)

    def bind(self, name: str, sinks: Mapping[str, SinkSpec]) -> None:
        """Bind sinks, given by name, to the pipeline's ports, in addition to those it has; possible before the first
        start. Binding the same sink again changes nothing; a known name with another URL continues there where it was.
        """
        self._pipeline(name, "bind", Bind(sinks=sinks), Done)

    def unbind(self, name: str, sink: str) -> None:
        """Unbind the sink: it receives nothing more, and nothing waits for it."""
        self._pipeline(name, "unbind", Unbind(sink=sink), Done)

    def epochs(self, name: str) -> list[EpochStatus]:
        """The epochs that are not delivered everywhere yet, oldest first."""
        return [*self._get(f"/pipelines/{check_pipeline_name(name)}/epochs", EpochList).epochs]

    def retry(self, name: str) -> None:
        """Retry delivery now, without waiting for the back-off."""
        self._pipeline(name, "retry", Empty(), Done)

    def park(self, name: str, epoch: int, sink: str | None = None) -> None:
        """Never deliver the epoch to this sink, or to any sink that refuses it: its bytes are parked. Final."""
        self._pipeline(name, "park", Park(epoch=epoch, sink=sink), Done)

    def rewind(self, name: str, sink: str, *, accept_gap: bool = False, accept_duplicates: bool = False) -> Rewound:
        """Let a sink whose data is older or newer than the worker's continue: what it lacks is delivered again. Refused
        if something stays missing, or may arrive twice, unless that is accepted.
        """
        body = Rewind(sink=sink, accept_gap=accept_gap, accept_duplicates=accept_duplicates)
        return self._pipeline(name, "rewind", body, Rewound)

    def dead_letters(
        self, name: str, port: str | None = None, *, limit: int = 0, oldest: bool = False, before: int | None = None
    ) -> DeadLetterList:
        """The newest or oldest dead letters, up to `limit`, in their order; of one port, or of both. `before`: the
        newest of those that end at this offset or earlier.
        """
        asked = _listed(limit, before, oldest=oldest) + ("" if port is None else f"&port={quote(port, safe='')}")
        return self._get(f"/pipelines/{check_pipeline_name(name)}/dead-letters{asked}", DeadLetterList)

    def dead_letter(self, name: str, port: str, at: int) -> DeadLetter:
        """The dead letter that begins there in its port's output segment, with its value."""
        return self._get(f"/pipelines/{check_pipeline_name(name)}/dead-letters/{quote(port, safe='')}/{at}", DeadLetter)

    def source_dead_letters(
        self, source: str, *, limit: int = 0, oldest: bool = False, before: int | None = None
    ) -> DeadLetterList:
        """As `dead_letters`, of what could not become an event of the source."""
        asked = _listed(limit, before, oldest=oldest)
        return self._get(f"/sources/{_checked(source)}/dead-letters{asked}", DeadLetterList)

    def source_dead_letter(self, source: str, at: int) -> DeadLetter:
        """The one that begins there, with its value."""
        return self._get(f"/sources/{_checked(source)}/dead-letters/{at}", DeadLetter)

    def replay(self, name: str, port: str, after: int, upto: int, *, input: str | None = None) -> Replayed:  # noqa: A002
        """Send a range of dead letters through the pipeline again: from where the last replay ended, as `dead_letters`
        reports it, to the end of one of them. Repeating the call does nothing and returns the same.
        """
        request = Replay(port=port, after=after, upto=upto, input=input)
        return self._pipeline(name, "replay", request, Replayed)

    def replay_chosen(self, name: str, port: str, at: Sequence[int], *, input: str | None = None) -> Replayed:  # noqa: A002
        """Send the dead letters that begin at these offsets through the pipeline again, up to 1000 of them. Repeating
        the call does nothing and returns the same; if only some of them were replayed before, it replays none.
        """
        request = ReplayChosen(port=port, at=at, input=input)
        return self._pipeline(name, "replay-chosen", request, Replayed)

    def bury(self, name: str, places: Sequence[EventPlace], reason: str = "", *, undo: bool = False) -> BuryDone:
        """Let these events of the pipeline's input leave through `err` instead of being read, from the next run of
        their epoch on; with `undo`, let them be read again. Refused for a place where no event starts, and for an event
        whose epoch is committed. Repeating the call changes nothing.
        """
        return self._pipeline(name, "bury", Bury(at=[*places], reason=reason, undo=undo), BuryDone)

    def buried(self, name: str) -> Sequence[BuriedEvent]:
        """The buried events that its tasks may not read."""
        return self._get(f"/pipelines/{check_pipeline_name(name)}/buried", BuriedList).events

    def ddl(self, name: str, sink: str) -> TableDdl:
        """The SQL that makes the table of a sink, as it is now, fit the rows of its pipeline."""
        path = f"/pipelines/{check_pipeline_name(name)}/sinks/{check_pipeline_name(sink, 'sink')}/ddl"
        return self._get(path, TableDdl, DATABASE_SECONDS_MAX)

    def sinks(self) -> list[SinkStatus]:
        """The sinks of all pipelines."""
        return [*self.status().sinks]

    def pipelines(self) -> list[PipelineStatus]:
        return [*self._get("/pipelines", api.PipelineList).pipelines]

    def resolve(self, sources: Sequence[str], position: Starting) -> dict[str, int]:
        """The sources' segments, and where in them `position` is."""
        asked = api.Resolve(sources=sources, position=api.place_of(position))
        return dict(self._post("/sources/resolve", asked, api.SegmentOffsets).segments)

    def cut_sources(
        self,
        sources: Sequence[str],
        start: Segments,
        *,
        upto: Segments | None = None,
        limits: Limits | None = None,
        wait_ms: int = 0,
    ) -> dict[str, int]:
        """A cut for a reader without a pipeline; nothing is recorded, so the same start may get another end."""
        asked = api.CutSources(sources=sources, start=start, upto=upto, limits=limits, wait_ms=wait_ms)
        return dict(self._post("/sources/cut", asked, api.SegmentOffsets, wait_ms / 1000).segments)

    def splits(self, ranges: Iterable[Range], parts: int, *, bytes_min: int = 0, skip_lost: bool = False) -> Splits:
        """Split the ranges into about `parts` pieces, in order, at record ends. Raises DataLoss where bytes are gone,
        unless `skip_lost` passes over them.
        """
        asked = api.AskSplits(ranges=[*ranges], parts=parts, bytes_min=bytes_min, skip_lost=skip_lost)
        return self._post("/splits", asked, Splits)

    def places(self, segments: Iterable[str]) -> dict[str, str]:
        """Segment → the HTTP address of the worker that serves it; one that is not named is at this worker."""
        return dict(self._post("/places", AskPlaces(segments=[*segments]), Places).workers)

    def declare_watermark(
        self, source: str, time_us: int, stream: int | str | None = None, *, after: int | None = None
    ) -> int:
        """Declare that the stream, given by its id or name, has no more events from before this time after the message
        `after`, for which the worker waits. Without a stream, it applies to all that the source has now. Returns to how
        many it applied.
        """
        request = api.DeclareWatermark(time_us=time_us, stream=stream, after=after)
        return self._source(source, "watermark", request, api.StreamCount).streams

    def end_source(self, source: str) -> None:
        """Declare that the source has ended for good. Once all sources of a pipeline have, its windows close."""
        self._source(source, "end", Empty(), Done)

    def _source(self, source: str, verb: str, request: Request, reply: type[T]) -> T:
        return self._post(f"/sources/{_checked(source)}/{verb}", request, reply)

    def stream_names(self, source: str, ids: Iterable[int]) -> list[str]:
        """The names of a source's streams, in the order of the ids; "" for an unknown one."""
        path = f"/sources/{quote(source, safe='')}/streams"
        return [*self._post(path, api.NameStreams(ids=[*ids]), api.StreamNames).names]

    def _pipeline(self, name: str, verb: str, request: Request, reply: type[T], wait_seconds: float = 0.0) -> T:
        return self._post(f"/pipelines/{check_pipeline_name(name)}/{verb}", request, reply, wait_seconds)


def _checked(source: str) -> str:
    """The name of a source, for a URL. Raises RequestError."""
    if not source or "/" in source:  # it would change the URL's path
        raise RequestError(f"{source!r} is not a valid source name", "List them: penstock status")
    return quote(source, safe="")


def _listed(limit: int, before: int | None, *, oldest: bool) -> str:
    """Which dead letters, as a query."""
    return f"?limit={limit}&oldest={str(oldest).lower()}" + ("" if before is None else f"&before={before}")


# The blocking client of what a worker has deployed: for drivers and commands.

_CHECK_SECONDS_MAX = 60.0
"""The worker asks the driver of the pipelines before it answers."""


class ApplicationClient(WorkerClient):
    """What a reply reports is on disk."""

    def application(self) -> Deployed:
        """What is deployed."""
        return self._get("/application", Deployed)

    def follow(self) -> Deployed:
        """The same, for the driver of the pipelines, which is asked from now on before anything changes."""
        return self._post("/application/follow", Empty(), Deployed)

    def leave(self) -> None:
        """As the driver: it no longer follows the deployment, and need not be asked."""
        self._post("/application/leave", Empty(), Done)

    def answer(self, number: int, refusals: Sequence[str]) -> None:
        """As the driver: report why it cannot run the proposed deployment; no reasons if it can."""
        self._post("/application/answer", Answer(number=number, refusals=refusals), Done)

    def apply(self, deployment: Deployment, name: str = "", expected_revision: int | None = None) -> dict[str, Any]:
        """Deploy it: `revision`, and what was started, stopped and relinked. `name` is its file, for people. Raises
        RequestError where it cannot run here, or not with the state that its pipelines have, and ConditionFailed if
        another revision than the expected one is deployed; then nothing has changed.
        """
        body = encode(Apply(deployment=deployment.as_json(), name=name, expected_revision=expected_revision))
        return decode_reply(self._ask("PUT", "/application", body, _CHECK_SECONDS_MAX), dict[str, Any])

    def drain(self) -> None:
        """Let sources stop reading. Returns at once; `application` shows when everything is delivered."""
        self._post("/drain", Empty(), dict[str, Any])

    def pause(self, connector: str, stream: str | int | None = None) -> None:
        """Pause a connector, or one of its streams, given by name or id."""
        self._post("/pause", SelectStreams(connector=connector, stream=stream), dict[str, Any])

    def set_log_level(self, level: Literal["debug", "info", "warning", "error"]) -> None:
        """The level of the worker's log, until it ends."""
        self._post("/log-level", SetLogLevel(level=level), Done)

    def resume(self, connector: str, stream: str | int | None = None) -> None:
        self._post("/resume", SelectStreams(connector=connector, stream=stream), dict[str, Any])
