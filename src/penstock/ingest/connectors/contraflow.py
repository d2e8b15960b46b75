"""Who hears what a connector says of its port `in`."""

from typing import Protocol

from penstock.connectors.api import StreamRef


class Contraflow(Protocol):
    """What a connector says of its port `in`, through its host."""

    def connected(self) -> None:
        """It is open for all streams."""
        ...

    def disconnected(self, reason: str) -> None:
        """It is closed for all streams, until `connected`."""
        ...

    def opened(self, stream: StreamRef) -> None: ...

    def closed(self, stream: StreamRef, reason: str) -> None: ...


class NoContraflow:
    """Of a connector whose port `in` is not linked: nobody listens."""

    def connected(self) -> None: ...

    def disconnected(self, reason: str) -> None: ...

    def opened(self, stream: StreamRef) -> None: ...

    def closed(self, stream: StreamRef, reason: str) -> None: ...
