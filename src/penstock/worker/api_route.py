"""What clients need to know about a route of the HTTP API. The OpenAPI document and the reference are made of it, so
every route of a worker is in them.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from inspect import cleandoc
from typing import Any, get_type_hints

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.access.principals import Role


class Subject(Enum):
    """The parts of the reference, in order."""

    WORKER = "The worker"
    APPLICATION = "The application"
    SOURCES = "Sources"
    PIPELINES = "Pipelines"
    SINKS = "Sinks"
    DEAD_LETTERS = "Dead letters"
    BACKUP = "Backups"
    CLUSTER = "The cluster"
    READERS = "Spark's readers"
    DRIVERS = "Spark's drivers"
    SHARDS = "Shards among themselves"

    @property
    def text(self) -> str:
        """Who may rely on it; empty: everybody."""
        return _ONLY_OURS.get(self, "")


_ONLY_OURS = {
    Subject.READERS: "For Penstock's own readers in Spark: any version may change them.",
    Subject.DRIVERS: "For Penstock's own drivers of pipelines: any version may change them.",
    Subject.SHARDS: "They need the cluster's secret, and any version may change them.",
}


@dataclass(frozen=True, slots=True)
class Query:
    """A parameter that may follow the path."""

    name: str
    text: str
    kind: Any = str


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """What a route takes and returns. The handler's docstring describes the route, and its annotation is the reply's
    type, unless these are given.
    """

    handler: Callable[..., Awaitable[Any]]
    role: Role
    is_filtered: bool = False
    """Every principal may ask; the reply leaves out what it may not read."""
    names_more: bool = False
    """The role is needed on names in the body."""
    body: type | None = None
    body_bytes_max: int = 0
    reply: Any = None
    media: str = "application/json"
    query: Sequence[Query] = ()
    text: str = ""
    subject: Subject = Subject.WORKER

    @property
    def description(self) -> str:
        return self.text or cleandoc(self.handler.__doc__ or "")

    @property
    def summary(self) -> str:
        """The first sentence."""
        first, end, _ = self.description.replace("\n", " ").partition(". ")
        return f"{first}." if end else first

    @property
    def reply_type(self) -> Any:
        """NoneType for a reply without contents. A Response beside it redirects, and is not the final reply."""
        if self.reply is not None:
            return self.reply
        found = get_type_hints(self.handler).get("return", Any)
        return type(None) if found == (Response | None) else found


class ApiRoute(Route):
    """A route with its contract."""

    def __init__(
        self, path: str, handle: Callable[[Request], Awaitable[Response]], method: str, contract: Contract
    ) -> None:
        super().__init__(path, handle, methods=[method])
        self.method = method
        self.contract = contract

    @property
    def key(self) -> tuple[str, str]:
        return self.path, self.method

    @property
    def needs(self) -> str:
        """Which role it needs, and on what; alone: on the worker as a whole."""
        contract = self.contract
        if contract.is_filtered:
            return "any"
        on = ["{name}"] if "{name}" in self.path else []
        on += ["the names in the body"] if contract.names_more else []
        return f"{contract.role.value} on {' and '.join(on)}" if on else contract.role.value


def about(subject: Subject, *routes: ApiRoute) -> list[ApiRoute]:
    for route in routes:
        route.contract = replace(route.contract, subject=subject)
    return [*routes]
