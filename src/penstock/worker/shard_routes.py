"""The routes that the shard processes of a cluster use among themselves, with the cluster's secret."""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from penstock.access.principals import Role
from penstock.coordinator.sharing import Sharing
from penstock.protocol.api import shards as api
from penstock.protocol.api.pipelines import SegmentOffsets, Splits
from penstock.worker.api_route import ApiRoute, Subject, about
from penstock.worker.routes import Routed, post

R = TypeVar("R")

_BODY_BYTES_MAX = 4 << 20
"""A cut of 1,000 segments takes a fraction of it."""


def routes(worker: Routed) -> list[ApiRoute]:
    handlers = _Handlers(worker)
    return about(
        Subject.SHARDS,
        _shard("claims", api.Claims, handlers.claims),
        _shard("held", api.HeldBy, handlers.held),
        _shard("declared", api.Declared, handlers.declared),
        _shard("subscribe", api.SubscribeTo, handlers.subscribe),
        _shard("advance", api.AdvanceIn, handlers.advance),
        _shard("unsubscribe", api.UnsubscribeFrom, handlers.unsubscribe),
        _shard("follow", api.Follow, handlers.follow),
        _shard("resolve", api.ResolveIn, handlers.resolve),
        _shard("cut", api.CutIn, handlers.cut),
        _shard("split", api.SplitIn, handlers.split),
        _shard("rows", api.RowsIn, handlers.rows),
        _shard("event", api.EventIn, handlers.event),
    )


def _shard(what: str, kind: type[R], handler: Callable[[str, R], Awaitable[Any]]) -> ApiRoute:
    return post(f"/shard/{what}", kind, handler, role=Role.SHARD, body_bytes_max=_BODY_BYTES_MAX)


class _Handlers:
    def __init__(self, worker: Routed) -> None:
        self._worker = worker

    @property
    def _sharing(self) -> Sharing:
        """Raises Damaged, like everything that needs the ledger."""
        return self._worker.coordinator().sharing

    async def claims(self, _: str, body: api.Claims) -> api.ClaimsAnswered:
        """Claim streams for a partition of a source, or give them up, at the source's registry."""
        return await self._worker.partitions().claims(body)

    async def held(self, _: str, body: api.HeldBy) -> api.Held:
        """List the streams that a partition has claimed under older terms."""
        return await self._worker.partitions().held(body)

    async def declared(self, _: str, body: api.Declared) -> None:
        """Have a partition read again what the application declares about its source."""
        await self._worker.partitions().declared(body)

    async def subscribe(self, _: str, body: api.SubscribeTo) -> SegmentOffsets:
        """Retain a source, from some offsets on, for a pipeline of another shard."""
        return SegmentOffsets(await self._sharing.subscribe(body))

    async def advance(self, _: str, body: api.AdvanceIn) -> None:
        """Report how far the pipelines of another shard are in a source."""
        await self._sharing.advance(body)

    async def unsubscribe(self, _: str, body: api.UnsubscribeFrom) -> None:
        """Report that no pipeline of the other shard reads a source any more."""
        await self._sharing.unsubscribe(body)

    async def follow(self, _: str, body: api.Follow) -> api.Followed:
        """Wait for what is new in a source, and return the heads of its records."""
        return await self._sharing.follow(body)

    async def resolve(self, _: str, body: api.ResolveIn) -> SegmentOffsets:
        """Return the offsets of sources of this shard at a starting position."""
        return SegmentOffsets(await self._sharing.resolve(body))

    async def cut(self, _: str, body: api.CutIn) -> SegmentOffsets:
        """Return how far an epoch may read sources of this shard."""
        return SegmentOffsets(await self._sharing.cut(body))

    async def split(self, _: str, body: api.SplitIn) -> Splits:
        """Divide ranges of segments of this shard into parts of about equal size."""
        return await self._sharing.split(body)

    async def rows(self, _: str, body: api.RowsIn) -> api.EndOffset:
        """Return where so many rows of a segment end."""
        return api.EndOffset(await self._sharing.rows_end(body))

    async def event(self, _: str, body: api.EventIn) -> api.EndOffset:
        """Return where the event at an offset ends."""
        return api.EndOffset(await self._worker.coordinator().burials.event_end(body.segment, body.offset))
