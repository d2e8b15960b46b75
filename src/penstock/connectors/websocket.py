"""The other side of a WebSocket connection."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from websockets.asyncio.connection import Connection
from websockets.exceptions import ConnectionClosed, ConnectionClosedOK
from websockets.protocol import State

from penstock.connectors.sockets import WsOptions, address_of
from penstock.core.connection_limits import find_dead_peers

_READ_BYTES = 1 << 20
"""What one read returns at most, and one message more."""


class WsPeer:
    """A Peer. One read returns the messages that have arrived; values count as sent when the peer's library has
    answered a later ping.
    """

    def __init__(self, connection: Connection, options: WsOptions, metadata: Mapping[str, Any] | None = None) -> None:
        self._connection = connection
        self._options = options
        self.peer = address_of(connection.remote_address)
        self.metadata = {"peer": self.peer, **(metadata or {})}
        self._stopped = False
        self._reader: asyncio.Task[Any] | None = None
        self._reading_since: float | None = None
        self._ended = False
        self._pinging: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._aborted = asyncio.Event()

    @property
    def peer_ended(self) -> bool:
        return self._ended

    @property
    def listens(self) -> bool:
        return self._connection.state is State.OPEN

    async def read(self) -> Sequence[bytes] | None:
        task = self._reader = asyncio.current_task()
        self._reading_since = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(0 if self._stopped else None):
                return await self._received()
        except ConnectionClosedOK:
            self._ended = True
        except ConnectionClosed as error:
            raise ConnectionResetError(str(error)) from error
        except TimeoutError:
            pass
        except asyncio.CancelledError:
            if not self._stopped or task is None or task.uncancel() > 0:
                raise
            return await self.read()  # data that was received from the peer before
        finally:
            self._reader = self._reading_since = None
        return None

    async def _received(self) -> list[bytes]:
        """A message, and all that have arrived with it: those that the library has already parsed. It waits for the
        first alone.
        """
        arrived = self._connection.recv_messages
        parsed = arrived.frames.queue
        messages = [await self._connection.recv(decode=False)]
        size = len(messages[0])
        while parsed and parsed[0].fin and size < _READ_BYTES:  # a message of one frame: `recv` would only unwrap it
            messages.append(bytes(parsed.popleft().data))
            size += len(messages[-1])
        arrived.maybe_resume()
        return messages

    def stop_reading(self) -> None:
        if not self._stopped:
            self._stopped = True
            if self._reader is not None:
                self._reader.cancel()

    async def send(self, values: Sequence[bytes]) -> None:
        is_text = self._options.messages == "text"
        try:
            for value in values:
                await self._connection.send(value, text=is_text and _is_utf8(value))
            await (await self._connection.ping())
        except ConnectionClosed as error:
            raise ConnectionResetError(str(error)) from error

    def end(self) -> None:
        """WebSocket has no half-closed connections: the peer is asked to close."""
        self._closing = asyncio.create_task(self.close())

    async def close(self) -> None:
        await self._connection.close()

    def abort(self) -> None:
        if self._pinging is not None:
            self._pinging.cancel()
        self._connection.transport.abort()
        self._aborted.set()

    async def aborted(self) -> None:
        await self._aborted.wait()

    def keep_alive(self, dead_peer_seconds: float) -> None:
        """Until `abort`, which ends every connection: checks that the peer is alive, by pings while it is read, and by
        TCP.
        """
        find_dead_peers(self._connection.transport, max(1, round(dead_peer_seconds)))
        self._pinging = asyncio.create_task(self._ping())

    async def _ping(self) -> None:
        while self._options.ping_interval is not None:
            await asyncio.sleep(self._options.ping_interval)
            if self._reading_since is None:
                continue
            with suppress(ConnectionClosed):
                pong = await self._connection.ping()
                _, late = await asyncio.wait([asyncio.ensure_future(pong)], timeout=self._options.ping_timeout)
                if late and self._was_read_for(self._options.ping_timeout or 0):
                    self._connection.transport.abort()
                    return

    def _was_read_for(self, seconds: float) -> bool:
        since = self._reading_since
        return since is not None and asyncio.get_running_loop().time() - since >= seconds


def _is_utf8(value: bytes) -> bool:
    if value.isascii():
        return True
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True
