"""The routes of the application: what is deployed, its drain, and operators' pauses."""

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from penstock.application.runtime import Hosting
from penstock.core.errors import PenstockError, RequestError
from penstock.protocol.api.deployment import Deployment
from penstock.worker.coordinator_routes import failure
from penstock.worker.json_body import Body, read_body

_U64_MAX = 2**64 - 1


class Hosted(Protocol):
    """What the routes need of a worker."""

    def hosting(self) -> Hosting:
        """Raises Damaged if there is none, because a ledger or what was deployed cannot be read."""
        ...


def routes(worker: Hosted) -> list[Route]:
    async def shown(request: Request) -> Any:
        hosting = worker.hosting()
        if "driver" in request.query_params:
            hosting.driver.heard()
        return hosting.report()

    async def answer(request: Request) -> Any:
        body = await read_body(request)
        worker.hosting().driver.answer(body.number("number"), body.texts("refusals"))

    async def leave(request: Request) -> Any:
        await read_body(request)
        worker.hosting().driver.left()

    async def apply(request: Request) -> Any:
        body = await read_body(request)
        return await worker.hosting().apply(_deployment(body), body.optional("name", body.text) or "")

    async def drain(request: Request) -> Any:
        await read_body(request)
        return await worker.hosting().drain()

    async def pause(request: Request) -> Any:
        return await worker.hosting().pause(*_stream(await read_body(request)))

    async def resume(request: Request) -> Any:
        return await worker.hosting().resume(*_stream(await read_body(request)))

    return [
        _route("/application", shown, "GET"),
        _route("/application", apply, "PUT"),
        _route("/application/answer", answer, "POST"),
        _route("/application/leave", leave, "POST"),
        _route("/drain", drain, "POST"),
        _route("/pause", pause, "POST"),
        _route("/resume", resume, "POST"),
    ]


def _route(path: str, handler: Callable[[Request], Awaitable[Any]], method: str) -> Route:
    async def handle(request: Request) -> Response:
        try:
            return JSONResponse(await handler(request) or {})
        except PenstockError as error:
            return failure(error)

    return Route(path, handle, methods=[method])


def _deployment(body: Body) -> Deployment:
    """Raises RequestError for what no `penstock apply` of this version sends."""
    try:
        return Deployment.from_json(body.map("deployment"))
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        raise RequestError(f"this is no deployment: {error!r:.300}", "Send what penstock apply sends.") from None


def _stream(body: Body) -> tuple[str, str | int | None]:
    """The connector, and a stream of it by its name or its id, or all of them."""
    stream = body.optional("stream", body.get)
    if stream is not None and not isinstance(stream, str) and (type(stream) is not int or not 0 <= stream <= _U64_MAX):
        raise RequestError(f"'stream' is {stream!r:.100}, neither a name nor an id")
    return body.text("connector"), stream
