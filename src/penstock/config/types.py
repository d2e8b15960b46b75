"""What the configuration must know of connectors, interceptors and codecs: an argument, so that it imports none."""

from collections.abc import Collection, Mapping
from enum import Enum
from typing import Any, Protocol

from pydantic import BaseModel

from penstock.core.types import Guarantee


class CapabilitiesOf(Protocol):
    """As `penstock.connectors.api.Capabilities`."""

    @property
    def source(self) -> Guarantee | None: ...
    @property
    def sink(self) -> Guarantee | None: ...
    @property
    def resumes(self) -> bool: ...
    @property
    def pauses(self) -> Enum: ...
    @property
    def on_stream_started(self) -> str: ...
    @property
    def is_linked(self) -> bool: ...
    @property
    def own_event_times(self) -> bool | None: ...
    @property
    def has_codec(self) -> bool: ...
    @property
    def interceptors(self) -> frozenset[str]: ...
    @property
    def claims(self) -> frozenset[str]: ...


class AboutInterceptor(Protocol):
    """As `penstock.connectors.interceptors.api.AboutInterceptor`."""

    @property
    def name(self) -> str: ...
    @property
    def text(self) -> str: ...
    @property
    def options(self) -> type[BaseModel]: ...


class AboutConnector(AboutInterceptor, Protocol):
    """As `penstock.connectors.api.About`."""

    @property
    def capabilities(self) -> CapabilitiesOf: ...
    @property
    def extra(self) -> str: ...
    @property
    def example(self) -> Mapping[str, Any]: ...


class Types(Protocol):
    """All that can be named in a file. What is asked of a name that is not there raises RequestError."""

    def names(self) -> Collection[str]:
        """Of the types of connectors."""

    def about(self, name: str) -> AboutConnector: ...

    def capabilities(self, name: str, options: BaseModel) -> CapabilitiesOf:
        """Of a connector with these options, which are of the type's own model."""

    def interceptors(self) -> Collection[str]: ...

    def interceptor(self, name: str) -> AboutInterceptor: ...

    def directions(self, name: str, options: BaseModel) -> frozenset[str]:
        """`in`, `out`, or both: where the interceptor can stand."""

    def codecs(self) -> Collection[str]: ...

    def needs_schema(self, codec: str) -> bool:
        """Whether it can only be decoded with a `schema`."""
