"""The HTTP API as an OpenAPI 3.1 document, made of the routes that a worker serves and of the types of their bodies."""

import re
from collections.abc import Iterator, Mapping, Sequence
from http import HTTPStatus
from types import NoneType
from typing import Any, cast

import msgspec

import penstock
from penstock.core.sizes import format_size
from penstock.protocol.api.codec import Done, Failure
from penstock.protocol.api.status import Health
from penstock.worker import host_routes, http
from penstock.worker.api_route import ApiRoute, Subject
from penstock.worker.routes import STATUS

_ABOUT = """\
The HTTP API of a Penstock worker (--http-port). Bodies are JSON objects, with Content-Type: application/json; unknown
fields are refused. Bytes are in base64. In a cluster a worker may reply 307 with the address of the worker that has
what the request names.
"""


_PATH_TEXTS = {
    "name": "of the source, or of the pipeline",
    "sink": "the name of a sink",
    "port": "`err` or `late`",
    "at": "the offset at which a dead letter begins",
}

_PARAMETER = re.compile(r"{(\w+)}")


class Unserved:
    """Stands for a worker: the routes are described, and never served."""

    def __getattr__(self, name: str) -> Any:
        return None


def described_routes() -> list[ApiRoute]:
    """Those of a worker, and those that only a host of a cluster has, by subject."""
    unserved: Any = Unserved()
    routes = {route.key: route for route in host_routes.api_routes(cast("host_routes.ServedHost", unserved))}
    routes |= {route.key: route for route in http.api_routes(cast("http.Watched", unserved))}
    order = [*Subject]
    return sorted(routes.values(), key=lambda route: order.index(route.contract.subject))


def document() -> dict[str, Any]:
    routes = described_routes()
    schemas, components = _schemas(routes)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Penstock", "version": penstock.__version__, "description": _ABOUT},
        "tags": [{"name": one.value, "description": one.text} for one in Subject],
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": _SECURITY, "responses": _failures(schemas)},
    }


_SECURITY = {
    "token": {"type": "http", "scheme": "bearer", "description": "A token of the worker's access file."},
    "certificate": {"type": "mutualTLS", "description": "A client's certificate that the access file lists."},
}


def reply_of(route: ApiRoute) -> Any:
    """The type of its reply in JSON."""
    found = route.contract.reply_type
    return Done if found is NoneType else found


def _schemas(routes: Sequence[ApiRoute]) -> tuple[Mapping[Any, Any], dict[str, Any]]:
    """The schema of each type of a body or a parameter, and the named ones that these refer to."""
    types: list[Any] = [Failure]
    for route in routes:
        contract = route.contract
        types += [reply_of(route), *(one.kind for one in contract.query)]
        types += [] if contract.body is None else [contract.body]
    unique = [*dict.fromkeys(types)]
    found, components = msgspec.json.schema_components(unique, ref_template="#/components/schemas/{name}")
    return dict(zip(unique, found, strict=True)), components


def _operation(route: ApiRoute, schemas: Mapping[Any, Any]) -> dict[str, Any]:
    contract, role = route.contract, route.contract.role.value
    found: dict[str, Any] = {
        "operationId": _identifier(route),
        "tags": [contract.subject.value],
        "summary": contract.summary,
        "description": f"{contract.description}\n\nRole: {route.needs}.",
        "security": [{"token": [role]}, {"certificate": [role]}],
        "responses": _responses(route, schemas),
    }
    if route.path in http.OPEN_ON_LOOPBACK:
        found["security"].append({})
        found["description"] += " On loopback it needs no token."
    if parameters := [*_parameters(route, schemas)]:
        found["parameters"] = parameters
    if contract.body is not None:
        content = {"application/json": {"schema": schemas[contract.body]}}
        most = f"At most {format_size(contract.body_bytes_max)}."
        found["requestBody"] = {"required": True, "description": most, "content": content}
    return found


def _identifier(route: ApiRoute) -> str:
    words: list[str] = re.findall(r"\w+", route.path)
    return route.method.lower() + "".join(word[:1].upper() + word[1:] for word in words)


def _parameters(route: ApiRoute, schemas: Mapping[Any, Any]) -> Iterator[dict[str, Any]]:
    for name in _PARAMETER.findall(route.path):
        kind = {"type": "integer", "minimum": 0} if name == "at" else {"type": "string"}
        yield {"name": name, "in": "path", "required": True, "description": _PATH_TEXTS[name], "schema": kind}
    for one in route.contract.query:
        yield {"name": one.name, "in": "query", "description": one.text, "schema": schemas[one.kind]}


def _responses(route: ApiRoute, schemas: Mapping[Any, Any]) -> dict[str, Any]:
    kind = reply_of(route)
    content = {route.contract.media: {"schema": schemas[kind]}}
    found: dict[str, Any] = {str(status.value): {"$ref": _response(status)} for _, status in STATUS}
    found["200"] = {"description": "It succeeded.", "content": content}
    if kind is Health:
        found["503"] = {"description": "The worker is not in this state.", "content": content}
    return dict(sorted(found.items()))


def _response(status: HTTPStatus) -> str:
    return f"#/components/responses/{status.name}"


def _failures(schemas: Mapping[Any, Any]) -> dict[str, Any]:
    content = {"application/json": {"schema": schemas[Failure]}}
    return {status.name: {"description": f"{status.phrase}.", "content": content} for _, status in STATUS}
