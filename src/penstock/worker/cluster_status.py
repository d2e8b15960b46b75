"""The status of a whole cluster, for a host: that of all shards, put together."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import msgspec
from msgspec import inspect
from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from penstock.bucket.counted_bucket import BucketCounts, per_month
from penstock.client.coordinator.connection import Connection
from penstock.client.credentials import https_context, parse_worker
from penstock.core.errors import PenstockError, RequestError, Unavailable
from penstock.protocol.api.cluster import ClusterStatus, Place
from penstock.protocol.api.status import ApplicationStatus, BucketStatus, ShardStatus, WorkerStatus
from penstock.worker.directory import HTTP

_STATUS_SECONDS_MAX = 3.0
"""A process that does not answer by then is left out, and named."""

SHARD_LABEL = "shard"
_RATE = "_per_second"
"""How the name of a rate ends."""

_WORKER_STATUS = msgspec.json.Decoder(WorkerStatus)
"""Made here, in one thread: msgspec analyses a type when it first decodes it, and crashes if several threads do so at
the same time.
"""

S = TypeVar("S", bound=msgspec.Struct)


# Putting structs together: numbers are added, lists joined.


def combined(structs: Sequence[S], kind: type[S]) -> S:
    """Numbers and rates are added, of times the longest counts; lists and maps are joined; of texts the first one
    counts.
    """
    if not structs:
        return cast("S", _empty(inspect.type_info(kind)))
    values = {field.name: [getattr(one, field.name) for one in structs] for field in msgspec.structs.fields(kind)}
    return kind(**{name: sum(found) if name.endswith(_RATE) else _joined(found) for name, found in values.items()})


def _joined(values: list[Any]) -> Any:
    known = [value for value in values if value is not None]
    if not known:
        return None
    match known[0]:
        case bool():
            return any(known)
        case int():
            return sum(known)
        case float():
            return max(known)
        case msgspec.Struct():
            return combined(known, type(known[0]))
        case Mapping():
            return {key: _added(key, known) for one in known for key in one}
        case str():
            return next((value for value in known if value), "")
        case Sequence():
            return [value for one in known for value in one]
        case _:
            return known[0]


def _added(key: str, maps: Sequence[Mapping[str, Any]]) -> Any:
    """Counts are added; of anything else, one shard has it."""
    values = [one[key] for one in maps if key in one]
    return sum(values) if all(isinstance(value, int) for value in values) else values[-1]


def _empty(kind: inspect.Type) -> Any:
    match kind:
        case inspect.StructType(cls=cls, fields=fields):
            return cls(**{one.name: _empty(one.type) for one in fields if one.required})
        case inspect.UnionType(includes_none=True):
            return None
        case inspect.IntType():
            return 0
        case inspect.FloatType():
            return 0.0
        case inspect.BoolType():
            return False
        case inspect.StrType():
            return ""
        case inspect.DictType():
            return {}
        case _:
            return []


# Asking all shards.


async def cluster_worker_status(cluster: ClusterStatus, token: str, *, is_tls: bool) -> WorkerStatus:
    """Everything that the shards have, and which shard has what."""
    places = cluster.shards
    found = await asyncio.gather(*(asyncio.to_thread(_status, one, token, is_tls) for one in places))
    statuses = [one for one in found if isinstance(one, WorkerStatus)]
    whole = combined(statuses, WorkerStatus)
    shards = [_shard(place, one) for place, one in zip(places, found, strict=True)]
    problems = [f"shard {one.shard}: {problem}" for one in shards for problem in one.problems]
    return msgspec.structs.replace(whole, shards=shards, problems=problems, application=_application(statuses))


def with_requests(bucket: BucketStatus | None, own: BucketCounts) -> BucketStatus | None:
    """With those that the host itself makes, for its record and as the leader. Other hosts report theirs."""
    if bucket is None:
        return None
    rate = bucket.requests_per_second + own.requests_per_second
    return msgspec.structs.replace(
        bucket,
        requests=dict(Counter(bucket.requests) + Counter(own.requests)),
        failures=dict(Counter(bucket.failures) + Counter(own.failures)),
        bytes_read=bucket.bytes_read + own.bytes_read,
        bytes_written=bucket.bytes_written + own.bytes_written,
        requests_per_second=round(rate, 2),
        requests_per_month=per_month(rate),
    )


def _application(statuses: Sequence[WorkerStatus]) -> ApplicationStatus | None:
    """That of the shard which has one, or else of any: the others say that nothing is deployed."""
    found = [one.application for one in statuses if one.application is not None]
    return max(found, key=lambda one: (bool(one.reason), one.revision), default=None)


async def ask_shards(cluster: ClusterStatus, token: str, path: str, *, is_tls: bool) -> list[Any]:
    """What the processes of all shards reply; those that do not answer are left out."""
    found = await asyncio.gather(*(asyncio.to_thread(_reply, one, token, path, is_tls) for one in cluster.shards))
    return [msgspec.json.decode(one) for one in found if isinstance(one, bytes)]


# What a host does for its own processes, or for those of all shards.


def shards_of(cluster: ClusterStatus, host: str) -> list[Place]:
    return [one for one in cluster.shards if one.host == host]


async def host_metrics(own: Iterable[Metric], places: Sequence[Place], token: str, *, is_tls: bool) -> bytes:
    """The host's, and those of its shards' processes with a label `shard`. A process that does not answer is left out;
    `up` of a scrape is the host's.
    """
    found = await asyncio.gather(*(asyncio.to_thread(_reply, one, token, "/metrics", is_tls) for one in places))
    texts = {place.shard: text.decode() for place, text in zip(places, found, strict=True) if isinstance(text, bytes)}
    return await asyncio.to_thread(merged_metrics, list(own), texts)


def merged_metrics(own: Sequence[Metric], shards: Mapping[int, str]) -> bytes:
    """In Prometheus's text format, in which everything of a name stands together."""
    families = {one.name: one for one in own}
    for shard, text in shards.items():
        for family in text_string_to_metric_families(text):
            known = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            known.samples += [one._replace(labels={**one.labels, SHARD_LABEL: str(shard)}) for one in family.samples]
    return generate_latest(cast("CollectorRegistry", _Families([*families.values()])))


@dataclass(frozen=True, slots=True)
class _Families:
    """What `generate_latest` needs of a registry."""

    families: Sequence[Metric]

    def collect(self) -> Sequence[Metric]:
        return self.families


async def post_to_shards(
    path: str, requests: Sequence[tuple[Place, msgspec.Struct]], token: str, *, is_tls: bool
) -> None:
    """To each its own request. Raises Unavailable if a process does not answer, and what the first one that refuses its
    request replies; the others have theirs.
    """
    found = await asyncio.gather(
        *(asyncio.to_thread(_reply, place, token, path, is_tls, msgspec.json.encode(body)) for place, body in requests)
    )
    replies = [(place.shard, reply) for (place, _), reply in zip(requests, found, strict=True)]
    for _, reply in replies:
        if isinstance(reply, RequestError):
            raise reply
    if missing := [f"shard {shard}: {why}" for shard, why in replies if not isinstance(why, bytes)]:
        raise Unavailable(f"not for all shards: {'; '.join(missing)}", "Try again in some seconds.")


def _status(place: Place, token: str, is_tls: bool) -> WorkerStatus | str:
    found = _reply(place, token, "/status", is_tls)
    try:
        return _WORKER_STATUS.decode(found) if isinstance(found, bytes) else str(found)
    except msgspec.MsgspecError as error:
        return f"its process is of another version: {error}"


def _reply(place: Place, token: str, path: str, is_tls: bool, body: bytes | None = None) -> bytes | PenstockError:
    """The reply of its owner, its refusal (RequestError), or why there is none. With a body it is a POST."""
    where = place.addresses.get(HTTP, "")
    if not where:
        return Unavailable("no worker serves it now")
    address, _ = parse_worker(where)
    connection = Connection(address, _STATUS_SECONDS_MAX, https_context(address.host) if is_tls else None, token)
    try:
        return connection.ask("GET" if body is None else "POST", path, body)
    except RequestError as error:
        return error
    except PenstockError as error:
        return Unavailable(f"its process at {where} does not answer: {error}")
    finally:
        connection.close()


def _shard(place: Place, found: WorkerStatus | str) -> ShardStatus:
    is_there = isinstance(found, WorkerStatus)
    return ShardStatus(
        shard=place.shard,
        worker=place.owner,
        host=place.host,
        addresses=place.addresses,
        sources=sorted(found.sources) if isinstance(found, WorkerStatus) else [],
        pipelines=[one.name for one in found.pipelines] if isinstance(found, WorkerStatus) else [],
        problems=list(found.problems) if isinstance(found, WorkerStatus) else [found],
        is_served=is_there,
    )
