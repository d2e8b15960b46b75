"""What a host and the shard processes that it has started say to each other: lines of JSON over a socket pair.

A process reports what it does, at least once a second; a host asks it to leave. When the host ends, however that
happens, the socket is closed, and the process stops.
"""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress

import msgspec

VARIABLE = "PENSTOCK_HOST_LINK"
"""The environment variable with which a process learns that a host has started it."""

_LINE_BYTES_MAX = 1 << 20
_LOOK_SECONDS = 0.1
"""Between two looks whether there is something new to report."""
_REPORT_SECONDS = 1.0
"""Between two reports when there is nothing new: a process that hangs makes none."""


class LinkOptions(msgspec.Struct, frozen=True):
    """The content of the variable. There is nothing secret in it."""

    fd: int
    host: str
    """The host's id in the cluster."""
    data: str
    """The host's data directory, which has the owner's token and the access list."""
    segment: str = ""
    """The address of the host's segment port, if the host passes clients on from there; otherwise ""."""

    @classmethod
    def from_environment(cls) -> "LinkOptions | None":
        text = os.environ.get(VARIABLE)
        return None if text is None else msgspec.json.decode(text, type=cls)


class ShardReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a shard process does."""

    worker: str = ""
    """Its id in the cluster; "" while it starts."""
    addresses: dict[str, str] = {}
    state: str = "starting"
    """starting, waiting or serving."""
    is_leaving: bool = False
    """The shard moves to another process, or sources have not followed it yet."""
    failure: str = ""
    """Why the shard has not moved."""
    sessions: int = 0


class Leave(msgspec.Struct, frozen=True):
    """Move the shard to this process of another host."""

    to: str


class HostLink:
    """The end of the shard process."""

    def __init__(self, options: LinkOptions) -> None:
        self._socket = socket.socket(fileno=options.fd)

    async def run(
        self, report: Callable[[], ShardReport], leave: Callable[[str], Awaitable[None]], stop: Callable[[], None]
    ) -> None:
        """Until the host ends; then calls `stop`."""
        reader, writer = await asyncio.open_connection(sock=self._socket, limit=_LINE_BYTES_MAX)
        reporting = asyncio.create_task(_report(writer, report))
        try:
            while line := await reader.readline():
                await leave(msgspec.json.decode(line, type=Leave).to)
        except ConnectionError:
            pass
        finally:
            reporting.cancel()
            with suppress(asyncio.CancelledError, ConnectionError):
                await reporting
            writer.close()
        stop()


async def _report(writer: asyncio.StreamWriter, report: Callable[[], ShardReport]) -> None:
    loop = asyncio.get_running_loop()
    last, due = None, 0.0
    while True:
        if (now := report()) != last or loop.time() >= due:
            last, due = now, loop.time() + _REPORT_SECONDS
            writer.write(msgspec.json.encode(now) + b"\n")
            await writer.drain()
        await asyncio.sleep(_LOOK_SECONDS)


class ProcessLink:
    """The end of the host."""

    def __init__(self) -> None:
        self._socket, self.theirs = socket.socketpair()
        self.report = ShardReport()
        self.heard_at = 0.0
        """When the last report came, in the loop's time."""
        self._writer: asyncio.StreamWriter | None = None

    async def run(self, on_change: Callable[[], None]) -> None:
        """Until the process ends."""
        self.theirs.close()
        reader, self._writer = await asyncio.open_connection(sock=self._socket, limit=_LINE_BYTES_MAX)
        loop = asyncio.get_running_loop()
        with suppress(ConnectionError):
            while line := await reader.readline():
                before, self.report = self.report, msgspec.json.decode(line, type=ShardReport)
                self.heard_at = loop.time()
                if self.report != before:
                    on_change()

    def leave(self, to: str) -> None:
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(msgspec.json.encode(Leave(to)) + b"\n")

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        else:
            self._socket.close()
