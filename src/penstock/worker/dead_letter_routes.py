"""The routes of letters: listed, shown, replayed."""

from dataclasses import asdict
from typing import Any, Protocol

from starlette.requests import Request
from starlette.routing import Route

from penstock.coordinator.service import Coordinator
from penstock.core.errors import RequestError
from penstock.protocol.stored.dead_letters import LETTER_PORTS
from penstock.worker.coordinator_routes import pipeline_route
from penstock.worker.json_body import read_body


class Lettered(Protocol):
    """What the routes need of a worker."""

    def coordinator(self) -> Coordinator:
        """Raises Damaged if there is none, because its ledger cannot be read."""
        ...


def routes(worker: Lettered) -> list[Route]:
    async def listed(name: str, request: Request) -> Any:
        query = request.query_params
        ports = [query["port"]] if "port" in query else list(LETTER_PORTS)
        limit, oldest = _number(query.get("limit", "0")), query.get("oldest") == "true"
        return (await worker.coordinator().letters.listed(name, ports, limit, oldest=oldest)).as_json()

    async def show(name: str, request: Request) -> Any:
        port, at = request.path_params["port"], _number(request.path_params["at"])
        return (await worker.coordinator().letters.show(name, port, at)).as_json()

    async def replay(name: str, request: Request) -> Any:
        body = await read_body(request)
        places = body.number("after"), body.number("upto")
        key = body.optional("input", body.text)
        return asdict(await worker.coordinator().letters.replay(name, body.text("port"), *places, key))

    return [
        pipeline_route("/pipelines/{name}/letters", listed, "GET"),
        pipeline_route("/pipelines/{name}/letters/{port}/{at}", show, "GET"),
        pipeline_route("/pipelines/{name}/replay", replay, "POST"),
    ]


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise RequestError(f"{text!r} is no number")
    return int(text)
