"""Where things are in the cluster: the shard of a source, a pipeline or the application, and who serves that shard."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from random import randrange
from typing import ParamSpec, TypeVar

from penstock.bucket.objects import Bucket
from penstock.cluster.places import APPLICATION, Kind, Places, Thing
from penstock.cluster.records import ShardRecord, WorkerRecord, read_record, shard_key, worker_key
from penstock.coordinator.shards import ShardAddress
from penstock.core.errors import BucketFailed, RequestError, Unavailable
from penstock.ingest.settings import DeclaredSource
from penstock.protocol.stored.names import (
    DEAD_LETTERS_SUFFIX,
    OUTPUT_PREFIX,
    STAGING_PREFIX,
    SYSTEM_PREFIX,
    Form,
    Source,
    is_of_pravega,
    kind_of,
    partition_of,
)
from penstock.worker import declared_sources
from penstock.worker.declared_sources import Declaration, Version

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

CONNECTOR, SEGMENT, HTTP = "connector", "segment", "http"
CONTROLLER = "controller"
"""The names of a worker's ports in its record."""

CONTROLLER_PLACE = APPLICATION
"""The controller for Pravega's clients, and all their segments and tables, are in the shard of the application, whose
pipelines read and write them there.
"""

_TURNS_MAX = 10_000
"""Sources with several partitions whose turns are remembered. If there are more, they begin somewhere again."""

_FRESH_SECONDS = 0.5
"""For so long the owner of a shard is remembered: programs that come back at once cost no requests."""


def thing_of(source: str) -> Thing | None:
    """What decides the place of this source, as `Source.parse` takes it. None: every shard has its own. A source's
    dead letters are where the source is. Raises RequestError.
    """
    parsed = Source.parse(source)
    if parsed.form is Form.OUTPUT:
        return Thing(Kind.PIPELINE, parsed.name.partition("/")[0])
    if parsed.form is Form.SEGMENT:
        return Thing(Kind.SEGMENT, parsed.name)
    if parsed.form is Form.PRAVEGA:
        return CONTROLLER_PLACE
    if parsed.name.startswith(SYSTEM_PREFIX):
        return None
    name, number = partition_of(parsed.name.removesuffix(DEAD_LETTERS_SUFFIX))
    return Thing(Kind.SOURCE, name, number)


def thing_of_segment(segment: str) -> Thing | None:
    """What decides the place of this segment. None: every shard has its own."""
    for prefix in (OUTPUT_PREFIX, STAGING_PREFIX):
        if segment.startswith(prefix):
            return Thing(Kind.PIPELINE, segment.removeprefix(prefix).partition("/")[0])
    if is_of_pravega(segment):
        return CONTROLLER_PLACE
    try:
        return thing_of(kind_of(segment).source)
    except RequestError:
        return None


class Directory:
    """Implements ShardDirectory of the coordinator. A host has one as well: it has no shard of its own."""

    def __init__(self, bucket: Bucket, shard: int | None = None, *, is_tls: bool = False) -> None:
        self.places = Places(bucket, shard)
        self.declared: Mapping[str, int] = {}
        """How many partitions sources get with their place (--partitions); others get one."""
        self._contradicted: dict[str, str] = {}
        self.secret = ""
        """Known once the bucket has answered."""
        self._bucket = bucket
        self._shard = shard
        self._is_tls = is_tls
        self._found: dict[int, tuple[float, Mapping[str, str] | None]] = {}
        self._turns: dict[str, int] = {}

    @property
    def shard(self) -> int:
        assert self._shard is not None, "a host has none"
        return self._shard

    def is_own(self, shard: int) -> bool:
        return shard == self._shard

    # Places.

    async def shard_of(self, source: str) -> int:
        """Raises RequestError for what is not a source, Unavailable if the bucket does not answer."""
        thing = thing_of(source)
        return self.shard if thing is None else await self.place(thing)

    async def place(self, thing: Thing, wanted: int | None = None) -> int:
        """The shard of the thing, which gets a place if it has none. Raises Unavailable, and RequestError for a
        partition that does not exist, or more than there can be.
        """
        known = self.places.known(thing)
        if known is not None:
            return known
        if thing.kind is not Kind.SOURCE or thing.partition:
            return await _asked(self.places.get, thing, wanted)
        return (await self._placed(thing, wanted))[0]

    async def _placed(self, thing: Thing, wanted: int | None = None) -> tuple[int, ...]:
        found = await _asked(self.places.partitions, thing, self.declared.get(thing.name, 1), wanted)
        self._compare(thing.name, len(found))
        return found

    def _compare(self, source: str, count: int) -> None:
        """What a command line says about a source that has its place already changes nothing: people must know."""
        declared = self.declared.get(source, count)
        if declared != count and source not in self._contradicted:
            self._contradicted[source] = (
                f"source {source!r} has {count} {'partition' if count == 1 else 'partitions'}, not {declared} "
                f"(--partitions): their number never changes. Write --partitions {source}={count}, or use another name"
            )
            log.warning("%s", self._contradicted[source])

    async def check_declared(self) -> None:
        """Compare with the places of sources that have one. Raises Unavailable."""
        for source in self.declared:
            await self.placed_partitions(source)

    @property
    def problems(self) -> list[str]:
        return [*self._contradicted.values()]

    async def partitions(self, source: str) -> tuple[int, ...]:
        """The shards of the source's partitions: one for most. A source without a place gets one. Raises Unavailable,
        and RequestError for what is not a source.
        """
        thing = thing_of(source)
        if thing is None:
            return (self.shard,)
        if thing.kind is not Kind.SOURCE or thing.partition:
            return (await self.place(thing),)
        known = self.places.known_partitions(thing)
        if known is not None:
            return known
        return await self._placed(thing)

    async def placed_partitions(self, source: str) -> tuple[int, ...]:
        """As `partitions`; empty for a source without a place."""
        thing = thing_of(source)
        if thing is None or thing.kind is not Kind.SOURCE or thing.partition:
            return await self.partitions(source)
        known = self.places.known_partitions(thing)
        if known is None:
            known = await _asked(self.places.find_partitions, thing)
            if known:
                self._compare(thing.name, len(known))
        return known

    def turn(self, source: str) -> int:
        """Grows by one with every call for a source."""
        if source not in self._turns and len(self._turns) >= _TURNS_MAX:
            self._turns.clear()
        self._turns[source] = self._turns.get(source, randrange(_TURNS_MAX)) + 1
        return self._turns[source]

    async def claim_partitions(self, source: str, count: int, wanted: int) -> tuple[int, ...]:
        """Like `partitions`, for a source that an application declares with so many, the first one in this shard."""
        thing = Thing(Kind.SOURCE, source)
        return await _asked(self.places.partitions, thing, count, wanted)

    async def check_count(self, source: str, count: int) -> None:
        """Whether `claim_partitions` could place the source. Raises like that."""
        await _asked(self.places.check_count, Thing(Kind.SOURCE, source), count)

    async def placed(self, thing: Thing) -> int | None:
        """As `place`; None for what has none. Raises Unavailable."""
        known = self.places.known(thing)
        return known if known is not None else await _asked(self.places.find, thing)

    async def published_sources(self) -> list[str]:
        return await _asked(declared_sources.published, self._bucket)

    async def publish_source(self, declaration: Declaration, version: Version) -> None:
        """All partitions of the source get these settings. Raises Unavailable and TakenOver."""
        await _asked(declared_sources.publish, self._bucket, declaration, version)

    async def withdraw_source(self, source: str, version: Version) -> None:
        await _asked(declared_sources.withdraw, self._bucket, source, version)

    async def declared_source(self, source: str, quota_bytes: int | None) -> DeclaredSource | None:
        """What an application has declared; None: nothing. Raises Unavailable, Damaged."""
        return await _asked(declared_sources.read, self._bucket, source, quota_bytes)

    async def connector_of(self, shard: int) -> str:
        """Where programs reach the process that serves the shard; "" if no worker does. Raises Unavailable."""
        return (await self.addresses(shard) or {}).get(CONNECTOR, "")

    async def likely(self, thing: Thing) -> int:
        """The shard of the thing, or the one in which it would be placed. Raises Unavailable."""
        known = self.places.known(thing)
        return known if known is not None else await _asked(self.places.likely, thing)

    # Addresses.

    async def addresses(self, shard: int) -> Mapping[str, str] | None:
        """By port: where the owner of the shard listens; None if no worker owns it. Raises Unavailable."""
        now = time.monotonic()
        if shard in self._found and now - self._found[shard][0] < _FRESH_SECONDS:
            return self._found[shard][1]
        found = await _asked(self._read, shard)
        self._found[shard] = time.monotonic(), found
        return found

    def _read(self, shard: int) -> Mapping[str, str] | None:
        place = read_record(self._bucket, shard_key(shard), ShardRecord)
        if place is None:
            return None
        owner = read_record(self._bucket, worker_key(place[0].owner), WorkerRecord)
        return None if owner is None or owner[0].has_ended else owner[0].addresses

    async def find(self, shard: int) -> ShardAddress | None:
        found = await self.addresses(shard)
        if found is None or HTTP not in found or SEGMENT not in found:
            return None
        return ShardAddress(f"https://{found[HTTP]}" if self._is_tls else found[HTTP], found[SEGMENT])

    async def segment_elsewhere(self, segment: str) -> str:
        """The segment address of the process that has this segment; "" if it would be here. Raises Unavailable."""
        thing = thing_of_segment(segment)
        if thing is None or self.is_own(shard := await self.likely(thing)):
            return ""
        return (await self.addresses(shard) or {}).get(SEGMENT, "")

    async def claim_segment(self, segment: str) -> str:
        """A segment is about to be created here, and has its place here from now on: "". Otherwise, the segment address
        of the process where its place is. Raises Unavailable.
        """
        thing = thing_of_segment(segment)
        if thing is None or not (thing.kind is Kind.SEGMENT or thing == CONTROLLER_PLACE):
            return ""
        wanted = self.shard if thing.kind is Kind.SEGMENT else None
        if self.is_own(shard := await self.place(thing, wanted)):
            return ""
        found = await self.addresses(shard)
        if found is None or SEGMENT not in found:
            raise Unavailable(f"no worker serves shard {shard} now, which has segment {segment!r}")
        return found[SEGMENT]

    def url(self, address: str) -> str:
        """Of an HTTP port of this cluster."""
        return f"{'https' if self._is_tls else 'http'}://{address}"


async def _asked(call: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    try:
        return await asyncio.to_thread(call, *arguments, **named)
    except BucketFailed as error:
        raise Unavailable(f"the object store does not answer: {error}", error.hint) from error
