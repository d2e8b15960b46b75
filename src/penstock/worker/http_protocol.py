"""The server side of one HTTP connection: uvicorn's protocol, with the names in the client's certificate."""

import asyncio
from typing import TYPE_CHECKING, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from penstock.access.certificates import certificate_names

if TYPE_CHECKING:
    from uvicorn._types import ASGI3Application, ASGIReceiveCallable, ASGISendCallable, Scope
    from uvicorn.protocols.http.h11_impl import RequestResponseCycle

CERTIFICATE_NAMES = "penstock.certificate_names"
"""The key of these names in a request's scope."""

IS_REFUSED = "penstock.is_refused"
"""The key of a flag in a request's scope: its peer is a stranger, and waits for the refusal."""


class HttpProtocol(H11Protocol):
    """Every request's scope has the names in the certificate with which the client has proved its identity (mutual
    TLS); none without one.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.app = _with_names(self.app, certificate_names(transport.get_extra_info("peercert")))

    def send_400_response(self, msg: str) -> None:
        """Instead of the application's reply, if there is one to come. h11 raises for a second reply, and for text in a
        reply to HEAD: then the connection is closed without a reply.
        """
        cycle = cast("RequestResponseCycle | None", self.cycle)  # None before the first request
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
        try:
            super().send_400_response(msg)
        except h11.LocalProtocolError:
            self.transport.abort()


def _with_names(app: "ASGI3Application", names: tuple[str, ...]) -> "ASGI3Application":
    async def named(scope: "Scope", receive: "ASGIReceiveCallable", send: "ASGISendCallable") -> None:
        scope[CERTIFICATE_NAMES] = names  # type: ignore[literal-required]
        await app(scope, receive, send)

    return named
