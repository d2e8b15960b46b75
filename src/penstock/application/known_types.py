"""All that a file can name, for `penstock.config`: the connectors, interceptors and codecs that are installed."""

from pydantic import BaseModel

from penstock.config.types import AboutConnector, AboutInterceptor, CapabilitiesOf
from penstock.connectors.registry import CONNECTORS, INTERCEPTORS, require
from penstock.spark import codecs


class KnownTypes:
    """Is a `penstock.config.types.Types`. What is asked for is imported then, and not before."""

    def names(self) -> list[str]:
        return CONNECTORS.names()

    def about(self, name: str) -> AboutConnector:
        return CONNECTORS.get(name).about

    def capabilities(self, name: str, options: BaseModel) -> CapabilitiesOf:
        """Raises RequestError where the type needs what is not installed."""
        found = CONNECTORS.get(name)
        require(found)
        return found.capabilities(options)

    def interceptors(self) -> list[str]:
        return INTERCEPTORS.names()

    def interceptor(self, name: str) -> AboutInterceptor:
        return INTERCEPTORS.get(name).about

    def directions(self, name: str, options: BaseModel) -> frozenset[str]:
        made = INTERCEPTORS.get(name)(options)
        ways = {"in": made.incoming(), "out": made.outgoing()}
        return frozenset(way for way, found in ways.items() if found is not None)

    def codecs(self) -> tuple[str, ...]:
        return codecs.names()

    def needs_schema(self, codec: str) -> bool:
        return codecs.CODECS[codec].needs_schema
