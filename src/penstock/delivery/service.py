"""Delivery at work, in the worker's loop: a task for each pipeline's voting sinks, and one for every other sink."""

import asyncio
import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from penstock.coordinator.deliveries import Deliveries
from penstock.coordinator.delivery_messages import EpochStatus, SinkSpec, SinkStatus, Waiting
from penstock.coordinator.machine.apply import known
from penstock.coordinator.machine.delivering import sink_of, undelivered, voters
from penstock.coordinator.machine.state import Batch, Pipeline, Sink
from penstock.core.errors import PenstockError, PipelineError, RequestError, StoreFailed, Unavailable
from penstock.delivery.backing_off import BackingOff
from penstock.delivery.following import Follower
from penstock.delivery.rounds import Rounds
from penstock.delivery.seat import Shown, Standing
from penstock.delivery.unusable import Unusable
from penstock.delivery.urls.spec import make_sink, parse_sink

log = logging.getLogger(__name__)

DRAIN_SECONDS = 10.0
"""How long a stop waits for rounds that are open; one that is not finished then is decided after the next start."""

_WATCH_SECONDS = 60.0
_AFTER_FAILURE_SECONDS = 1.0


class Delivery:
    """`start` it when the coordinator is started, and `stop` it before that one stops."""

    def __init__(self, deliveries: Deliveries) -> None:
        self._deliveries = deliveries
        self._parts: dict[tuple[str, str], Rounds | Follower] = {}
        """By pipeline and sink; the rounds of a pipeline have the empty name."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._watching: asyncio.Task[None] | None = None
        self._served: Mapping[str, Pipeline] | None = None

    def start(self) -> None:
        self._watching = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        """Rounds that are open may end; sinks are told that no more is coming."""
        if self._watching is not None:
            self._watching.cancel()
        for part in self._parts.values():
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
                self._served = pipelines
            await self._deliveries.news.wait(seen, _WATCH_SECONDS)

    def _serve(self, pipelines: Mapping[str, Pipeline]) -> None:
        for name, pipeline in pipelines.items():
            for key, sink in pipeline.sinks.items():
                if sink.votes and (name, "") not in self._parts:
                    self._run((name, ""), Rounds(name, self._deliveries, _make))
                elif not sink.votes and (name, key) not in self._parts:
                    follower = Follower(name, key, sink.url, self._deliveries, _make(name, key, sink))
                    self._run((name, key), follower)

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
            del self._parts[key]
            self._served = None
            self._deliveries.news.ring()

        self._parts[key] = part
        task = asyncio.create_task(run())
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
        await self._deliveries.bind(name, given)
        self.retry(name)

    async def unbind(self, name: str, sink: str) -> None:
        await self._deliveries.unbind(name, sink)
        self.retry(name)

    def retry(self, name: str) -> None:
        """Without waiting any longer."""
        for (pipeline, _), part in self._parts.items():
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
        self.retry(name)

    # What people are shown.

    def sinks(self) -> list[SinkStatus]:
        pipelines = self._deliveries.state.pipelines
        return [
            self._sink(name, key, sink)
            for name in sorted(pipelines)
            for key, sink in sorted(pipelines[name].sinks.items())
        ]

    def _sink(self, name: str, key: str, sink: Sink) -> SinkStatus:
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
            reason=shown.reason,
            at=sink.at,
            sent=sink.sent,
            parked=sink.parked,
        )

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
        return Waiting(key, sink.port, shown.reason, shown.failures, round(seconds, 1))

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
        return self._parts.get((name, key)) or self._parts.get((name, ""))


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


def _make(pipeline: str, name: str, sink: Sink) -> Any:
    """A sink of the sort that the ledger says."""
    try:
        parsed = parse_sink(sink.url)
        if parsed.votes is not sink.votes:
            raise RequestError("this version has other rules for such a sink", "Bind it again.")
        return make_sink(parsed, pipeline, name)
    except PenstockError as error:
        return Unusable(error)
