"""The source shard's side of pipelines of other shards: what they ask of the sources that are here."""

import asyncio
import zlib
from array import array
from typing import NamedTuple

from penstock.coordinator.follower import NO_BLOCK, arrival_of, packed
from penstock.coordinator.ledger import stopping
from penstock.coordinator.machine.commands import Advance, Subscribe, Unsubscribe
from penstock.coordinator.machine.state import source_of
from penstock.coordinator.open_windows import NO_DEMAND, Demand
from penstock.coordinator.readers import Readers, parts_of
from penstock.coordinator.records import normalised
from penstock.coordinator.settings import Connectors
from penstock.coordinator.shards import ShardDirectory
from penstock.coordinator.shared import Shared
from penstock.coordinator.views import LocalView
from penstock.core.errors import RequestError, Unavailable
from penstock.core.types import Buffer
from penstock.protocol.api.pipelines import Segments, Splits, starting_of
from penstock.protocol.api.shards import (
    RECORD_BYTES,
    AdvanceIn,
    CutIn,
    Follow,
    Followed,
    FollowedSegment,
    Opening,
    OutputRows,
    ResolveIn,
    RowsIn,
    SplitIn,
    SubscribeTo,
    UnsubscribeFrom,
)
from penstock.protocol.stored.names import Form, Source

ROWS_MAX = 10_000
"""Watermarks of an output in one reply: a reader that is farther behind gets the others when it has read these."""

DEMAND_SECONDS = 15.0
"""How long the demand of another shard's windows counts: three of its requests."""


class _Demanded(NamedTuple):
    demand: Demand
    until: float


class Sharing:
    """Nothing here trusts that the caller serves its shard: a process that was replaced is refused by its term, and
    reads only what is durable.
    """

    def __init__(
        self,
        shared: Shared,
        readers: Readers,
        local: LocalView,
        connectors: Connectors,
        directory: ShardDirectory | None,
    ) -> None:
        self._shared = shared
        self._readers = readers
        self._local = local
        self._connectors = connectors
        self._directory = directory
        self._demands: dict[tuple[int, str], _Demanded] = {}

    async def _check(self, *sources: str) -> None:
        """Raises Unavailable if this process does not serve the shard of one of them: it may just have moved."""
        if self._directory is None:
            raise RequestError("this worker is not in a cluster")
        for source in sources:
            shard = await self._directory.shard_of(source)
            if shard != self._directory.shard:
                raise Unavailable(f"source {source!r} is in shard {shard}; this one is {self._directory.shard}")

    # Subscriptions.

    async def subscribe(self, request: SubscribeTo) -> dict[str, int]:
        """The offsets of the starting position: what follows them is retained when this returns."""
        (source,) = normalised([request.source])
        await self._check(source)
        found = await self._shared.sources.resolve([source], starting_of(request.starting))
        # What was removed while the position was searched is not there: no await comes between this and the entry.
        found = {name: max(at, self._shared.records.begin(name)) for name, at in found.items()}
        head = (request.home, request.term, request.number, source)
        self._shared.keeper.commit(Subscribe(*head, request.pipeline, found))
        await self._shared.keeper.settled()
        return found

    async def advance(self, request: AdvanceIn) -> None:
        await self._check(request.source)
        head = (request.home, request.term, request.number, request.source)
        self._shared.keeper.commit(Advance(*head, tuple(request.pipelines), dict(request.done), dict(request.floor)))
        await self._shared.keeper.settled()

    async def unsubscribe(self, request: UnsubscribeFrom) -> None:
        await self._check(request.source)
        self._shared.keeper.commit(Unsubscribe(request.home, request.term, request.number, request.source))
        await self._shared.keeper.settled()

    # Following.

    async def follow(self, request: Follow) -> Followed:
        """Everything in the reply is durable."""
        await self._check(request.source)
        shared, loop = self._shared, asyncio.get_running_loop()
        deadline = loop.time() + min(request.wait_ms / 1000, shared.settings.wait_seconds_max)
        demand = Demand(frozenset(request.clock.next_times), request.clock.is_unknown)
        self._demands[request.home, request.source] = _Demanded(demand, loop.time() + DEMAND_SECONDS)
        while True:
            seen = shared.news.count
            reply = await self._followed(request)
            is_new = reply.version != request.known or any(one.block.ends for one in reply.segments.values())
            if is_new or loop.time() >= deadline:
                await shared.keeper.settled()
                return reply
            if shared.news.is_over:  # a reply would be followed by the next request at once
                raise stopping()
            await shared.news.wait(seen, deadline - loop.time())

    async def _followed(self, request: Follow) -> Followed:
        source, records = Source.parse(request.source), self._shared.records
        names = self._shared.sources.segments(request.source)
        # First, so that it is not newer than the ends: a cut must not get the watermark of output that it lacks.
        is_connector = source.form is Form.CONNECTOR
        opening = None if request.opening_at is None else await self._opening(request.source, request.opening_at)
        ends = {name: records.end(name) for name in names}
        output = self._output(source, request.reads_at, ends) if source.form is Form.OUTPUT else None
        grown = [name for name in names if ends[name] > request.after.get(name, 0)]
        segments = {}
        for name in names:
            start, share = request.after.get(name, 0), request.bytes_max // max(1, len(grown))
            segments[name] = await self._segment(name, start, ends[name], share if name in grown else 0)
        disorder = self._connectors.disorder_us(source.name) if is_connector else 0
        has_finished = is_connector and self._connectors.has_finished(source.name)
        return Followed(
            version=_version([(name, one.begin) for name, one in segments.items()], disorder, has_finished, output),
            segments=segments,
            disorder_us=disorder,
            has_finished=has_finished,
            times=self._connectors.times(source.name) if is_connector else None,
            opening=opening,
            output=output,
        )

    async def _segment(self, name: str, start: int, end: int, bytes_max: int) -> FollowedSegment:
        """At least one record if there is any, and bytes are allowed."""
        records = self._shared.records
        start = max(start, records.begin(name))
        if not bytes_max or start >= end:
            return FollowedSegment(records.begin(name), end, start, NO_BLOCK, records.number(name))
        found: list[tuple[int, int, Buffer]] = []
        size = 0
        async for heads in records.heads(name, start, end):
            found += [(at, arrival_of(head), head) for at, head in heads.found if at <= end]
            size += sum(RECORD_BYTES + len(head) for _, head in heads.found)
            if size >= bytes_max:
                break
        return FollowedSegment(records.begin(name), end, start, packed(found), records.number(name))

    async def _opening(self, source: str, at: Segments) -> Opening:
        found = await self._local.open_at(source, at)
        return Opening(array("Q", found.streams).tobytes(), sorted(found.finished), found.segments)

    def _output(self, source: Source, reads_at: Segments, ends: dict[str, int]) -> OutputRows:
        """The watermarks from the reader's position on. Where it has no more room for them the segment ends for it."""
        producer, _, port = source.name.partition("/")
        pipeline, segment = self._shared.state.pipelines.get(producer), str(source.segment)
        at, outputs = reads_at.get(segment, 0), self._shared.watermarks.outputs
        durable, found = ends.get(segment, 0), outputs.rows(producer, pipeline, port, at)
        rows = [(end, watermark) for end, watermark in found if end <= durable]
        if len(rows) > ROWS_MAX:
            rows = rows[:ROWS_MAX]
            ends[segment] = rows[-1][0]
        return OutputRows(pipeline is not None, rows)

    def demands(self) -> dict[str, Demand]:
        """What the windows of other shards wait for, by source."""
        now, found = asyncio.get_running_loop().time(), dict[str, Demand]()
        self._demands = {key: one for key, one in self._demands.items() if one.until > now}
        for (_, source), one in self._demands.items():
            found[source] = found.get(source, NO_DEMAND) | one.demand
        return found

    # Questions about what is here.

    async def resolve(self, request: ResolveIn) -> dict[str, int]:
        names = normalised(request.sources)
        await self._check(*names)
        return await self._shared.sources.resolve(names, starting_of(request.position))

    async def cut(self, request: CutIn) -> dict[str, int]:
        names = normalised(request.sources)
        await self._check(*names)
        wait_seconds, upto = request.wait_ms / 1000, request.upto
        return await self._readers.cut_here(
            names, request.start, upto=upto, limits=request.limits, wait_seconds=wait_seconds
        )

    async def split(self, request: SplitIn) -> Splits:
        await self._check(*{source_of(one.segment) for one in request.ranges})  # what is elsewhere is not lost
        return parts_of(self._shared.records, request.ranges, request.part_bytes, skip_lost=request.skip_lost)

    async def rows_end(self, request: RowsIn) -> int:
        await self._check(source_of(request.segment))
        return await self._shared.records.rows_end(request.segment, request.start, request.end, request.rows_max)


def _version(*values: object) -> str:
    return f"{zlib.crc32(repr(values).encode()):08x}"
