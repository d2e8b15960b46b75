"""Who may use the HTTP port.

A request's Host header must name this worker: otherwise a web page could reach it under a name of its own (DNS
rebinding). Requests of web pages, which have an Origin, are refused: the API is for programs. Then the client's token
or certificate identifies it. What it may do is checked by each route.
"""

import asyncio

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from penstock.access.file import AccessControl
from penstock.access.principals import Principal, Role
from penstock.access.refusals import Port, RefusalPace, Refusals
from penstock.core.address import Address, is_loopback
from penstock.core.connection_limits import address_of
from penstock.core.errors import Forbidden, RequestError, Unauthenticated
from penstock.worker.http_protocol import CERTIFICATE_NAMES, IS_REFUSED
from penstock.worker.routes import PRINCIPAL, REFUSAL, failure

OPEN_ON_LOOPBACK = frozenset({"/live", "/ready", "/health", "/metrics"})
"""Of a worker whose HTTP port only this machine reaches: for probes and monitoring."""

_PROBE = Principal("probe", Role.READ)


class HttpAccess:
    """In front of all routes: adds the principal to the scope, or refuses the request."""

    def __init__(
        self, app: ASGIApp, access: AccessControl, refusals: Refusals, host: str, allowed_hosts: frozenset[str]
    ) -> None:
        self._app = app
        self._access = access
        self._refusals = refusals
        self._hosts = frozenset(map(_normal, {host, *allowed_hosts}))
        self._pace = RefusalPace()
        self._open = OPEN_ON_LOOPBACK if is_loopback(host) else frozenset()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            scope[PRINCIPAL] = self._principal(scope)
        except (Unauthenticated, Forbidden) as error:
            scope[IS_REFUSED] = True
            await asyncio.sleep(self._pace.delay(asyncio.get_running_loop().time()))
            await failure(error, scope)(scope, receive, send)
        else:
            await self._app(scope, receive, send)
        if (refusal := scope.get(REFUSAL)) is not None:
            self._refusals.add(Port.HTTP, address_of(scope["client"]), refusal)

    def _principal(self, scope: Scope) -> Principal:
        headers = Headers(scope=scope)
        self._check_host(headers.get("host", ""), scope["server"])
        if "origin" in headers:
            raise Forbidden("requests from web pages are refused", "Send the request without an Origin header.")
        if scope["path"] in self._open:
            return _PROBE
        return self._access.principal(_bearer_token(headers), scope.get(CERTIFICATE_NAMES, ()))

    def _check_host(self, header: str, server: tuple[str, int | None] | None) -> None:
        """An address that the client has connected to is as good as a name of ours: it cannot be rebound."""
        host = _host(header)
        if is_loopback(host) or host in self._hosts or (server is not None and host == _normal(server[0])):
            return
        raise Forbidden(
            f"the Host header is {header!r:.100}, which is not a name of this worker",
            "Start the worker with --http-allow-host NAME if it is reached under this name.",
        )


def _host(header: str) -> str:
    """Empty for what is not a host."""
    try:
        return _normal(Address.parse(header).host)
    except RequestError:
        return ""


def _normal(host: str) -> str:
    return host.lower().rstrip(".")


def _bearer_token(headers: Headers) -> str:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""
