"""Types of connectors and of interceptors by their names: Penstock's own, and those of other packages by entry points.

A third party's package names its types in its pyproject.toml:

    [project.entry-points."penstock.connectors"]
    my-type = "my_package.my_module:MyConnector"
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from typing import Any, Generic, TypeVar, cast

from penstock.connectors.api import Connector
from penstock.connectors.interceptors.api import Interceptor
from penstock.core.errors import RequestError

_TYPES = "penstock.connectors.types."
_INTERCEPTORS = "penstock.connectors.interceptors."

_MODULES_OF_EXTRAS = {"ws": ("websockets",), "http": ("httpx",)}
"""What each of Penstock's extras brings that a type needs."""

T = TypeVar("T")


@dataclass
class Registry(Generic[T]):
    """Nothing is imported before it is asked for. Penstock's own names win over those of other packages."""

    what: str
    """For errors: `connector type`."""
    own: Mapping[str, str]
    """Name → `module:Class`."""
    group: str
    """Of entry points."""
    found: dict[str, type[T]] = field(default_factory=dict)

    def names(self) -> list[str]:
        return sorted({*self.own, *self._foreign})

    def get(self, name: str) -> type[T]:
        """Raises RequestError: nobody has this name, or its package is broken."""
        if name not in self.found:
            self.found[name] = self._load(name)
        return self.found[name]

    @cached_property
    def _foreign(self) -> dict[str, EntryPoint]:
        return {point.name: point for point in entry_points(group=self.group)}

    def _load(self, name: str) -> type[T]:
        if name in self.own:
            module, _, attribute = self.own[name].partition(":")
            return cast("type[T]", getattr(import_module(module), attribute))
        if name not in self._foreign:
            raise self._unknown(name)
        try:
            loaded = self._foreign[name].load()
            if not hasattr(loaded, "about"):
                raise TypeError(f"{self._foreign[name].value} is no {self.what}")
            return cast("type[T]", loaded)
        except Exception as error:  # whatever somebody else's module does when it is imported
            package = self._foreign[name].dist
            raise RequestError(
                f"the {self.what} {name} cannot be loaded: {str(error) or type(error).__name__}",
                f"Install it again: pip install {package.name if package is not None else name}",
            ) from error

    def _unknown(self, name: str) -> RequestError:
        near = get_close_matches(name, self.names(), n=1)
        hint = f"Did you mean {near[0]}?" if near else f"There are: {', '.join(self.names())}."
        return RequestError(f"unknown {self.what} {name!r}", hint)


CONNECTORS: Registry[Connector[Any]] = Registry(
    "connector type",
    {
        "connector-protocol": _TYPES + "connector_protocol:ConnectorProtocol",
        "file": _TYPES + "file:File",
        "http-client": _TYPES + "http_client:HttpClient",
        "http-server": _TYPES + "http_server:HttpServer",
        "metronome": _TYPES + "metronome:Metronome",
        "null": _TYPES + "null:Null",
        "segment": _TYPES + "segment:Segment",
        "stdio": _TYPES + "stdio:Stdio",
        "tcp-client": _TYPES + "tcp_client:TcpClient",
        "tcp-server": _TYPES + "tcp_server:TcpServer",
        "ws-client": _TYPES + "ws_client:WsClient",
        "ws-server": _TYPES + "ws_server:WsServer",
    },
    "penstock.connectors",
)

INTERCEPTORS: Registry[Interceptor[Any]] = Registry(
    "interceptor",
    {
        "join": _INTERCEPTORS + "join:Join",
        "length-prefixed": _INTERCEPTORS + "length_prefixed:LengthPrefixed",
        "split": _INTERCEPTORS + "split:Split",
    },
    "penstock.interceptors",
)


def require(type_: type[Connector[Any]]) -> None:
    """Raises RequestError where something that the type needs is not installed, with the command that installs it."""
    extra = type_.about.extra
    missing = [module for module in _MODULES_OF_EXTRAS.get(extra, ()) if find_spec(module) is None]
    if missing:
        raise RequestError(
            f"the connector type {type_.about.name} needs {', '.join(missing)}, which is not installed",
            f"Install it: pip install 'penstock-streams[{extra}]'",
        )
