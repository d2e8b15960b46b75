"""The OpenAPI document describes every route that a worker serves, and its schemas fit what a worker replies."""

import inspect
import json
import re
from collections.abc import Callable, Iterator
from typing import Any, cast

import jsonschema
import pytest

from penstock.access.principals import Role
from penstock.worker import host_routes, http, openapi
from penstock.worker.api_route import ApiRoute
from penstock.worker.openapi import described_routes, document
from tests.support import http as client
from tests.support.open_stream import open_stream
from tests.support.running_worker import RunningWorker, running_worker

DOCUMENT: dict[str, Any] = json.loads(json.dumps(document()))
ROUTES = described_routes()
HOST = host_routes.api_routes(cast("host_routes.ServedHost", cast("Any", openapi.Unserved())))
METHODS = ("get", "post", "put")


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in DOCUMENT["paths"].items():
        for method, operation in item.items():
            yield path, method, operation


def references(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        if isinstance(found := part.get("$ref"), str):
            yield found
        part = [*part.values()]
    for one in part if isinstance(part, list) else ():
        yield from references(one)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningWorker]:
    with running_worker(tmp_path_factory.mktemp("openapi") / "data") as one:
        yield one


def test_it_has_the_routes_that_a_worker_serves(served: RunningWorker) -> None:
    """Of the very application that a worker starts. Only a host of a cluster has the others."""
    routes = http.application(served.worker, served.worker.settings).routes
    assert all(isinstance(route, ApiRoute) for route in routes)
    worker = {route.key for route in routes if isinstance(route, ApiRoute)}
    assert {(path, method.upper()) for path, method, _ in operations()} == worker | {route.key for route in HOST}
    assert {route.key for route in HOST} - worker == {("/cluster/move", "POST"), ("/cluster/rebalance", "POST")}


def test_a_host_asks_for_the_same_as_its_shards() -> None:
    described = {route.key: route for route in ROUTES}
    for route in HOST:
        other = described[route.key].contract
        contract = route.contract
        assert (contract.role, contract.is_filtered, contract.body, contract.names_more) == (
            other.role,
            other.is_filtered,
            other.body,
            other.names_more,
        ), route.key


def test_it_is_an_openapi_document() -> None:
    assert DOCUMENT["openapi"] == "3.1.0"
    assert {*DOCUMENT} == {"openapi", "info", "tags", "paths", "components"}
    identifiers = [operation["operationId"] for _, _, operation in operations()]
    assert len({*identifiers}) == len(identifiers) > 70
    for path, method, operation in operations():
        where = f"{method} {path}"
        assert method in METHODS, where
        assert operation["tags"][0] in {tag["name"] for tag in DOCUMENT["tags"]}, where
        assert ("requestBody" in operation) == (method != "get"), where
        assert operation["responses"]["200"]["content"], where
        in_path = {one["name"] for one in operation.get("parameters", ()) if one["in"] == "path"}
        assert in_path == {*re.findall(r"{(\w+)}", path)}, where
        roles = [role for one in operation["security"] for names in one.values() for role in names]
        assert {*roles} <= {role.value for role in Role}, where


def test_every_reference_in_it_leads_somewhere() -> None:
    found = {*references(DOCUMENT)}
    assert len(found) > 100
    for reference in found:
        part = DOCUMENT
        for name in reference.removeprefix("#/").split("/"):
            part = part[name]


def test_its_schemas_are_valid() -> None:
    jsonschema.Draft202012Validator.check_schema({"$defs": DOCUMENT["components"]["schemas"]})


def source_of(handler: Callable[..., Any]) -> str:
    """With that of the functions of its module that it calls."""
    source = inspect.getsource(handler)
    functions = inspect.getmembers(inspect.getmodule(handler), inspect.isfunction)
    called = [function for name, function in functions if re.search(rf"(?<![\w.]){name}\(", source)]
    return "".join([source, *map(inspect.getsource, called)])


def test_every_route_says_what_it_does_takes_and_replies() -> None:
    for route in ROUTES:
        contract, where = route.contract, f"{route.method} {route.path}"
        assert re.fullmatch(r"[A-Z].*\.", contract.summary), f"{where}: write a docstring for the handler"
        assert contract.reply_type is not Any, f"{where}: annotate the handler with what it returns"
        source = source_of(contract.handler)
        assert ("query_params" in source) == bool(contract.query), f"{where}: list the parameters of the query"
        assert all(f'"{one.name}"' in source for one in contract.query), where


def validator(operation: dict[str, Any], status: int) -> jsonschema.Draft202012Validator:
    found = operation["responses"][str(status)]
    while "$ref" in found:
        found = DOCUMENT["components"]["responses"][found["$ref"].rpartition("/")[2]]
    return jsonschema.Draft202012Validator(
        {**found["content"]["application/json"]["schema"], "components": DOCUMENT["components"]}
    )


def test_replies_of_a_worker_fit_their_schemas(served: RunningWorker) -> None:
    """Of all GET requests that need nothing but a source, and of one that is refused."""
    with open_stream(served.ports["connector"], "orders", "till"):
        for path, method, operation in operations():
            if method != "get" or path in ("/metrics", "/cluster") or path.startswith("/pipelines/"):
                continue
            if "{at}" in path:
                continue
            status, body = client.ask(served.ports["http"], "GET", path.replace("{name}", "orders"))
            assert status == 200, (path, body)
            validator(operation, status).validate(json.loads(body))
    status, body = client.ask(served.ports["http"], "POST", "/pipelines/counts/park", {"epoch": -1})
    assert status == 400
    validator(DOCUMENT["paths"]["/pipelines/{name}/park"]["post"], status).validate(json.loads(body))
