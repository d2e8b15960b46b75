"""The home shard's side of pipelines that read sources of other shards: subscriptions, followers, releases."""

import asyncio
import dataclasses
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import msgspec

from penstock.coordinator.follower import Budget, Follower
from penstock.coordinator.ledger import Keeper
from penstock.coordinator.machine.commands import Advance, Place, Serve, Subscribe, Unsubscribe
from penstock.coordinator.machine.state import Pipeline, State, source_of
from penstock.coordinator.machine.subscriptions import Holding, Holdings, holding
from penstock.coordinator.pravega_streams import check_is_followed
from penstock.coordinator.records import normalised
from penstock.coordinator.settings import Connectors, SourceTimes
from penstock.coordinator.shards import ShardDirectory, ShardWire
from penstock.coordinator.views import LocalView, PlacedView, View
from penstock.coordinator.watermark.source_table import StreamTable, Written
from penstock.coordinator.watermark.watermarks import Watermarks
from penstock.core.errors import Damaged, Fenced, PenstockError, Unavailable
from penstock.core.retry import Pauses, RetryPolicy
from penstock.core.supervisor import Supervised, Supervisor
from penstock.protocol.api.codec import Done
from penstock.protocol.api.pipelines import (
    AtSegments,
    Limits,
    Range,
    SegmentOffsets,
    Segments,
    Splits,
    Starting,
    place_of,
)
from penstock.protocol.api.shards import (
    AdvanceIn,
    ClockWanted,
    CutIn,
    EndOffset,
    EventIn,
    Followed,
    ResolveIn,
    RowsIn,
    SplitIn,
    SubscribeTo,
    UnsubscribeFrom,
)
from penstock.protocol.stored.names import CONNECTOR_PREFIX, SYSTEM_PREFIX, Form, Partition, Source

log = logging.getLogger(__name__)

T = TypeVar("T")

FOLLOW_MS = 5000
"""How long a source shard waits for something new before it replies: also how soon its other settings are known."""

RETRIES = RetryPolicy(first_seconds=0.05, max_seconds=2.0)
"""While a shard is away: it comes back within some seconds, and pipelines wait for it."""

START_SECONDS = 5.0
"""How long a start waits for a shard before it is refused with the reason; its driver repeats it."""


@dataclass(slots=True)
class _Followed:
    """The followers of one pipeline, by source, and what runs them."""

    incarnation: int
    view: View
    followers: dict[str, Follower]
    tasks: dict[str, Supervised] = field(default_factory=dict)
    room: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the pipeline has read something."""


class StartedSources:
    """The sources that a start, or a reset, has subscribed to, until it is in the ledger."""

    def __init__(self, remote: "RemoteSources", pipeline: str) -> None:
        self._remote = remote
        self._pipeline = pipeline
        self.subscribed: list[str] = []

    async def resolve(self, sources: Sequence[str], starting: Starting) -> dict[str, int]:
        """The offsets of `starting` in these sources of other shards. They are retained there."""
        found: dict[str, int] = {}
        for source in sources:
            found |= await self._remote.subscribe(self._pipeline, source, _of(source, starting), self.subscribed)
        return found


class RemoteSources:
    """Without a directory no source is remote, and it does nothing."""

    def __init__(
        self,
        local: LocalView,
        keeper: Keeper,
        supervisor: Supervisor,
        ring: Callable[[], None],
        directory: ShardDirectory | None,
        wire: ShardWire | None,
    ) -> None:
        self._local = local
        self._keeper = keeper
        self._supervisor = supervisor
        self._ring = ring
        self._directory = directory
        self._wire = wire
        self._pipelines: dict[str, _Followed] = {}
        self._budget = Budget()
        self._holdings = Holdings(0, 0)
        self._senders: dict[int, tuple[Supervised, asyncio.Event]] = {}
        self._problems: dict[str, str] = {}
        """Pipeline → what its start waits for."""
        self.watermarks: Watermarks
        self.clock_wanted: Callable[[str], ClockWanted] = lambda _: ClockWanted()
        """What the windows of this shard's pipelines wait for, by source."""

    @property
    def shards(self) -> Mapping[str, int]:
        """Sources of other shards, as far as a pipeline has ever read them."""
        return self._keeper.state.remote

    def view(self, pipeline: str) -> View:
        found = self._pipelines.get(pipeline)
        return self._local if found is None else found.view

    def problem(self, pipeline: str) -> str | None:
        """What keeps it from reading, for people: "blocked: …"."""
        return self.view(pipeline).problem

    @property
    def problems(self) -> list[str]:
        """Why pipelines do not start."""
        return [f"pipeline {name} {text}" for name, text in self._problems.items()]

    def connectors(self, own: Connectors) -> Connectors:
        """For people: what is known about connectors, also about those of other shards."""

        def has_finished(name: str) -> bool:
            found = self._follower(name)
            return own.has_finished(name) if found is None else found.has_finished

        def times(name: str) -> SourceTimes:
            found = self._follower(name)
            return own.times(name) if found is None else SourceTimes(*(found.times or ()))

        return own._replace(has_finished=has_finished, times=times)

    def _follower(self, source: str) -> Follower | None:
        """Of any pipeline; None: the source is here, or nothing reads it."""
        if source not in self.shards:
            return None
        return next((one.followers[source] for one in self._pipelines.values() if source in one.followers), None)

    async def start(self) -> None:
        """Begin to serve the shard. Returns when that is durable: nothing is sent before."""
        if self._directory is None:
            return
        self._keeper.commit(Serve())
        await self._keeper.settled()
        self._holdings = Holdings(self._directory.shard, self._keeper.state.term)
        for source in self.shards:
            self.changed(source)
        self.refresh()

    async def stop(self) -> None:
        for one in self._pipelines.values():
            for task in one.tasks.values():
                await task.stop()
        for task, _ in self._senders.values():
            await task.stop()
        if self._wire is not None:
            await self._wire.close()

    @property
    def term(self) -> int:
        """Counts the processes that have served this shard; durable after `start`."""
        return self._keeper.state.term

    # Where sources are.

    async def partitions(self, sources: Iterable[str]) -> tuple[str, ...]:
        """The sources in normal form, each with all its partitions: a reader reads them as one. Raises Unavailable,
        and RequestError for an invalid source.
        """
        found = normalised(sources)
        if self._directory is None:
            return found
        all_of_them = dict[str, None]()
        for source in found:
            parsed = Source.parse(source)
            is_partitioned = parsed.form is Form.CONNECTOR and not parsed.name.startswith(SYSTEM_PREFIX)
            count = len(await self._directory.partitions(source)) if is_partitioned else 1
            names = [Partition(parsed.name, number).name for number in range(count)] if count > 1 else [source]
            all_of_them |= dict.fromkeys(names)
        return tuple(all_of_them)

    async def place(self, sources: Iterable[str]) -> list[str]:
        """Find out which of the sources are in other shards, record it in the ledger, and return them. Raises
        Unavailable, and RequestError for streams of Pravega's clients.
        """
        if self._directory is None:
            return []
        found = []
        for source in sources:
            if source not in self.shards and not Source.parse(source).name.startswith(SYSTEM_PREFIX):
                shard = await self._directory.shard_of(source)
                if shard != self._directory.shard:
                    check_is_followed(source)
                    self._keeper.commit(Place(source, shard))
            if source in self.shards:
                found.append(source)
        return found

    async def shard_of(self, source: str) -> int | None:
        """The shard of a source; None: it is here. Nothing is recorded."""
        if self._directory is None or Source.parse(source).name.startswith(SYSTEM_PREFIX):
            return None
        if source in self.shards:
            return self.shards[source]
        shard = await self._directory.shard_of(source)
        return None if shard == self._directory.shard else shard

    async def by_shard(self, sources: Iterable[str]) -> dict[int | None, list[str]]:
        """The sources by their shards; None: those that are here."""
        found: dict[int | None, list[str]] = {}
        for source in sources:
            found.setdefault(await self.shard_of(source), []).append(source)
        return found

    async def addresses(self, segments: Iterable[str]) -> dict[str, str]:
        """Segment → HTTP address of the process that serves it, for segments of other shards."""
        found: dict[str, str] = {}
        for segment in segments if self._directory is not None else ():
            shard = await self.shard_of(source_of(segment))
            if shard is not None:
                assert self._directory is not None
                address = await self._directory.find(shard)
                if address is None:
                    raise Unavailable(f"no worker serves shard {shard} now, which has {segment!r}", "Try again.")
                found[segment] = address.http
        return found

    # Requests to other shards that change nothing there.

    async def resolve(self, shard: int, sources: Sequence[str], position: Starting) -> dict[str, int]:
        request = ResolveIn(sources=sources, position=place_of(position))
        return dict((await self._ask(shard, "resolve", request, SegmentOffsets)).segments)

    async def cut(
        self,
        shard: int,
        sources: Sequence[str],
        start: Segments,
        upto: Segments | None,
        limits: Limits | None,
        wait_seconds: float,
    ) -> dict[str, int]:
        request = CutIn(sources=sources, start=start, upto=upto, limits=limits, wait_ms=int(1000 * wait_seconds))
        return dict((await self._ask(shard, "cut", request, SegmentOffsets, wait_seconds)).segments)

    async def split(self, shard: int, ranges: Sequence[Range], part_bytes: int, *, skip_lost: bool) -> Splits:
        return await self._ask(
            shard, "split", SplitIn(ranges=ranges, part_bytes=part_bytes, skip_lost=skip_lost), Splits
        )

    async def event_end(self, segment: str, offset: int) -> int:
        """Where the event there ends. Raises PipelineError if none starts there."""
        request = EventIn(segment=segment, offset=offset)
        return (await self._ask(self.shards[source_of(segment)], "event", request, EndOffset)).end

    async def _rows_end(self, segment: str, start: int, end: int, rows_max: int) -> int:
        request = RowsIn(segment=segment, start=start, end=end, rows_max=rows_max)
        return (await self._ask(self.shards[source_of(segment)], "rows", request, EndOffset)).end

    async def _ask(
        self, shard: int, what: str, request: msgspec.Struct, reply: type[T], wait_seconds: float = 0.0
    ) -> T:
        assert self._wire is not None, "a shard of a cluster has one"
        return await self._wire.ask(shard, f"/shard/{what}", request, reply, wait_seconds)

    # Subscriptions.

    @asynccontextmanager
    async def starting(self, pipeline: str) -> AsyncIterator[StartedSources]:
        """While a start or a reset asks source shards what to retain, until it is in the ledger."""
        started = StartedSources(self, pipeline)
        try:
            yield started
        finally:
            self._problems.pop(pipeline, None)
            for source in started.subscribed:
                self._after(source, self._holdings.started)
        self.refresh()

    async def subscribe(self, pipeline: str, source: str, starting: Starting, subscribed: list[str]) -> dict[str, int]:
        """Raises Unavailable if the shard does not answer: the driver tries again."""
        shard = self.shards[source]
        await self._keeper.settled()  # the place is durable, so the subscription is not forgotten if this process dies
        message = self._holdings.subscribe(source, pipeline, {})
        subscribed.append(source)
        try:
            async for attempt in RETRIES.async_retrying(START_SECONDS, Unavailable, Fenced):
                if attempt.retry_state.attempt_number > 1:  # another start may have overtaken it
                    message = self._holdings.subscribe_again(source, pipeline, {})
                with attempt:
                    reply = await self._ask(shard, "subscribe", _subscribe_to(message, starting), SegmentOffsets)
        except Unavailable as error:
            waits = f"waits for shard {shard}, which has source {source!r}: {error}"
            self._problems[pipeline] = waits
            raise Unavailable(f"pipeline {pipeline!r} {waits}", "See penstock cluster status.") from error
        return dict(reply.segments)

    # Releases.

    def changed(self, source: str) -> None:
        """What the pipelines need of a source may have changed."""
        self._after(source, self._holdings.offer)

    def changed_segments(self, segments: Iterable[str]) -> None:
        if self.shards:
            for source in {source_of(name) for name in segments} & self.shards.keys():
                self.changed(source)

    def _after(self, source: str, take: Callable[[str, Holding], None]) -> None:
        """Let `take` have what the pipelines need now, when it is durable; then send it."""
        if not self._holdings.term:
            return  # `start` sends everything, under the term that it gets
        now = self._needed(source)

        def taken() -> None:
            take(source, now)
            self._wake(self.shards[source])

        self._keeper.after(taken)

    def _needed(self, source: str) -> Holding:
        """The heads below `floor` may be removed: by then a written table of streams reflects them."""
        found = holding(self._keeper.state, source)
        if not found.pipelines:
            return found
        floor = {name: self._floor(found.pipelines, name, at) for name, at in found.floor.items()}
        self._keeper.cover()
        return found._replace(floor=floor)

    def _floor(self, pipelines: Iterable[str], name: str, at: int) -> int:
        if not name.startswith(CONNECTOR_PREFIX):
            return at
        return min(self.watermarks.retained_from(pipeline, name, at) for pipeline in pipelines)

    def _wake(self, shard: int) -> None:
        if shard not in self._senders:
            event = asyncio.Event()
            work = partial(self._send_all, shard, event)
            self._senders[shard] = self._supervisor.run(f"releases to shard {shard}", work), event
        self._senders[shard][1].set()

    async def _send_all(self, shard: int, wanted: asyncio.Event) -> None:
        pauses = Pauses(RETRIES)
        while True:
            wanted.clear()
            try:
                for source in [source for source, where in self.shards.items() if where == shard]:
                    while (message := self._holdings.due(source)) is not None:
                        await self._send(shard, message)
                pauses.reset()
            except Fenced as error:  # another process serves this shard; our journal will say so
                log.warning("shard %d refuses what this process sends: %s", shard, error)
                await asyncio.sleep(RETRIES.max_seconds)
            except PenstockError as error:
                log.debug("shard %d does not take releases: %s", shard, error)
                await asyncio.sleep(pauses.next())
            else:
                await wanted.wait()

    async def _send(self, shard: int, message: Advance | Unsubscribe) -> None:
        fields = dataclasses.asdict(message)
        if isinstance(message, Advance):
            await self._ask(shard, "advance", msgspec.convert(fields, AdvanceIn), Done)
        else:
            await self._ask(shard, "unsubscribe", msgspec.convert(fields, UnsubscribeFrom), Done)
        self._holdings.answered(message)

    # Followers.

    def refresh(self) -> None:
        """Follow what the pipelines read now."""
        if not self.shards:
            return
        state = self._keeper.state
        for name in [*self._pipelines]:
            if not self._is_current(state, name):
                self._end(self._pipelines.pop(name))
        for name, pipeline in state.pipelines.items():
            sources = pipeline.sources & self.shards.keys()
            if sources and name not in self._pipelines and _is_resolved(pipeline):
                self._pipelines[name] = self._begin(name, pipeline, sources)
                for source in sources:
                    self.changed(source)

    def _is_current(self, state: State, name: str) -> bool:
        """Whether its followers have what the pipeline needs: a second input may start before the first."""
        pipeline, found = state.pipelines.get(name), self._pipelines[name]
        if pipeline is None or pipeline.incarnation != found.incarnation or not _is_resolved(pipeline):
            return False
        if pipeline.sources & self.shards.keys() != found.followers.keys():
            return False
        positions = pipeline.segments(pipeline.planned)
        windows = {name: window for one in found.followers.values() for name, window in one.windows.items()}
        return all(window.base <= positions.get(name, 0) for name, window in windows.items())

    def _begin(self, name: str, pipeline: Pipeline, sources: Iterable[str]) -> _Followed:
        planned = pipeline.segments(pipeline.planned)
        try:
            written = self.watermarks.written(name, pipeline)
        except Damaged:  # recovery reports it, and continues without the table
            written = Written(StreamTable(), planned)
        is_new = self.watermarks.is_recovered(name, pipeline)
        starts = planned if is_new else written.offsets
        followers = {}
        for source in sorted(sources):
            own = {each: at for each, at in starts.items() if source_of(each) == source}
            is_known = source in written.table.sources if not is_new else self.watermarks.knows(name, source)
            followers[source] = Follower(
                self._holdings.shard,
                source,
                pipeline.incarnation,
                own,
                {each: at for each, at in planned.items() if source_of(each) == source},
                needs_opening=not is_known and any(own.values()) and all(e.startswith(CONNECTOR_PREFIX) for e in own),
                budget=self._budget,
            )
        found = _Followed(pipeline.incarnation, self._local, followers)
        found.view = PlacedView(self._local, followers, self.shards, self._rows_end, found.room.set)
        for source, follower in followers.items():
            work = partial(self._follow, follower, self.shards[source], found.room)
            found.tasks[source] = self._supervisor.run(f"{name} follows {source}", work)
        return found

    def _end(self, found: _Followed) -> None:
        for task in found.tasks.values():
            task.cancel()
        for follower in found.followers.values():
            follower.close()

    async def _follow(self, follower: Follower, shard: int, room: asyncio.Event) -> None:
        pauses = Pauses(RETRIES)
        while True:
            room.clear()
            request = follower.request(FOLLOW_MS, self.clock_wanted(follower.source))
            if request is None:
                await room.wait()
                continue
            try:
                reply = await self._ask(shard, "follow", request, Followed, FOLLOW_MS / 1000)
            except PenstockError as error:
                follower.lost(str(error))
                await asyncio.sleep(pauses.next())
            else:
                follower.take(reply)
                pauses.reset()
            self._ring()


def _is_resolved(pipeline: Pipeline) -> bool:
    return all(spec.resolved for spec in pipeline.inputs.values())


def _subscribe_to(message: Subscribe, starting: Starting) -> SubscribeTo:
    return SubscribeTo(
        home=message.home,
        term=message.term,
        number=message.number,
        source=message.source,
        pipeline=message.pipeline,
        starting=place_of(starting),
    )


def _of(source: str, starting: Starting) -> Starting:
    """The part of a starting position that concerns one source."""
    if not isinstance(starting, AtSegments):
        return starting
    return AtSegments({name: at for name, at in starting.segments.items() if source_of(name) == source})
