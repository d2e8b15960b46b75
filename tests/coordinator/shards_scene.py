"""Shards of a cluster in the test's own event loop: their requests go from coordinator to coordinator, as JSON."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import msgspec

from penstock.coordinator.settings import NO_CONNECTORS, Connectors
from penstock.coordinator.shards import ShardAddress
from penstock.core.errors import Unavailable
from penstock.protocol.api.codec import Done, decode_reply, decode_request, encode
from penstock.protocol.api.pipelines import SegmentOffsets
from penstock.protocol.api.shards import EndOffset
from tests.coordinator.scene import SETTINGS, Scene

T = TypeVar("T")


@dataclass
class StaticDirectory:
    """The places of sources never change; `addresses` may."""

    shard: int
    places: dict[str, int]
    addresses: dict[int, ShardAddress]
    secret: str = "secret"

    async def shard_of(self, source: str) -> int:
        return self.places[source]

    async def partitions(self, source: str) -> list[int]:
        return [await self.shard_of(source)]

    async def find(self, shard: int) -> ShardAddress | None:
        return self.addresses.get(shard)


@dataclass
class Cluster:
    """`away`: shards that do not answer. `loses`: whether the reply to a request is lost, after it had its effect."""

    places: dict[str, int]
    scenes: list[Scene] = field(default_factory=list)
    away: set[int] = field(default_factory=set)
    loses: Callable[[str], bool] = lambda _: False
    addresses: dict[int, ShardAddress] = field(default_factory=dict)

    async def add(self, connectors: Connectors = NO_CONNECTORS, **changes: Any) -> Scene:
        number = len(self.scenes)
        self.addresses[number] = ShardAddress(f"127.0.0.1:{7000 + number}", f"127.0.0.1:{8000 + number}")
        directory = StaticDirectory(number, self.places, self.addresses)
        settings = replace(SETTINGS, **changes)
        scene = Scene(settings=settings, connectors=connectors, directory=directory, wire=Wire(self))
        self.scenes.append(scene)
        await scene.open()
        return scene


@dataclass
class Wire:
    cluster: Cluster

    async def ask(
        self,
        shard: int,
        path: str,
        request: msgspec.Struct,
        reply: type[T],
        wait_seconds: float = 0.0,
    ) -> T:
        if shard in self.cluster.away:
            raise Unavailable(f"shard {shard} is away")
        sent = decode_request(encode(request), type(request))
        answer = await self._answer(self.cluster.scenes[shard], path.removeprefix("/shard/"), sent)
        if shard in self.cluster.away or self.cluster.loses(path):
            raise Unavailable("the reply is lost")
        return decode_reply(encode(answer), reply)

    async def _answer(self, scene: Scene, what: str, request: Any) -> Any:
        sharing = scene.coordinator.sharing
        match what:
            case "subscribe":
                return SegmentOffsets(await sharing.subscribe(request))
            case "resolve":
                return SegmentOffsets(await sharing.resolve(request))
            case "cut":
                return SegmentOffsets(await sharing.cut(request))
            case "split":
                return await sharing.split(request)
            case "rows":
                return EndOffset(await sharing.rows_end(request))
            case "event":
                return EndOffset(await scene.coordinator.burials.event_end(request.segment, request.offset))
            case "follow":
                return await sharing.follow(request)
        await getattr(sharing, what)(request)
        return Done()

    async def close(self) -> None:
        pass


@asynccontextmanager
async def shards(places: dict[str, int], count: int = 2, **changes: Any) -> AsyncIterator[Cluster]:
    cluster = Cluster(places)
    for _ in range(count):
        await cluster.add(**changes)
    try:
        yield cluster
    finally:
        cluster.away.clear()
        for scene in cluster.scenes:
            await scene.close()
