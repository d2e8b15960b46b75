"""The outside, as tests of connectors see it: a real peer, and its lines."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from penstock.testing.frame import Frame


class Line(Protocol):
    """What the connector makes one stream of: a connection, a file, a pipe. It reads what it is sent by itself."""

    async def send(self, data: bytes) -> None:
        """Say this; return when it was taken, at least by the kernel."""

    async def end(self) -> None:
        """It has said all, and ends well."""

    async def break_off(self) -> None:
        """Go away at once, as a process that is killed or a cable that is cut."""

    def received(self) -> bytes:
        """All that it has been sent so far."""

    def stop_reading(self) -> None:
        """It is slow now: it takes nothing of what it is sent."""

    def go_on_reading(self) -> None: ...


class Peer:
    """The real other side of a connector."""

    def config(self) -> Mapping[str, Any]:
        """The connector's options. Asked after `start`."""
        return {}

    async def start(self) -> None:
        """It can be reached. Also after `stop`: at the same address, with what it has received."""
        return

    async def stop(self) -> None:
        """It is down, with all its connections. Idempotent."""
        return

    async def line(self, frame: "Frame") -> Line:
        """A new one: connect to the connector, or wait for its connection."""
        raise AssertionError(f"{self} has no lines for {frame}: set `speaks = False`")

    def received(self) -> bytes:
        """All that has left through the connector, over all lines."""
        return b""
