"""The connectors, interceptors and codecs that a file can name: an argument of `load`, so that tests can pass their
own.
"""

from collections.abc import Callable, Collection
from typing import Protocol

from pydantic import BaseModel

from penstock.connectors.api import About, Capabilities
from penstock.connectors.event_times import codecs_with_plugins
from penstock.connectors.interceptors.api import AboutInterceptor
from penstock.connectors.registry import CONNECTORS, INTERCEPTORS, NotInstalled, require
from penstock.protocol.event_time.field import SCANNED_CODECS
from penstock.spark import codecs
from penstock.spark.codecs.registry import check


class Types(Protocol):
    """Methods raise RequestError for an unknown name."""

    def names(self) -> Collection[str]:
        """The names of connector types."""

    def about(self, name: str) -> About: ...

    def capabilities(self, name: str, options: BaseModel) -> Capabilities:
        """The capabilities of a connector with these options, an instance of its type's own model."""

    def interceptors(self) -> Collection[str]: ...

    def interceptor(self, name: str) -> AboutInterceptor: ...

    def directions(self, name: str, options: BaseModel) -> frozenset[str]:
        """The directions that the interceptor supports: `in`, `out`, or both."""

    def check_interceptor(self, name: str, options: BaseModel) -> None:
        """Raises RequestError if it cannot work with these options, or a package is missing."""

    def codecs(self) -> Collection[str]: ...

    def needs_schema(self, codec: str) -> bool:
        """Whether the codec can only decode with a `schema`."""

    def codec_options(self, codec: str) -> type[BaseModel] | None:
        """The model of its options; None if it has none."""

    def check_codec(self, codec: str) -> None:
        """Of a codec with its options. Raises RequestError if it cannot work with them, or a package is missing, and
        NotHere for a file that may be elsewhere.
        """

    def timed_codecs(self) -> Collection[str]:
        """The codecs in which the worker finds event times."""


class KnownTypes:
    """The installed connectors, interceptors and codecs. Types are imported when they are needed."""

    def names(self) -> list[str]:
        return CONNECTORS.names()

    def about(self, name: str) -> About:
        return CONNECTORS.get(name).about

    def capabilities(self, name: str, options: BaseModel) -> Capabilities:
        """Raises RequestError if the type needs a package that is not installed."""
        found = CONNECTORS.get(name)
        require(found)
        return found.capabilities(options)

    def interceptors(self) -> list[str]:
        return INTERCEPTORS.names()

    def interceptor(self, name: str) -> AboutInterceptor:
        return INTERCEPTORS.get(name).about

    def directions(self, name: str, options: BaseModel) -> frozenset[str]:
        built = INTERCEPTORS.get(name)(options)
        ways: dict[str, Callable[[], object]] = {"in": lambda: built.incoming(framed=True), "out": built.outgoing}
        return frozenset(way for way, build in ways.items() if _is_supported(build))

    def check_interceptor(self, name: str, options: BaseModel) -> None:
        built = INTERCEPTORS.get(name)(options)
        built.incoming(framed=True)
        built.outgoing()

    def check_codec(self, codec: str) -> None:
        check(codec)

    def codec_options(self, codec: str) -> type[BaseModel] | None:
        return codecs.about(codec).model()

    def codecs(self) -> tuple[str, ...]:
        return codecs.names()

    def needs_schema(self, codec: str) -> bool:
        return codecs.about(codec).needs_schema

    def timed_codecs(self) -> tuple[str, ...]:
        return (*SCANNED_CODECS, *codecs_with_plugins())


def _is_supported(build: Callable[[], object]) -> bool:
    """Also if a package is missing here: it may be installed where the worker runs."""
    try:
        return build() is not None
    except NotInstalled:
        return True
