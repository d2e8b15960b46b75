"""Routes for declarations about sources: watermarks of their streams, and that a source has ended for good."""

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from penstock.core.errors import PenstockError, RequestError
from penstock.ingest.declarations import Declarations
from penstock.worker.coordinator_routes import failure
from penstock.worker.json_body import Body, read_body

_U64_MAX = 2**64 - 1


class Declared(Protocol):
    """What the routes need of a worker."""

    def declarations(self) -> Declarations: ...


def routes(worker: Declared) -> list[Route]:
    async def watermark(name: str, body: Body) -> Any:
        stream, after = body.optional("stream", body.get), body.optional("after", body.get)
        if stream is not None and not isinstance(stream, str):
            stream = _number("stream", stream, 0, _U64_MAX)
        if after is not None:
            after = _number("after", after, 0, _U64_MAX)
        time_us = _number("time_us", body.get("time_us"), -(2**63), 2**63 - 1)
        return {"streams": await worker.declarations().watermark(name, time_us, stream, after)}

    async def end(name: str, _: Body) -> Any:
        await worker.declarations().end(name)
        return {}

    return [_route("/sources/{name}/watermark", watermark), _route("/sources/{name}/end", end)]


def _number(key: str, value: object, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise RequestError(f"{key!r} is {value!r:.100}, not a whole number from {least} to {most}")
    return value


def _route(path: str, handler: Callable[[str, Body], Awaitable[Any]]) -> Route:
    async def handle(request: Request) -> Response:
        try:
            return JSONResponse(await handler(request.path_params["name"], await read_body(request)))
        except PenstockError as error:
            return failure(error)

    return Route(path, handle, methods=["POST"])
