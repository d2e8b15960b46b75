"""The routes that the shard processes of a cluster use among themselves, with the cluster's secret."""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from starlette.routing import Route

from penstock.access.principals import Role
from penstock.coordinator.sharing import Sharing
from penstock.protocol.api import shards as api
from penstock.protocol.api.pipelines import SegmentOffsets
from penstock.worker.routes import Routed, post

R = TypeVar("R")

_BODY_BYTES_MAX = 4 << 20
"""A cut of 1,000 segments takes a fraction of it."""


def routes(worker: Routed) -> list[Route]:
    def shard(what: str, kind: type[R], handler: Callable[[Sharing, R], Awaitable[Any]]) -> Route:
        async def handle(_: str, body: R) -> Any:
            return await handler(worker.coordinator().sharing, body)

        return post(f"/shard/{what}", kind, handle, role=Role.SHARD, body_bytes_max=_BODY_BYTES_MAX)

    async def subscribe(sharing: Sharing, body: api.SubscribeTo) -> SegmentOffsets:
        return SegmentOffsets(await sharing.subscribe(body))

    async def resolve(sharing: Sharing, body: api.ResolveIn) -> SegmentOffsets:
        return SegmentOffsets(await sharing.resolve(body))

    async def cut(sharing: Sharing, body: api.CutIn) -> SegmentOffsets:
        return SegmentOffsets(await sharing.cut(body))

    async def split(sharing: Sharing, body: api.SplitIn) -> Any:
        return await sharing.split(body)

    async def rows(sharing: Sharing, body: api.RowsIn) -> api.EndOffset:
        return api.EndOffset(await sharing.rows_end(body))

    async def event(_: Sharing, body: api.EventIn) -> api.EndOffset:
        return api.EndOffset(await worker.coordinator().burials.event_end(body.segment, body.offset))

    return [
        shard("claims", api.Claims, lambda _, body: worker.partitions().claims(body)),
        shard("held", api.HeldBy, lambda _, body: worker.partitions().held(body)),
        shard("declared", api.Declared, lambda _, body: worker.partitions().declared(body)),
        shard("subscribe", api.SubscribeTo, subscribe),
        shard("advance", api.AdvanceIn, lambda sharing, body: sharing.advance(body)),
        shard("unsubscribe", api.UnsubscribeFrom, lambda sharing, body: sharing.unsubscribe(body)),
        shard("follow", api.Follow, lambda sharing, body: sharing.follow(body)),
        shard("resolve", api.ResolveIn, resolve),
        shard("cut", api.CutIn, cut),
        shard("split", api.SplitIn, split),
        shard("rows", api.RowsIn, rows),
        shard("event", api.EventIn, event),
    ]
