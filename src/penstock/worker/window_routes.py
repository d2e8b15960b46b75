"""The route over which the tasks of window operators report what their state holds."""

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from penstock.coordinator.window_reports import BucketNumbers
from penstock.core.errors import PenstockError
from penstock.worker.coordinator_routes import Coordinated, failure
from penstock.worker.json_body import Body, read_body

_NUMBERS = ("bucket", "open_windows", "keys", "state_bytes", "late_kept", "late_dropped")


def routes(worker: Coordinated) -> list[Route]:
    async def report(request: Request) -> Response:
        try:
            body = await read_body(request)
            worker.coordinator().windows.report(
                request.path_params["name"],
                body.optional("generation", body.number),
                body.text("operator"),
                body.number("epoch"),
                [_numbers(Body(one)) for one in body.items("buckets")],
            )
            return JSONResponse({})
        except PenstockError as error:
            return failure(error)

    return [Route("/pipelines/{name}/windows", report, methods=["POST"])]


def _numbers(body: Body) -> BucketNumbers:
    numbers: dict[str, Any] = {name: body.number(name) for name in _NUMBERS}
    waiting = body.optional("waiting", body.number) or 0  # a driver of an older version does not say it
    times: dict[str, Any] = {name: body.optional(name, body.integer) for name in ("first_end", "next_time")}
    return BucketNumbers(**numbers, waiting=waiting, **times)
