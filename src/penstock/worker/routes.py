"""What all routes of the worker share: bodies read within a limit into typed requests, replies and errors as JSON."""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from typing import Any, Protocol, TypeVar

import msgspec
import starlette.requests
from starlette.responses import Response
from starlette.types import Scope

from penstock.access.principals import Principal, Role
from penstock.application.runtime import Runtime
from penstock.connectors.permissions import Permissions
from penstock.coordinator.service import Coordinator
from penstock.core.connection_limits import address_of
from penstock.core.errors import ConditionFailed, Fenced, Forbidden, PenstockError, RequestError, Unauthenticated
from penstock.core.logs import audit_log, quoted
from penstock.delivery.rewind import Consent
from penstock.ingest.declarations import Declarations
from penstock.ingest.partitions import OtherPartition, PartitionedSources
from penstock.protocol.api.codec import NUMBER_MAX, Done, Failure, decode_request, encode
from penstock.protocol.api.dead_letters import EventPlace
from penstock.protocol.api.delivery import EpochStatus, Rewound, SinkSpec, SinkStatus, TableDdl
from penstock.protocol.api.deployment import Deployment
from penstock.protocol.api.history import SourceStreams
from penstock.protocol.stored.names import check_pipeline_name
from penstock.worker.api_route import ApiRoute, Contract, Query

BODY_BYTES_MAX = 1 << 20
"""Largest body: a cut of 10,000 segments takes half of it."""

MERGE_BYTES_MAX = 64 << 20
"""Largest body of a merge: 100,000 staged segments take 10 MB."""

_DECODED_IN_LOOP_BYTES_MAX = 64 << 10
"""Larger bodies are decoded in a thread: the loop serves others meanwhile."""

PRINCIPAL = "penstock.principal"
"""The key of a request's principal in its scope."""

REFUSAL = "penstock.refusal"
"""The key of the error in the scope of a request that was refused for lack of access."""

STATUS: list[tuple[type[PenstockError], HTTPStatus]] = [
    (Unauthenticated, HTTPStatus.UNAUTHORIZED),
    (Forbidden, HTTPStatus.FORBIDDEN),
    (Fenced, HTTPStatus.CONFLICT),
    (ConditionFailed, HTTPStatus.CONFLICT),
    (RequestError, HTTPStatus.BAD_REQUEST),
    (PenstockError, HTTPStatus.SERVICE_UNAVAILABLE),
]

_PLACES_MAX = 20
"""Events that a line of the log names."""

_DIGITS_MAX = len(str(NUMBER_MAX))
"""Python does not parse numbers of some thousands of digits."""

R = TypeVar("R")


class DeliveryService(Protocol):
    """What the routes need from delivery. Each raises PipelineError for what its ledger does not have."""

    async def unbind(self, pipeline: str, sink: str) -> None: ...

    def epochs(self, pipeline: str) -> Sequence[EpochStatus]: ...

    def retry(self, pipeline: str) -> None: ...

    async def park(self, pipeline: str, epoch: int, sink: str | None) -> None: ...

    async def rewind(self, name: str, key: str, consent: Consent) -> Rewound: ...

    def sinks(self) -> Sequence[SinkStatus]: ...

    async def ddl(self, name: str, key: str) -> TableDdl: ...


class Routed(Protocol):
    """What the routes need from a worker."""

    def coordinator(self) -> Coordinator:
        """Raises Damaged if there is none, because its ledger cannot be read."""
        ...

    def stream_names(self, source: str, ids: Sequence[int]) -> list[str]: ...

    def source_streams(self, source: str, limit: int) -> SourceStreams:
        """Raises RequestError for an unknown source."""
        ...

    def delivery(self) -> DeliveryService:
        """Raises Damaged if there is none, because the ledger cannot be read."""
        ...

    async def bind(self, pipeline: str, sinks: Mapping[str, SinkSpec]) -> None:
        """As delivery does, after the application has unbound those of its sinks that move."""
        ...

    async def drop(self, pipeline: str, *, outputs: bool) -> None:
        """As the coordinator does, and the application forgets it."""
        ...

    async def apply(self, deployment: Deployment, name: str, expected_revision: int | None) -> Any:
        """As the runtime does. Raises RequestError for what is in another shard than the application, and Damaged as
        `runtime` does.
        """
        ...

    def declarations(self) -> Declarations: ...

    def partitions(self) -> PartitionedSources:
        """Raises RequestError if the worker is not in a cluster, Damaged as `coordinator` does."""
        ...

    async def other_partitions(self, source: str) -> Sequence[OtherPartition]:
        """The partitions of a source that are in other shards: none for most sources. Raises Unavailable."""
        ...

    @property
    def permissions(self) -> Permissions: ...

    def application(self) -> Any:
        """What is deployed, as `Deployed`. Raises Damaged if a ledger cannot be read."""
        ...

    def runtime(self) -> Runtime:
        """Raises Damaged if there is none, because a ledger or what was deployed cannot be read."""
        ...


def principal_of(request: starlette.requests.Request) -> Principal:
    principal: Principal = request.scope[PRINCIPAL]
    return principal


def get(
    path: str,
    handler: Callable[[starlette.requests.Request], Awaitable[Any]],
    *,
    is_filtered: bool = False,
    query: Sequence[Query] = (),
    reply_type: Any = None,
    media: str = "application/json",
    text: str = "",
) -> ApiRoute:
    """The handler's result is the reply. A pipeline's name in the path is checked. Needs the role read on the name in
    the path, or on the worker as a whole; `is_filtered`: the handler leaves out what the principal may not read.

    The other arguments are for the route's contract.
    """

    async def handle(request: starlette.requests.Request) -> Response:
        try:
            _check_path(path, request)
            if not is_filtered:
                principal_of(request).check(Role.READ, request.path_params.get("name", ""))
            return reply(await handler(request))
        except PenstockError as error:
            return failure(error, request.scope)

    contract = Contract(
        handler=handler,
        role=Role.READ,
        is_filtered=is_filtered,
        reply=reply_type,
        media=media,
        query=query,
        text=text,
    )
    return ApiRoute(path, handle, "GET", contract)


def post(
    path: str,
    kind: type[R],
    handler: Callable[..., Awaitable[Any]],
    method: str = "POST",
    *,
    records_who: bool = False,
    role: Role = Role.DEPLOY,
    names: Callable[[R], Mapping[str, str]] | None = None,
    body_bytes_max: int = BODY_BYTES_MAX,
    is_audited: bool = False,
) -> ApiRoute:
    """The handler gets the name in the path, if there is one, and the body; with `records_who` also the name of the
    principal. Its result is the reply.

    Needs the role on the name in the path and on the `names` that the body has, each with what it is the name of; on
    the worker as a whole if there are neither. `is_audited`: people manage the worker with it, so it is logged.
    """
    is_named = "{name}" in path

    async def handle(request: starlette.requests.Request) -> Response:
        body: R | None = None
        try:
            _check_path(path, request)
            principal, name = principal_of(request), request.path_params.get("name", "")
            if is_named or names is None:
                principal.check(role, name)
            body = await _body(request, kind, body_bytes_max)
            for other, what in ({} if names is None else names(body)).items():
                principal.check(role, other, what)
            result = await (handler(name, body, principal.name) if records_who else handler(name, body))
        except PenstockError as error:
            if is_audited:
                _audit(request, body, logging.WARNING, f"refused: {error}")
            return failure(error, request.scope)
        if is_audited:
            _audit(request, body, logging.INFO, "done")
        return reply(result)

    contract = Contract(
        handler=handler, role=role, names_more=names is not None, body=kind, body_bytes_max=body_bytes_max
    )
    return ApiRoute(path, handle, method, contract)


def _audit(request: starlette.requests.Request, body: object, level: int, outcome: str) -> None:
    who, address = quoted(principal_of(request).name), address_of(request.scope["client"])
    what = f"{request.url.path}{_asked(body)}"
    audit_log.log(level, "%s from %s: %s %s: %s", who, address, request.method, what, outcome)


def _asked(body: object) -> str:
    """What was requested, such as ` sink="s" accept_gap`. Only the names of sinks and the places of events, and nothing
    else that is nested: a deployment is too long, and both may contain secrets.
    """
    texts: list[str] = []
    for name, value in msgspec.structs.asdict(body).items() if isinstance(body, msgspec.Struct) else ():
        match value:
            case None | False | "":
                pass
            case True:
                texts.append(f" {name}")
            case str():
                texts.append(f" {name}={quoted(value)}")
            case int():
                texts.append(f" {name}={value}")
            case Mapping() if name == "sinks":
                texts.append(f" {name}={quoted(', '.join(value))}")
            case [EventPlace(), *_]:
                more = f" and {len(value) - _PLACES_MAX} more" if len(value) > _PLACES_MAX else ""
                texts.append(f" {name}={quoted(', '.join(map(str, value[:_PLACES_MAX])))}{more}")
    return "".join(texts)


def reply(value: Any) -> Response:
    """A value that is already a response is sent as it is."""
    if isinstance(value, Response):
        return value
    return Response(encode(Done() if value is None else value), media_type="application/json")


def failure(error: PenstockError, scope: Scope) -> Response:
    if isinstance(error, Unauthenticated | Forbidden):
        scope[REFUSAL] = error
    status = next(status for kind, status in STATUS if isinstance(error, kind))
    body = Failure(error=str(error), hint=error.hint, kind=type(error).__name__)
    headers = {"WWW-Authenticate": "Bearer"} if status == HTTPStatus.UNAUTHORIZED else None
    return Response(encode(body), status_code=status, headers=headers, media_type="application/json")


def number_of(text: str, what: str) -> int:
    """A number in a path or a query. Raises RequestError."""
    if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX and int(text) <= NUMBER_MAX):
        raise RequestError(f"the {what} is {text!r:.100}, not a whole number from 0 to {NUMBER_MAX}")
    return int(text)


def _check_path(path: str, request: starlette.requests.Request) -> None:
    if path.startswith("/pipelines/"):
        check_pipeline_name(request.path_params["name"])


async def _body(request: starlette.requests.Request, kind: type[R], bytes_max: int) -> R:
    _check_type(request)
    owner = principal_of(request).name
    with request.app.state.bodies.one(bytes_max, owner) as one:
        one.announce(int(request.headers.get("content-length", 0)))  # h11 has checked that it is a number
        async for part in request.stream():
            one.add(part)
        data = one.joined()
        if len(data) <= _DECODED_IN_LOOP_BYTES_MAX:
            return decode_request(data, kind)
        decoded: R = await request.app.state.decoding.run(owner, partial(decode_request, data, kind))
        return decoded


def _check_type(request: starlette.requests.Request) -> None:
    """Raises RequestError unless the content type is JSON: a browser cannot send that without a preflight request."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise RequestError(
            f"the content type is {kind or 'missing'}", "Send JSON, with Content-Type: application/json."
        )
