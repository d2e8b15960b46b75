"""Delivery in the worker's event loop: one task for the voting sinks of each pipeline, and one for every other sink."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias

from penstock.connectors.permissions import UNLIMITED, Permissions
from penstock.connectors.tables import UNKNOWN_ROWS_HINT, RowSchema
from penstock.connectors.threaded import OneThread
from penstock.coordinator.deliveries import Deliveries
from penstock.coordinator.machine.apply import known
from penstock.coordinator.machine.delivery import sink_of, undelivered, voters
from penstock.coordinator.machine.state import MergedEpoch, Pipeline, Sink
from penstock.core.errors import PenstockError, PipelineError, RequestError, Unavailable
from penstock.core.supervisor import Supervised, Supervisor
from penstock.delivery.backoff import Backoff
from penstock.delivery.non_voting import NonVotingSlot
from penstock.delivery.positions import Divergence
from penstock.delivery.rewind import Consent, plan_rewind
from penstock.delivery.rounds import Rounds
from penstock.delivery.sink_slot import SlotState, SlotStatus
from penstock.delivery.sinks import Deployed, NothingDeployed, Sinks
from penstock.protocol.api.delivery import EpochStatus, Rewound, SinkSpec, SinkStatus, TableDdl, Waiting

log = logging.getLogger(__name__)

DRAIN_SECONDS = 10.0
"""A stop waits this long for open rounds; a round that is not finished then is decided after the next start."""

LEAVE_SECONDS = 3.0
"""For the last call to a sink that was unbound or moved; one that hangs must not block the others."""

StatusWatcher = Callable[[str, str, SlotStatus], None]
"""The pipeline, its sink, and the sink's status."""

_SEE_SINKS = "See: penstock sink list"

_WATCH_SECONDS = 60.0

_TROUBLES = (SlotState.DIVERGED, SlotState.REFUSED, SlotState.WAITING)
"""The worst first."""

Part: TypeAlias = Rounds | NonVotingSlot
Key: TypeAlias = tuple[str, str]


class Delivery:
    """`start` it when the coordinator is started, and `stop` it before that one stops."""

    def __init__(
        self,
        deliveries: Deliveries,
        deployed: Deployed | None = None,
        permissions: Permissions = UNLIMITED,
        supervisor: Supervisor | None = None,
        may_act: Callable[[], bool] = lambda: True,
    ) -> None:
        """`deployed` has the connectors of the application; `permissions` are those of sinks that URLs name. `may_act`:
        False while another worker may have taken over.
        """
        self._may_act = may_act
        self._deliveries = deliveries
        self._sinks = Sinks(deployed or NothingDeployed(), permissions)
        self._supervisor = supervisor or Supervisor()
        self.watchers: list[StatusWatcher] = []
        """Called whenever a sink's status changes."""
        self._parts: dict[Key, Part] = {}
        """By pipeline and sink; the rounds of a pipeline have the empty name."""
        self._tasks: dict[Key, Supervised] = {}
        self._leaving: set[Supervised] = set()
        """Tasks of parts with a sink that is no longer bound: they are cancelled soon."""
        self._watching: Supervised | None = None
        self._served: Mapping[str, Pipeline] | None = None

    def start(self) -> None:
        self._watching = self._supervisor.run("bound sinks", self._watch)

    async def stop(self) -> None:
        """Open rounds may finish; sinks are notified that nothing more follows."""
        if self._watching is not None:
            await self._watching.stop()
        for part in self._parts.values():
            part.stop()
        tasks = [*self._tasks.values()]
        for task in tasks:
            if task.is_waiting:
                task.cancel()
        self._deliveries.news.ring()
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):
                for task in tasks:
                    await task.finished.wait()
        for task in tasks:
            await task.stop()

    async def _watch(self) -> None:
        """Keep a running part for everything that is bound."""
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
                if sink.votes and (name, "") not in self._tasks:
                    self._run((name, ""), partial(self._rounds, name))
                elif not sink.votes and (name, key) not in self._tasks:
                    self._run((name, key), partial(self._non_voting, name, key, sink))

    def _rounds(self, name: str) -> Rounds:
        return Rounds(name, self._deliveries, self._make, partial(self._changed, name))

    def _non_voting(self, name: str, key: str, sink: Sink) -> NonVotingSlot:
        backoff = Backoff()
        non_voting_sink: Any = self._make(name, key, sink, backoff.retry)
        slot = NonVotingSlot(name, key, sink.url, self._deliveries, non_voting_sink, backoff, self._may_act)
        slot.status.watcher = partial(self._changed, name, key)
        return slot

    def _make(self, pipeline: str, name: str, sink: Sink, wake: Callable[[], None] = lambda: None) -> Any:
        """A sink as it is in the ledger."""
        return self._sinks.make(pipeline, name, sink, partial(self._schema, pipeline, sink.port), wake)

    def _schema(self, name: str, port: str) -> RowSchema | None:
        """Called by a sink in its own thread: the state is immutable."""
        pipeline = self._deliveries.state.pipelines.get(name)
        return None if pipeline is None else pipeline.schemas.get(port)

    def _changed(self, name: str, key: str, status: SlotStatus) -> None:
        for watcher in self.watchers:
            watcher(name, key, status)

    def _leave(self, pipelines: Mapping[str, Pipeline]) -> None:
        """A part that still talks to a sink that is gone is cancelled; a new one serves the other sinks."""
        for key, part in self._parts.items():
            task = self._tasks[key]
            if task not in self._leaving and not part.is_bound(pipelines.get(key[0])):
                self._leaving.add(task)
                asyncio.get_running_loop().call_later(LEAVE_SECONDS, self._cancel, key, task)

    def _cancel(self, key: Key, task: Supervised) -> None:
        part = self._parts.get(key)
        replaced = self._tasks.get(key) is not task
        if part is None or replaced or part.is_bound(self._deliveries.state.pipelines.get(key[0])):
            self._leaving.discard(task)
            return
        log.warning(
            "pipeline %s: the last call to a sink that was removed or moved does not return; it is cancelled", key[0]
        )
        task.cancel()

    def _run(self, key: Key, make: Callable[[], Part]) -> None:
        """Each restart begins with a new part: it reads from the ledger where it is."""

        async def run() -> None:
            part = make()
            self._parts[key] = part
            with suppress(Unavailable):  # the worker stops
                await part.run()

        def ended() -> None:
            self._leaving.discard(task)
            self._parts.pop(key, None)
            self._tasks.pop(key, None)
            self._served = None
            self._deliveries.news.ring()

        pipeline, sink = key
        name = f"delivery of {pipeline} to {sink}" if sink else f"delivery of {pipeline}"
        task = self._tasks[key] = self._supervisor.run(name, run, ended=ended)

    # For operators.

    async def bind(self, name: str, sinks: Mapping[str, SinkSpec]) -> None:
        """Raises RequestError for a sink that is neither a valid URL nor a deployed connector, or whose type needs a
        package that is not installed.
        """
        given = {}
        for key, spec in sinks.items():
            given[key] = spec.port, spec.url, self._sinks.check(spec.url).votes
        self._check_places(name, sinks)
        await self._deliveries.bind(name, given)
        self.retry(name)

    def _check_places(self, name: str, sinks: Mapping[str, SinkSpec]) -> None:
        """Raises PipelineError for a target that another sink has: only one could work, or rows would arrive twice."""
        pipeline = self._deliveries.state.pipelines.get(name)
        bound = {} if pipeline is None else {key: SinkSpec(one.port, one.url) for key, one in pipeline.sinks.items()}
        places = [*bound.items(), *sinks.items()]  # also if two swap targets: their histories would be mixed up
        for key, spec in sinks.items():
            other = next((one for one, place in places if place == spec and one != key), None)
            if other is not None:
                raise PipelineError(
                    f"sink {key!r}: port {spec.port!r} is bound to this URL already, as sink {other!r}",
                    f"Keep that name for it, {{name: URL}}, or remove it first: penstock sink remove {name} {other}",
                )

    async def unbind(self, name: str, sink: str) -> None:
        await self._deliveries.unbind(name, sink)
        self.retry(name)

    def retry(self, name: str) -> None:
        """At once, without waiting for the back-off."""
        for (pipeline, _), part in self._parts.items():
            if pipeline == name:
                part.backoff.retry()

    async def park(self, name: str, epoch: int, sink: str | None) -> None:
        """For this sink, or for all that refuse it. Final: the epoch goes to the sink's dead letters."""
        pipeline = known(self._deliveries.state, name)
        if sink is not None:
            sink_of(pipeline, name, sink)
        refusing = [key for key in pipeline.sinks if self._status(name, key).state is SlotState.REFUSED]
        chosen = refusing if sink is None else [sink]
        if not chosen:
            raise PipelineError(f"no sink of {name!r} refuses epoch {epoch}", "Name the sink: --sink NAME")
        for key in chosen:
            await self._deliveries.park(name, key, epoch)
            self._status(name, key).parked()
        self.retry(name)

    async def rewind(self, name: str, key: str, consent: Consent) -> Rewound:
        """Lets a sink whose data does not fit the ledger continue. Raises PipelineError if there is no such need, and
        if it takes a consent that was not given.
        """
        pipeline = known(self._deliveries.state, name)
        sink = sink_of(pipeline, name, key)
        divergence = self._divergence(name, key)
        if divergence is None or (divergence.decided.sent, divergence.decided.transaction.decode()) != (
            sink.sent,
            sink.decided,
        ):
            raise _nothing_to_rewind(name, key, sink, self._status(name, key))
        await self._deliveries.settled()  # what was merged can be read now
        command = await plan_rewind(self._deliveries.records, pipeline, divergence, consent)
        await self._deliveries.adopt(command)
        outcome = f"{command.accepted} accepted" if command.accepted else "what it lacks is delivered again"
        log.warning("%s; rewound by %s: %s", divergence.sentence, consent.by, outcome)
        self.retry(name)
        again = sum(1 for epoch in pipeline.epochs.values() if command.at < epoch.ends.get(sink.port, 0) <= sink.at)
        return Rewound(divergence.sentence, again, command.accepted)

    def _divergence(self, name: str, key: str) -> Divergence | None:
        part = self._part(name, key)
        slot = part.slots.get(key) if isinstance(part, Rounds) else None
        return None if slot is None else slot.divergence

    # For the status.

    async def ddl(self, name: str, key: str) -> TableDdl:
        """Statements that make a sink's table fit the rows of its pipeline. Raises RequestError for a sink without a
        table, while the rows are not known, and when the database does not answer.
        """
        pipeline = known(self._deliveries.state, name)
        sink = sink_of(pipeline, name, key)
        connector = self._sinks.check(sink.url).connector
        if not connector.has_table:
            raise RequestError(f"{name}/{key} is a {connector.about.name} sink: it has no table", _SEE_SINKS)
        schema = pipeline.schemas.get(sink.port)
        if schema is None and connector.needs_schema:
            raise _unknown_rows(name, sink.port, pipeline)
        try:
            with connector.mask.errors():
                return await OneThread(f"{name}/{key} ddl").call(connector.describe_table, schema or ())
        except PenstockError:
            raise
        except Exception as error:  # the database's own
            reason = " ".join(str(error).split())
            raise RequestError(f"{name}/{key}: the database failed: {reason}", _SEE_SINKS) from None

    def sinks(self) -> list[SinkStatus]:
        pipelines = self._deliveries.state.pipelines
        found = []
        for name in sorted(pipelines):
            waiting = [batch for _, batch in undelivered(pipelines[name])]
            for key, sink in sorted(pipelines[name].sinks.items()):
                found.append(self._sink(name, key, sink, sum(map(sink.lacks, waiting))))
        return found

    def _sink(self, name: str, key: str, sink: Sink, lacking: int) -> SinkStatus:
        status = self._status(name, key)
        url, guarantee = self._sinks.describe(sink.url)
        return SinkStatus(
            pipeline=name,
            sink=key,
            port=sink.port,
            url=url,
            guarantee=guarantee,
            votes=sink.votes,
            state=status.state.value,
            reason=status.why,
            at=sink.at,
            sent=sink.sent,
            parked=sink.parked,
            lacking=lacking,
            silent_seconds=status.silent_seconds,
        )

    def epochs(self, name: str) -> list[EpochStatus]:
        """The epochs that some sink has not got yet, oldest first."""
        pipeline = known(self._deliveries.state, name)
        return [*self._epochs(name, pipeline)]

    def _epochs(self, name: str, pipeline: Pipeline) -> Iterator[EpochStatus]:
        """An epoch waits for the sinks whose turn it is: voting sinks first, each takes one epoch at a time."""
        busy: set[str] = set()
        for number, batch in undelivered(pipeline):
            asked = voters(pipeline, batch)
            lacking = asked or {key: sink for key, sink in pipeline.sinks.items() if sink.lacks(batch)}
            in_turn = {key: sink for key, sink in lacking.items() if key not in busy}
            busy |= pipeline.sinks.keys() if asked else lacking.keys()
            waiting = [self._waiting(name, key, sink) for key, sink in in_turn.items()]
            phase = "DECIDED" if not asked else "DELIVERING" if in_turn else "MERGED"
            state = self._trouble(name, in_turn) or phase
            yield EpochStatus(number, _size(pipeline, number, batch), state, waiting)

    def _waiting(self, name: str, key: str, sink: Sink) -> Waiting:
        status, part = self._status(name, key), self._part(name, key)
        seconds = 0.0 if part is None else part.backoff.seconds
        return Waiting(key, sink.port, status.why, status.failures, round(seconds, 1))

    def _trouble(self, name: str, keys: Iterable[str]) -> str | None:
        states = {self._status(name, key).state for key in keys}
        return next((bad.value for bad in _TROUBLES if bad in states), None)

    def _status(self, name: str, key: str) -> SlotStatus:
        part = self._part(name, key)
        slot = part.slots.get(key) if isinstance(part, Rounds) else part
        return SlotStatus() if slot is None else slot.status

    def _part(self, name: str, key: str) -> Part | None:
        return self._parts.get((name, key)) or self._parts.get((name, ""))


def _size(pipeline: Pipeline, number: int, batch: MergedEpoch) -> int:
    before = pipeline.epochs.get(number - 1)
    ends = {} if before is None else before.ends
    return sum(end - ends.get(port, 0) for port, end in batch.ends.items())


def _nothing_to_rewind(name: str, key: str, sink: Sink, status: SlotStatus) -> PipelineError:
    where = f"sink {key!r} of pipeline {name!r}"
    if not sink.votes:
        return PipelineError(f"{where} does not vote, so it has no record of what it has received", _SEE_SINKS)
    if status.state in (SlotState.WAITING, SlotState.CONNECTING):
        return PipelineError(
            f"{where} has not reported what it has received: {status.reason or 'it is being opened'}", _SEE_SINKS
        )
    return PipelineError(f"{where} agrees with the ledger: there is nothing to rewind", _SEE_SINKS)


def _unknown_rows(name: str, port: str, pipeline: Pipeline) -> RequestError:
    if not pipeline.inputs:
        return RequestError(
            f"the columns of pipeline {name!r} are not known: it has not started yet",
            "Start it (penstock run …) and try again; it need not have committed an epoch.",
        )
    return RequestError(
        f"the columns of pipeline {name!r}, port {port!r}, are not known: its rows have a `value` of their own, "
        "or an older version has started it last",
        UNKNOWN_ROWS_HINT,
    )
