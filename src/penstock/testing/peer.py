"""The outside, for tests of connectors: a real peer, and its lines."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from penstock.testing.frame import Frame


class Line(Protocol):
    """What the connector turns into one stream: a connection, file or pipe. It reads what it is sent without being
    asked.
    """

    async def send(self, data: bytes) -> None:
        """Return when the data was accepted, at least by the kernel."""

    async def end(self) -> None:
        """It has sent everything, and ends properly."""

    async def break_off(self) -> None:
        """Disappear immediately, like a killed process or a cut cable."""

    def received(self) -> bytes:
        """Everything that it has received so far."""

    def stop_reading(self) -> None:
        """It is slow from now on: it reads nothing that it is sent."""

    def continue_reading(self) -> None: ...


class Peer:
    """The real other side of a connector."""

    def config(self) -> Mapping[str, Any]:
        """The connector's options. Called after `start`."""
        return {}

    async def start(self) -> None:
        """It becomes reachable. Also after `stop`: at the same address, with what it has received."""
        return

    async def stop(self) -> None:
        """It goes down, with all its connections. Idempotent."""
        return

    async def line(self, frame: "Frame") -> Line:
        """A new line: connect to the connector, or wait for its connection."""
        raise AssertionError(f"{self} has no lines for {frame}: set `speaks = False`")

    def received(self) -> bytes:
        """Everything that has left through the connector, over all lines."""
        return b""
