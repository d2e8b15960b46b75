"""What the source side of a hosted connector needs of the rest: whether its streams may send, and who hears contraflow.

`Gate` is the gateway's own, since the sessions of programs ask it as well: give the same one to the gateway
(`Gateway.guard`) and to every SourceHost. Where nobody gives one, everything is open.
"""

from typing import Protocol

from penstock.connectors.api import StreamRef
from penstock.gateway.gate import Changed, Gate, OpenGate

__all__ = ["Changed", "Contraflow", "Gate", "NoContraflow", "OpenGate"]


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
