"""The coordinator's routes: JSON to its calls, its answers and its errors to JSON."""

from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any, Protocol, cast, get_args

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from penstock.coordinator.messages import (
    InputOffset,
    InputSpec,
    Limits,
    LoadState,
    Range,
    Staged,
    segments_from_json,
    starting_from_json,
)
from penstock.coordinator.service import Coordinator
from penstock.core.errors import Fenced, PenstockError, RequestError
from penstock.protocol.stored.names import check_pipeline_name
from penstock.worker.json_body import Body, read_body

_STATUS: list[tuple[type[PenstockError], int]] = [(Fenced, 409), (RequestError, 400), (PenstockError, 503)]


class Coordinated(Protocol):
    """What the routes need of a worker."""

    def coordinator(self) -> Coordinator:
        """Raises Damaged if there is none, because its ledger cannot be read."""
        ...

    def stream_names(self, source: str, ids: list[int]) -> list[str]: ...


Handler = Callable[[str, Body], Awaitable[Any]]


def routes(worker: Coordinated) -> list[Route]:
    pipelines = _Pipelines(worker)
    readers = _Readers(worker)

    async def listed(_: Request) -> Response:
        try:
            return JSONResponse({"pipelines": [asdict(one) for one in worker.coordinator().pipelines()]})
        except PenstockError as error:
            return failure(error)

    return [
        Route("/pipelines", listed),
        Route("/pipelines/{name}/running", pipelines.running, methods=["GET"]),
        pipeline_route("/pipelines/{name}/batch", pipelines.batch, "GET"),
        pipeline_route("/pipelines/{name}/input", pipelines.stored_input, "GET"),
        *(_route(f"/pipelines/{{name}}/{verb}", handler) for verb, handler in pipelines.handlers.items()),
        _route("/sources/resolve", readers.resolve),
        _route("/sources/cut", readers.cut),
        _route("/sources/{name}/streams", readers.streams),
        _route("/splits", readers.splits),
        _route("/starting", pipelines.announce),
    ]


def _route(path: str, handler: Handler) -> Route:
    async def handle(request: Request) -> Response:
        try:
            body = await read_body(request)
            return JSONResponse(await handler(request.path_params.get("name", ""), body))
        except PenstockError as error:
            return failure(error)

    return Route(path, handle, methods=["POST"])


def pipeline_route(path: str, handler: Callable[[str, Request], Awaitable[Any]], method: str) -> Route:
    """For a pipeline's name in the path, checked, and whatever else the handler reads of the request."""

    async def handle(request: Request) -> Response:
        try:
            return JSONResponse(await handler(check_pipeline_name(request.path_params["name"]), request))
        except PenstockError as error:
            return failure(error)

    return Route(path, handle, methods=[method])


def failure(error: PenstockError) -> Response:
    """`kind` is the error's class in `penstock.core.errors`, from which the client makes it again."""
    status = next(status for kind, status in _STATUS if isinstance(error, kind))
    body = {"error": str(error), "hint": error.hint, "kind": type(error).__name__}
    return JSONResponse(body, status_code=status)


def _load_state(text: str) -> LoadState:
    if text in get_args(LoadState):
        return cast("LoadState", text)
    raise RequestError(f"{text!r} is not a state of a load", f"Give one of: {', '.join(get_args(LoadState))}.")


class _Pipelines:
    def __init__(self, worker: Coordinated) -> None:
        self._worker = worker
        self.handlers: dict[str, Handler] = {
            "start": self.start,
            "attach": self.attach,
            "initial": self.initial,
            "cut": self.cut,
            "reading": self.reading,
            "merge": self.merge,
            "abort": self.abort,
            "complete": self.complete,
            "describe": self.describe,
            "heartbeat": self.heartbeat,
            "reset": self.reset,
            "drop": self.drop,
        }

    async def start(self, name: str, body: Body) -> Any:
        inputs = {key: _input(Body(spec)) for key, spec in body.map("inputs").items()}
        started = await self._worker.coordinator().lifecycle.start(
            name,
            inputs,
            body.optional("outputs", body.texts),
            body.optional("limits", _limits(body)) or Limits(),
            fresh=body.optional("fresh", body.flag),
            request=body.text("request"),
        )
        return asdict(started)

    async def announce(self, _: str, body: Body) -> Any:
        given = Body(body.map("pipelines"))
        self._worker.coordinator().announce({name: given.texts(name) for name in body.map("pipelines")})
        return {}

    async def initial(self, name: str, body: Body) -> Any:
        lifecycle = self._worker.coordinator().lifecycle
        return (await lifecycle.initial(name, body.number("generation"), body.text("input"))).as_json()

    async def attach(self, name: str, body: Body) -> Any:
        await self._worker.coordinator().cuts.attach(
            name,
            body.number("generation"),
            body.text("input"),
            body.text("load"),
            body.texts("sources"),
            upto=body.optional("upto", lambda key: segments_from_json(body.map(key))),
        )
        return {}

    async def cut(self, name: str, body: Body) -> Any:
        cut = await self._worker.coordinator().cuts.cut(
            name,
            body.number("generation"),
            body.text("input"),
            InputOffset.from_json(body.map("start")),
            load=body.optional("load", body.text) or "",
            upto=body.optional("upto", lambda key: segments_from_json(body.map(key))),
            limits=body.optional("limits", _limits(body)),
            wait_seconds=(body.optional("wait_ms", body.number) or 0) / 1000,
            state=body.optional("state", lambda key: _load_state(body.text(key))),
        )
        return {"offset": cut.offset.as_json(), "held": cut.held}

    async def reading(self, name: str, body: Body) -> Any:
        start, end = InputOffset.from_json(body.map("start")), InputOffset.from_json(body.map("end"))
        cuts = self._worker.coordinator().cuts
        begin = await cuts.reading(name, body.number("generation"), body.text("input"), start, end)
        return {"segments": dict(begin)}

    async def running(self, request: Request) -> Response:
        try:
            generation = _number(request.query_params.get("generation"))
            running = self._worker.coordinator().cuts.running(request.path_params["name"], generation)
            return JSONResponse(asdict(running))
        except PenstockError as error:
            return failure(error)

    async def batch(self, name: str, _: Request) -> Any:
        return self._worker.coordinator().cuts.batch(name).as_json()

    async def stored_input(self, name: str, _: Request) -> Any:
        return asdict(self._worker.coordinator().lifecycle.stored_input(name))

    async def merge(self, name: str, body: Body) -> Any:
        staged = [_staged(Body(one)) for one in body.items("staged")]
        generation = body.optional("generation", body.number)
        return asdict(await self._worker.coordinator().merger.merge(name, generation, body.number("batch"), staged))

    async def abort(self, name: str, body: Body) -> Any:
        generation = body.optional("generation", body.number)
        await self._worker.coordinator().merger.abort(name, generation, body.number("batch"))
        return {}

    async def complete(self, name: str, body: Body) -> Any:
        await self._worker.coordinator().lifecycle.complete(name, body.number("generation"), body.number("epoch"))
        return {}

    async def describe(self, name: str, body: Body) -> Any:
        schemas = {port: _schema(fields) for port, fields in body.map("schemas").items()}
        await self._worker.coordinator().lifecycle.describe(name, body.number("generation"), schemas)
        return {}

    async def heartbeat(self, name: str, body: Body) -> Any:
        stopped, failed = (body.optional(flag, body.flag) or False for flag in ("stopped", "failed"))
        self._worker.coordinator().lifecycle.heartbeat(name, body.number("generation"), stopped=stopped, failed=failed)
        return {}

    async def reset(self, name: str, body: Body) -> Any:
        accept_partial = body.optional("accept_partial", body.flag) or False
        await self._worker.coordinator().lifecycle.reset(name, accept_partial=accept_partial)
        return {}

    async def drop(self, name: str, body: Body) -> Any:
        outputs = body.optional("outputs", body.flag) or False
        await self._worker.coordinator().lifecycle.drop(name, outputs=outputs)
        return {}


class _Readers:
    def __init__(self, worker: Coordinated) -> None:
        self._worker = worker

    async def resolve(self, _: str, body: Body) -> Any:
        position = starting_from_json(body.get("position"))
        return {"segments": await self._worker.coordinator().readers.resolve(body.texts("sources"), position)}

    async def cut(self, _: str, body: Body) -> Any:
        segments = await self._worker.coordinator().readers.cut(
            body.texts("sources"),
            segments_from_json(body.map("start")),
            upto=body.optional("upto", lambda key: segments_from_json(body.map(key))),
            limits=body.optional("limits", _limits(body)),
            wait_seconds=(body.optional("wait_ms", body.number) or 0) / 1000,
        )
        return {"segments": segments}

    async def splits(self, _: str, body: Body) -> Any:
        ranges = [Range.from_json(one) for one in body.items("ranges")]
        skip_lost = body.optional("skip_lost", body.flag) or False
        bytes_min = body.optional("bytes_min", body.number) or 0
        readers = self._worker.coordinator().readers
        found = readers.splits(ranges, body.number("parts"), bytes_min, skip_lost=skip_lost)
        return {"splits": [one.as_json() for one in found.splits], "lost": [one.as_json() for one in found.lost]}

    async def streams(self, name: str, body: Body) -> Any:
        ids = body.items("ids")
        if not all(type(one) is int for one in ids):
            raise RequestError("the ids are not all numbers")
        return {"names": self._worker.stream_names(name, ids)}


def _number(text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()):
        raise RequestError(f"the generation is {text!r:.100}, not a whole number")
    return int(text)


def _input(body: Body) -> InputSpec:
    return InputSpec(body.texts("sources"), starting_from_json(body.get("starting")))


def _schema(data: Any) -> list[tuple[str, str]]:
    match data:
        case [*pairs] if all(isinstance(one, list) and [*map(type, one)] == [str, str] for one in pairs):
            return [(name, kind) for name, kind in pairs]
    raise RequestError(f"{data!r:.100} is not a schema", "Give [[name, type], …].")


def _staged(body: Body) -> Staged:
    rows = body.optional("rows", body.number)
    return Staged(body.text("port"), body.text("segment"), body.number("length"), rows)


def _limits(body: Body) -> Callable[[str], Limits]:
    def limits(key: str) -> Limits:
        given = Body(body.map(key))
        return Limits(*(given.optional(name, given.positive) for name in ("bytes", "rows", "undelivered_bytes")))

    return limits
