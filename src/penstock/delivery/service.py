"""Delivery at work, in the worker's loop: a task for each pipeline's voting sinks, and one for every other sink."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from penstock.coordinator.deliveries import Deliveries
from penstock.coordinator.delivery_messages import EpochStatus, SinkSpec, SinkStatus, TableDdl, Waiting
from penstock.coordinator.machine.apply import known
from penstock.coordinator.machine.delivery import sink_of, undelivered, voters
from penstock.coordinator.machine.state import Batch, Pipeline, Sink
from penstock.core.errors import PenstockError, PipelineError, RequestError, StoreFailed, Unavailable
from penstock.delivery.backing_off import BackingOff
from penstock.delivery.followers.hosted import MakeHosted
from penstock.delivery.following import Follower
from penstock.delivery.one_thread import OneThread
from penstock.delivery.rounds import Rounds
from penstock.delivery.seat import Shown, Standing
from penstock.delivery.sink import FollowingSink
from penstock.delivery.table_ddl import UNKNOWN_ROWS_HINT, RowSchema
from penstock.delivery.unusable import Unusable
from penstock.delivery.urls.kinds import HOSTED
from penstock.delivery.urls.spec import make_sink, parse_sink

log = logging.getLogger(__name__)

DRAIN_SECONDS = 10.0
"""How long a stop waits for rounds that are open; one that is not finished then is decided after the next start."""

LEAVE_SECONDS = 3.0
"""For a call to end whose sink is bound no more, or elsewhere; one that hangs must not hold the others for ever."""

_TROUBLES = {Standing.REFUSED.value: "votes no", Standing.WAITING.value: "cannot take it now"}

StandingWatcher = Callable[[str, str, Shown], None]
"""The pipeline, its sink, and how it stands."""

_SEE_SINKS = "See: penstock sink list"

_WATCH_SECONDS = 60.0
_AFTER_FAILURE_SECONDS = 1.0


class Delivery:
    """`start` it when the coordinator is started, and `stop` it before that one stops."""

    def __init__(self, deliveries: Deliveries, hosted: MakeHosted | None = None) -> None:
        """`hosted` makes the sinks of connectors that are hosted beside it."""
        self._deliveries = deliveries
        self._hosted = hosted
        self.watchers: list[StandingWatcher] = []
        """Called whenever a sink stands otherwise, or for another reason."""
        self._parts: dict[tuple[str, str], tuple[Rounds | Follower, asyncio.Task[None]]] = {}
        """By pipeline and sink; the rounds of a pipeline have the empty name."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._leaving: set[asyncio.Task[None]] = set()
        """Of parts that speak to a sink which is bound no more: they are cut off soon."""
        self._watching: asyncio.Task[None] | None = None
        self._served: Mapping[str, Pipeline] | None = None

    def start(self) -> None:
        self._watching = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        """Rounds that are open may end; sinks are told that no more is coming."""
        if self._watching is not None:
            self._watching.cancel()
        for part, _ in self._parts.values():
            part.stop()
        self._deliveries.news.ring()
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=DRAIN_SECONDS)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def _watch(self) -> None:
        """See to it that whatever is bound is served."""
        while True:
            seen = self._deliveries.news.count
            pipelines = self._deliveries.state.pipelines
            if pipelines is not self._served:
                self._serve(pipelines)
                self._leave(pipelines)
                self._served = pipelines
            await self._deliveries.news.wait(seen, _WATCH_SECONDS)

    def _serve(self, pipelines: Mapping[str, Pipeline]) -> None:
        for name, pipeline in pipelines.items():
            for key, sink in pipeline.sinks.items():
                if sink.votes and (name, "") not in self._parts:
                    self._run((name, ""), Rounds(name, self._deliveries, self._make, partial(self._stands, name)))
                elif not sink.votes and (name, key) not in self._parts:
                    self._run((name, key), self._follower(name, key, sink))

    def _follower(self, name: str, key: str, sink: Sink) -> Follower:
        backing_off = BackingOff()
        made = self._make_hosted(name, key, sink, backing_off.retry) or self._make(name, key, sink)
        follower = Follower(name, key, sink.url, self._deliveries, made, backing_off)
        follower.shown.watcher = partial(self._stands, name, key)
        return follower

    def _make_hosted(self, name: str, key: str, sink: Sink, wake: Callable[[], None]) -> FollowingSink | None:
        """None for a sink of another kind, or where nobody hosts any."""
        if self._hosted is None or not sink.url.startswith(f"{HOSTED}:"):
            return None
        try:
            return self._hosted(name, key, parse_sink(sink.url).options.name, wake)
        except PenstockError as error:
            return Unusable(error)

    def _make(self, pipeline: str, name: str, sink: Sink) -> Any:
        """A sink of the sort that the ledger says."""
        try:
            parsed = parse_sink(sink.url)
            if parsed.votes is not sink.votes:
                raise RequestError("this version has other rules for such a sink", "Bind it again.")
            return make_sink(parsed, pipeline, name, partial(self._schema, pipeline, sink.port))
        except PenstockError as error:
            return Unusable(error)

    def _schema(self, name: str, port: str) -> RowSchema | None:
        """Looked up by a sink, in its own thread: the state is a value that never changes."""
        pipeline = self._deliveries.state.pipelines.get(name)
        return None if pipeline is None else pipeline.schemas.get(port)

    def _stands(self, name: str, key: str, shown: Shown) -> None:
        for watcher in self.watchers:
            watcher(name, key, shown)

    def _leave(self, pipelines: Mapping[str, Pipeline]) -> None:
        """A part that goes on speaking to a sink which is not there any more is ended, and begins anew for the rest."""
        for (name, sink), (part, task) in self._parts.items():
            if task not in self._leaving and not part.is_bound(pipelines.get(name)):
                self._leaving.add(task)
                asyncio.get_running_loop().call_later(LEAVE_SECONDS, self._cut_off, (name, sink), task)

    def _cut_off(self, key: tuple[str, str], task: "asyncio.Task[None]") -> None:
        part = self._parts.get(key)
        if part is None or part[1] is not task or part[0].is_bound(self._deliveries.state.pipelines.get(key[0])):
            self._leaving.discard(task)
            return
        log.warning(
            "pipeline %s: a sink that was removed or moved does not end its last call; it is left behind", key[0]
        )
        task.cancel()

    def _run(self, key: tuple[str, str], part: Rounds | Follower) -> None:
        async def run() -> None:
            try:
                await part.run()
            except (StoreFailed, Unavailable):
                return  # the worker stops
            except Exception:
                log.exception("the delivery of pipeline %r has failed; it begins anew", key[0])
                await asyncio.sleep(_AFTER_FAILURE_SECONDS)

        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            self._leaving.discard(task)
            del self._parts[key]
            self._served = None
            self._deliveries.news.ring()

        task = asyncio.create_task(run())
        self._parts[key] = part, task
        self._tasks.add(task)
        task.add_done_callback(ended)

    # What people do.

    async def bind(self, name: str, sinks: Mapping[str, SinkSpec]) -> None:
        """Raises RequestError for a URL that is no sink's, or that needs something which is not installed here."""
        given = {}
        for key, spec in sinks.items():
            parsed = parse_sink(spec.url)
            parsed.check_installed()
            given[key] = spec.port, spec.url, parsed.votes
        self._check_places(name, sinks)
        await self._deliveries.bind(name, given)
        self.retry(name)

    def _check_places(self, name: str, sinks: Mapping[str, SinkSpec]) -> None:
        """Raises PipelineError for a place that another sink has: only one could work, or all would come twice."""
        pipeline = self._deliveries.state.pipelines.get(name)
        bound = {} if pipeline is None else {key: SinkSpec(one.port, one.url) for key, one in pipeline.sinks.items()}
        places = [*bound.items(), *sinks.items()]  # also where two change places: their histories would be mixed up
        for key, spec in sinks.items():
            other = next((one for one, place in places if place == spec and one != key), None)
            if other is not None:
                raise PipelineError(
                    f"sink {key!r}: its place is bound to port {spec.port!r} already, as {other!r}",
                    f"Give sinks names of their own, {{name: URL}}, or remove it: penstock sink remove {name} {other}",
                )

    async def unbind(self, name: str, sink: str) -> None:
        await self._deliveries.unbind(name, sink)
        self.retry(name)

    def retry(self, name: str) -> None:
        """Without waiting any longer."""
        for (pipeline, _), (part, _) in self._parts.items():
            if pipeline == name:
                part.backing_off.retry()

    async def park(self, name: str, epoch: int, sink: str | None) -> None:
        """For this sink, or for all that refuse it. Final: it goes to the sink's dead letters."""
        pipeline = known(self._deliveries.state, name)
        if sink is not None:
            sink_of(pipeline, name, sink)
        refusing = [key for key in pipeline.sinks if self._shown(name, key).standing is Standing.REFUSED]
        chosen = refusing if sink is None else [sink]
        if not chosen:
            raise PipelineError(f"no sink of {name!r} refuses epoch {epoch}", "Say which one is meant: --sink NAME")
        for key in chosen:
            await self._deliveries.park(name, key, epoch - 1)
            self._shown(name, key).parked()
        self.retry(name)

    # What people are shown.

    async def ddl(self, name: str, key: str) -> TableDdl:
        """What makes the table of a sink fit the rows of its pipeline. Raises RequestError for a sink without a table
        and while the rows are not known, and when the database does not answer.
        """
        pipeline = known(self._deliveries.state, name)
        sink = sink_of(pipeline, name, key)
        parsed = parse_sink(sink.url)
        if not parsed.spec.ddl:
            raise RequestError(f"{name}/{key} is a {parsed.kind} sink: it has no table", _SEE_SINKS)
        schema = pipeline.schemas.get(sink.port)
        if schema is None and parsed.options.needs_schema:
            raise _unknown_rows(name, sink.port, pipeline)
        try:
            return await OneThread(f"{name}/{key} ddl").call(parsed.spec.describe, parsed.options, schema or ())
        except PenstockError:
            raise
        except Exception as error:  # the database's own
            said = " ".join(str(error).split())
            raise RequestError(f"the database of {name}/{key} cannot be used: {said}", _SEE_SINKS) from None

    def sinks(self) -> list[SinkStatus]:
        pipelines = self._deliveries.state.pipelines
        found = []
        for name in sorted(pipelines):
            waiting = [batch for _, batch in undelivered(pipelines[name])]
            for key, sink in sorted(pipelines[name].sinks.items()):
                found.append(self._sink(name, key, sink, sum(map(sink.lacks, waiting))))
        return found

    def _sink(self, name: str, key: str, sink: Sink, lacking: int) -> SinkStatus:
        shown = self._shown(name, key)
        url, guarantee = _described(sink.url)
        return SinkStatus(
            pipeline=name,
            sink=key,
            port=sink.port,
            url=url,
            guarantee=guarantee,
            votes=sink.votes,
            state=shown.standing.value,
            reason=shown.why,
            at=sink.at,
            sent=sink.sent,
            parked=sink.parked,
            lacking=lacking,
        )

    def holds(self) -> Iterator[str]:
        """Sentences, of sinks that do not take what waits for them: acknowledgements wait with it."""
        for one in self.sinks():
            if one.lacking and one.reason:
                epochs = "1 epoch waits" if one.lacking == 1 else f"{one.lacking} epochs wait"
                trouble = f"{_TROUBLES.get(one.state, 'is slow')}: {one.reason}"
                yield f"{epochs} for sink {one.sink} of pipeline {one.pipeline}, which {trouble}"

    def epochs(self, name: str) -> list[EpochStatus]:
        """Those that some sink lacks, oldest first."""
        pipeline = known(self._deliveries.state, name)
        return [*self._epochs(name, pipeline)]

    def _epochs(self, name: str, pipeline: Pipeline) -> Iterator[EpochStatus]:
        """An epoch waits for those sinks whose turn it is: those that vote come first, and each has one at a time."""
        busy: set[str] = set()
        for number, batch in undelivered(pipeline):
            asked = voters(pipeline, batch)
            lacking = asked or {key: sink for key, sink in pipeline.sinks.items() if sink.lacks(batch)}
            in_turn = {key: sink for key, sink in lacking.items() if key not in busy}
            busy |= pipeline.sinks.keys() if asked else lacking.keys()
            waiting = [self._waiting(name, key, sink) for key, sink in in_turn.items()]
            standing = "DECIDED" if not asked else "DELIVERING" if in_turn else "MERGED"
            state = self._trouble(name, in_turn) or standing
            yield EpochStatus(number + 1, _size(pipeline, number, batch), state, waiting)

    def _waiting(self, name: str, key: str, sink: Sink) -> Waiting:
        shown, backing_off = self._shown(name, key), self._backing_off(name, key)
        seconds = 0.0 if backing_off is None else backing_off.seconds
        return Waiting(key, sink.port, shown.why, shown.failures, round(seconds, 1))

    def _trouble(self, name: str, keys: Iterable[str]) -> str | None:
        standings = {self._shown(name, key).standing for key in keys}
        return next((bad.value for bad in (Standing.REFUSED, Standing.WAITING) if bad in standings), None)

    def _shown(self, name: str, key: str) -> Shown:
        part = self._part(name, key)
        if isinstance(part, Rounds):
            seat = part.seats.get(key)
            return Shown() if seat is None else seat.shown
        return Shown() if part is None else part.shown

    def _backing_off(self, name: str, key: str) -> BackingOff | None:
        part = self._part(name, key)
        return None if part is None else part.backing_off

    def _part(self, name: str, key: str) -> Rounds | Follower | None:
        part = self._parts.get((name, key)) or self._parts.get((name, ""))
        return None if part is None else part[0]


def _size(pipeline: Pipeline, number: int, batch: Batch) -> int:
    before = pipeline.batches.get(number - 1)
    ends = {} if before is None else before.ends
    return sum(end - ends.get(port, 0) for port, end in batch.ends.items())


def _described(url: str) -> tuple[str, str]:
    """The URL without secrets, and what the sink promises."""
    try:
        parsed = parse_sink(url)
    except PenstockError:  # bound by a version that knew it
        return url.partition("?")[0], "unknown"
    return parsed.shown, parsed.guarantee.value


def _unknown_rows(name: str, port: str, pipeline: Pipeline) -> RequestError:
    if not pipeline.inputs:
        return RequestError(
            f"pipeline {name!r} has not started yet: the columns of its rows are not known",
            "Start it (penstock run …), then ask again. It need not have committed an epoch.",
        )
    return RequestError(
        f"the columns of pipeline {name!r}, port {port!r}, are not known: its rows leave as a `value` of their own, "
        "or it was last started by an older version",
        UNKNOWN_ROWS_HINT,
    )
