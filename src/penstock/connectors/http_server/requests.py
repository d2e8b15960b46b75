"""Requests as they are taken: which of them, how large, and what of them goes along with their events."""

import asyncio
from http import HTTPStatus as Status
from typing import TYPE_CHECKING, Any

from starlette.requests import Request

from penstock.connectors.http_server.exchange import Answer, says

if TYPE_CHECKING:
    from penstock.connectors.http_server.connector import HttpServerOptions

_PRIVATE = frozenset({"authorization", "cookie", "proxy-authorization", "x-api-key", "x-auth-token"})
"""Headers that are not stored: whoever may read the events need not be the client."""


class RefusedRequest(Exception):
    """Nothing of it is stored, or it is not known what becomes of it; the answer says which."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer)
        self.answer = answer


def route(request: Request, options: "HttpServerOptions") -> None:
    """Raises RefusedRequest for a path or a method that is not taken."""
    path = request.scope["path"]
    wanted, is_prefix = options.path.removesuffix("*"), options.path.endswith("*")
    if not (path.startswith(wanted) if is_prefix else path == wanted):
        raise RefusedRequest(says(Status.NOT_FOUND, "there is nothing here"))
    if request.method not in options.methods:
        allow = ("allow", ", ".join(options.methods))
        raise RefusedRequest(says(Status.METHOD_NOT_ALLOWED, f"{request.method} is not taken", allow))


async def read_body(request: Request, options: "HttpServerOptions") -> bytes:
    """All of it. Raises RefusedRequest for one that is too large or too slow, ClientDisconnect."""
    told = request.headers.get("content-length", "")
    if told.isdigit() and int(told) > options.body_bytes_max:
        raise RefusedRequest(_too_large(options))
    body = bytearray()
    try:
        async with asyncio.timeout(options.timeout):
            async for chunk in request.stream():
                body += chunk
                if len(body) > options.body_bytes_max:
                    raise RefusedRequest(_too_large(options))
    except TimeoutError:
        text = f"the body has not come within {options.timeout:g} s"
        raise RefusedRequest(says(Status.REQUEST_TIMEOUT, text, closes=True)) from None
    return bytes(body)


def _too_large(options: "HttpServerOptions") -> Answer:
    """The rest of the body is read and dropped: who is still sending would not see an answer to a closed connection."""
    return says(Status.REQUEST_ENTITY_TOO_LARGE, f"more than {options.body_bytes_max} bytes (body_bytes_max)")


def metadata_of(request: Request) -> dict[str, Any]:
    """What goes along with the request's events."""
    headers = {name: value for name, value in request.headers.items() if name not in _PRIVATE}
    found = {"method": request.method, "path": request.scope["path"], "headers": headers}
    if query := request.scope["query_string"]:
        found["query"] = query.decode("latin-1")
    if content_type := headers.get("content-type"):
        found["content_type"] = content_type
    return found
