"""The routes of delivery: sinks are bound to pipelines, and epochs on their way to them are seen, retried, parked."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Protocol

from starlette.requests import Request
from starlette.routing import Route

from penstock.connectors.urls import is_url, parse_sink
from penstock.coordinator.delivery_messages import EpochStatus, SinkSpec, SinkStatus, TableDdl
from penstock.core.errors import RequestError
from penstock.protocol.stored.names import check_pipeline_name
from penstock.worker.coordinator_routes import pipeline_route
from penstock.worker.json_body import Body, read_body


class DeliveryService(Protocol):
    """What the routes need of delivery. Each raises PipelineError for what its ledger does not have."""

    async def unbind(self, pipeline: str, sink: str) -> None: ...

    def epochs(self, pipeline: str) -> Sequence[EpochStatus]: ...

    def retry(self, pipeline: str) -> None: ...

    async def park(self, pipeline: str, epoch: int, sink: str | None) -> None: ...

    def sinks(self) -> Sequence[SinkStatus]: ...

    async def ddl(self, name: str, key: str) -> TableDdl: ...


class Delivering(Protocol):
    """What the routes need of a worker."""

    def delivery(self) -> DeliveryService:
        """Raises Damaged if there is none, because the ledger cannot be read."""
        ...

    async def bind(self, pipeline: str, sinks: Mapping[str, SinkSpec]) -> None:
        """As delivery does, after those of the application that move have made way."""
        ...


def routes(worker: Delivering) -> list[Route]:
    async def bind(name: str, request: Request) -> Any:
        sinks = sinks_of(await read_body(request))
        await worker.bind(name, sinks)
        return {}

    async def unbind(name: str, request: Request) -> Any:
        await worker.delivery().unbind(name, (await read_body(request)).text("sink"))
        return {}

    async def epochs(name: str, _: Request) -> Any:
        return {"epochs": [asdict(epoch) for epoch in worker.delivery().epochs(name)]}

    async def retry(name: str, request: Request) -> Any:
        await read_body(request)
        worker.delivery().retry(name)
        return {}

    async def park(name: str, request: Request) -> Any:
        body = await read_body(request)
        await worker.delivery().park(name, body.number("epoch"), body.optional("sink", body.text))
        return {}

    async def ddl(name: str, request: Request) -> Any:
        return asdict(await worker.delivery().ddl(name, request.path_params["sink"]))

    posted = {"bind": bind, "unbind": unbind, "retry": retry, "park": park}
    return [
        *(pipeline_route(f"/pipelines/{{name}}/{verb}", handler, "POST") for verb, handler in posted.items()),
        pipeline_route("/pipelines/{name}/epochs", epochs, "GET"),
        pipeline_route("/pipelines/{name}/sinks/{sink}/ddl", ddl, "GET"),
    ]


def sinks_of(body: Body) -> dict[str, SinkSpec]:
    """Raises RequestError with all that is wrong with any of them: then none is bound."""
    specs, mistakes = {}, []
    for name, given in body.map("sinks").items():
        try:
            specs[name] = _spec(name, Body(given))
        except RequestError as error:
            mistakes.append(error)
    if mistakes:
        hints = dict.fromkeys(error.hint for error in mistakes if error.hint)
        raise RequestError("\n".join(map(str, mistakes)), " ".join(hints))
    return specs


def _spec(name: str, body: Body) -> SinkSpec:
    check_pipeline_name(name, "sink")
    spec = SinkSpec(check_pipeline_name(body.text("port"), "port"), body.text("url"))
    if is_url(spec.url):  # a connector's name is delivery's to look up
        parse_sink(spec.url).check_installed()
    return spec
