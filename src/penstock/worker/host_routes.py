"""The HTTP side of a host: its own probes, the status of the whole cluster, and 307 to the process of a shard for
everything that names something.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Protocol
from urllib.parse import urlencode

import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

import penstock
from penstock.access.principals import Role
from penstock.access.refusals import Refusals
from penstock.bucket.counted_bucket import CountedBucket
from penstock.cluster.places import Kind, Thing
from penstock.core.errors import PenstockError, RequestError
from penstock.core.logs import LogLevel, set_log_level
from penstock.protocol.api.cluster import ClusterStatus, Drain, MoveShard, Place
from penstock.protocol.api.codec import Empty
from penstock.protocol.api.deployment import SetLogLevel
from penstock.protocol.api.history import WorkerHistory
from penstock.protocol.api.pipelines import Announce
from penstock.protocol.api.status import WorkerStatus
from penstock.protocol.stored.names import access_name, check_pipeline_name
from penstock.worker.api_route import ApiRoute, Subject, about
from penstock.worker.cluster_status import (
    ask_shards,
    cluster_worker_status,
    host_metrics,
    post_to_shards,
    shards_of,
    with_requests,
)
from penstock.worker.directory import HTTP, Directory, thing_of, thing_of_segment
from penstock.worker.history import joined
from penstock.worker.http import access_middleware, prepare, probe
from penstock.worker.http_redirects import HttpRedirects, nobody_serves, redirect
from penstock.worker.pipeline_routes import announced
from penstock.worker.routes import BODY_BYTES_MAX, failure, get, post, principal_of
from penstock.worker.settings import WorkerSettings
from penstock.worker.visibility import shown_principal, visible, visible_history

_PAGE = 1000


class ServedHost(Protocol):
    """What the routes need from a host."""

    registry: CollectorRegistry
    bucket: CountedBucket
    refusals: Refusals
    settings: WorkerSettings
    id: str
    worker: str
    """Its name in the cluster."""
    ports: dict[str, int]

    @property
    def pid(self) -> int: ...

    @property
    def uptime_seconds(self) -> float: ...

    @property
    def directory(self) -> Directory: ...

    def fatal_problems(self) -> list[str]: ...

    def ingest_problems(self) -> list[str]: ...

    def problems(self) -> list[str]: ...

    async def cluster(self) -> ClusterStatus: ...

    async def drain(self, request: Drain) -> None: ...

    async def move(self, request: MoveShard) -> None: ...

    async def rebalance(self) -> None: ...

    async def leader_address(self) -> str: ...

    async def address_of(self, worker: str) -> str: ...


def api_routes(host: ServedHost) -> list[ApiRoute]:
    """Those that a host serves itself. Only those that a worker has not are in the OpenAPI document."""
    routes = _HostRoutes(host)
    return [
        get("/live", probe(host.fatal_problems)),
        get("/ready", probe(host.ingest_problems)),
        get("/health", probe(host.problems)),
        get("/status", routes.status, is_filtered=True),
        get("/history", routes.history, is_filtered=True),
        get("/principal", shown_principal, is_filtered=True),
        get("/metrics", routes.metrics),
        get("/cluster", routes.cluster),
        post("/cluster/drain", Drain, routes.drain, role=Role.ADMIN, is_audited=True),
        *about(
            Subject.CLUSTER,
            post("/cluster/move", MoveShard, routes.move, role=Role.ADMIN, is_audited=True),
            post("/cluster/rebalance", Empty, routes.rebalance, role=Role.ADMIN, is_audited=True),
        ),
        post("/log-level", SetLogLevel, routes.log_level, role=Role.ADMIN, is_audited=True),
        post("/starting", Announce, routes.announce, names=announced),
        get("/pipelines", routes.pipelines, is_filtered=True),
        get("/segments", routes.segments, is_filtered=True),
    ]


def host_application(host: ServedHost, settings: WorkerSettings) -> Starlette:
    routes = _HostRoutes(host)
    app = Starlette(
        routes=[
            *api_routes(host),
            *(Route(path, routes.by_body, methods=["POST"]) for path in _BY_BODY),
            Route("/{path:path}", routes.refuse, methods=["GET", "POST", "PUT", "DELETE"]),
        ],
        middleware=[access_middleware(settings, host.refusals), Middleware(HttpRedirects, directory=host.directory)],
    )
    prepare(app, settings)
    return app


class _HostRoutes:
    def __init__(self, host: ServedHost) -> None:
        self._host = host

    async def status(self, request: Request) -> WorkerStatus:
        return visible(await self._status(), principal_of(request))

    async def _status(self) -> WorkerStatus:
        host, settings = self._host, self._host.settings
        is_tls = settings.http_ssl is not None
        found = await cluster_worker_status(await host.cluster(), host.directory.secret, is_tls=is_tls)
        bucket = with_requests(found.store.bucket, host.bucket.counts())
        return msgspec.structs.replace(
            found,
            store=msgspec.structs.replace(found.store, bucket=bucket),
            version=penstock.__version__,
            id=host.id,
            pid=host.pid,
            data=str(settings.data.resolve()),
            uptime_seconds=host.uptime_seconds,
            ports=host.ports,
            tls=is_tls,
            problems=[*host.problems(), *host.directory.problems, *found.problems],
        )

    async def history(self, request: Request) -> WorkerHistory:
        host = self._host
        is_tls = host.settings.http_ssl is not None
        path = f"/history?{request.url.query}"
        found = await ask_shards(await host.cluster(), host.directory.secret, path, is_tls=is_tls)
        histories = [msgspec.convert(one, WorkerHistory) for one in found]
        return visible_history(await asyncio.to_thread(joined, histories), principal_of(request))

    async def pipelines(self, request: Request) -> dict[str, Any]:
        found = visible(await self._status(), principal_of(request))
        return {"pipelines": found.pipelines}

    async def segments(self, request: Request) -> dict[str, Any]:
        """A page of all shards' segments, in the order of names. `after` is not another principal's name."""
        principal, query = principal_of(request), request.query_params
        prefix, after, has_more, shown = query.get("prefix", ""), query.get("after", ""), True, list[dict[str, Any]]()
        while has_more and not shown:
            page, has_more = await self._page(prefix, after)
            shown = [one for one in page if principal.may(Role.READ, access_name(one["name"]))]
            after = page[-1]["name"] if page else after
        return {"segments": shown, "more": has_more, "after": shown[-1]["name"] if shown else ""}

    async def _page(self, prefix: str, after: str) -> tuple[list[dict[str, Any]], bool]:
        """What follows `after`, whoever may read it, and whether there is more."""
        host, path = self._host, f"/segments?{urlencode({'prefix': prefix, 'after': after})}"
        is_tls = host.settings.http_ssl is not None
        pages = await ask_shards(await host.cluster(), host.directory.secret, path, is_tls=is_tls)
        page = sorted((one for page in pages for one in page["segments"]), key=lambda one: str(one["name"]))
        return page[:_PAGE], len(page) > _PAGE or (bool(page) and any(one["more"] for one in pages))

    async def metrics(self, _: Request) -> Response:
        host = self._host
        places = await self._own_shards()
        is_tls = host.settings.http_ssl is not None
        found = await host_metrics(host.registry.collect(), places, host.directory.secret, is_tls=is_tls)
        return Response(found, media_type=CONTENT_TYPE_LATEST)

    async def _own_shards(self) -> list[Place]:
        """None while the store does not answer: the host's own metrics are shown in any case."""
        try:
            return shards_of(await self._host.cluster(), self._host.worker)
        except PenstockError:
            return []

    async def cluster(self, _: Request) -> ClusterStatus:
        return await self._host.cluster()

    # Requests about the cluster, each by the host that it concerns.

    async def drain(self, _: str, body: Drain) -> Response | None:
        if address := await self._host.address_of(body.worker):
            return self._elsewhere(address, "/cluster/drain")
        await self._host.drain(body)
        return None

    async def move(self, _: str, body: MoveShard) -> Response | None:
        """Move a shard to another host. Returns at once; GET /cluster shows the progress."""
        if address := await self._host.leader_address():
            return self._elsewhere(address, "/cluster/move")
        await self._host.move(body)
        return None

    async def rebalance(self, _: str, __: Empty) -> Response | None:
        """Distribute the shards evenly over the hosts."""
        if address := await self._host.leader_address():
            return self._elsewhere(address, "/cluster/rebalance")
        await self._host.rebalance()
        return None

    def _elsewhere(self, address: str, path: str) -> Response:
        return redirect(self._host.directory, address, {"path": path})

    async def log_level(self, _: str, body: SetLogLevel) -> None:
        set_log_level(LogLevel(body.level))
        host = self._host
        places = shards_of(await host.cluster(), host.worker)
        await self._post("/log-level", [(place, body) for place in places])

    async def announce(self, _: str, body: Announce) -> None:
        """Each pipeline at its shard."""
        places = {one.shard: one for one in (await self._host.cluster()).shards}
        by_shard: dict[int, dict[str, Sequence[str]]] = {}
        for name, sources in body.pipelines.items():
            shard = await self._host.directory.likely(Thing(Kind.PIPELINE, check_pipeline_name(name)))
            if shard not in places:
                raise nobody_serves(shard)
            by_shard.setdefault(shard, {})[name] = sources
        await self._post("/starting", [(places[shard], Announce(pipelines=own)) for shard, own in by_shard.items()])

    async def _post(self, path: str, requests: Sequence[tuple[Place, msgspec.Struct]]) -> None:
        host = self._host
        await post_to_shards(path, requests, host.directory.secret, is_tls=host.settings.http_ssl is not None)

    # Everything else.

    async def by_body(self, request: Request) -> Response:
        """Requests that name sources or pipelines in their bodies go to the shard of the first one."""
        host = self._host
        try:
            thing = _BY_BODY[request.url.path](msgspec.json.decode(await _body(request)))
            if thing is None:
                raise RequestError("the request names nothing", "Name a source or a pipeline.")
            shard = await host.directory.likely(thing)
            found = await host.directory.addresses(shard)
            if found is None or HTTP not in found:
                raise nobody_serves(shard)
            return redirect(host.directory, found[HTTP], request.scope)
        except (msgspec.MsgspecError, LookupError, TypeError, AttributeError):
            return failure(RequestError("the request's body is not valid"), request.scope)
        except PenstockError as error:
            return failure(error, request.scope)

    async def refuse(self, request: Request) -> Response:
        try:
            shards = (await self._host.cluster()).shards
        except PenstockError as error:
            return failure(error, request.scope)
        shown = ", ".join(f"shard {one.shard}: {one.addresses[HTTP]}" for one in shards if HTTP in one.addresses)
        refusal = RequestError(
            f"this is a host of a cluster, which has no {request.url.path} of its own",
            f"Ask the process of a shard: --worker HOST:PORT ({shown})." if shown else "See penstock cluster status.",
        )
        return failure(refusal, request.scope)


async def _body(request: Request) -> bytes:
    data = b""
    async for part in request.stream():
        data += part
        if len(data) > BODY_BYTES_MAX:
            raise RequestError("the request's body is too large")
    return data


def _first_source(body: Any) -> Thing | None:
    return thing_of(body["sources"][0])


def _first_range(body: Any) -> Thing | None:
    first = body["ranges"][0]
    return thing_of_segment(first[0] if isinstance(first, list) else first["segment"])


def _first_segment(body: Any) -> Thing | None:
    return thing_of_segment(body["segments"][0])


_BY_BODY: dict[str, Callable[[Any], Thing | None]] = {
    "/sources/resolve": _first_source,
    "/sources/cut": _first_source,
    "/splits": _first_range,
    "/places": _first_segment,
}
