"""A connection to a host that passes it on, byte for byte, to the right process."""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from typing import Any, cast

from penstock.core.connection_limits import ConnectionLimits, address_of, find_dead_peers
from penstock.core.errors import PenstockError
from penstock.worker.redirects import Splice

log = logging.getLogger(__name__)

BeginSplice = Callable[[asyncio.Transport], Splice]


class SplicedConnection(asyncio.Protocol, ABC):
    """A Guest of ConnectionLimits: it may be evicted until it is passed on."""

    is_authenticated = False

    def __init__(self, limits: ConnectionLimits, handshake_seconds: float, dead_peer_seconds: int) -> None:
        self._limits = limits
        self._handshake_seconds = handshake_seconds
        self._dead_peer_seconds = dead_peer_seconds
        self._asking: asyncio.Task[None] | None = None
        self._splice: Splice | None = None

    @abstractmethod
    def _received_early(self, data: bytes) -> None:
        """Called for data that arrives before the connection is passed on."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._loop = asyncio.get_running_loop()
        self.idle_since: float | None = self._loop.time()
        self._transport = cast("asyncio.Transport", transport)
        find_dead_peers(self._transport, self._dead_peer_seconds)
        self._deadline = self._loop.call_later(self._handshake_seconds, self._transport.abort)
        if not self._limits.admit(self, address_of(transport.get_extra_info("peername"))):
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._splice is not None:
            self._splice.to_owner(data)
        else:
            self._received_early(data)

    def _pass_on(self, finding: Coroutine[Any, Any, BeginSplice | None]) -> None:
        """Pass it on once `finding` returns where to. With None it is closed, and the client tries again."""
        self._transport.pause_reading()
        self._asking = self._loop.create_task(self._pass_on_to(finding))

    async def _pass_on_to(self, finding: Coroutine[Any, Any, BeginSplice | None]) -> None:
        try:
            begin = await finding
        except PenstockError as error:
            log.warning("a client of the cluster waits: %s", error)
            begin = None
        if self._transport.is_closing():
            return
        if begin is None:
            self._transport.close()
            return
        self._deadline.cancel()
        self.idle_since = None
        self._splice = begin(self._transport)

    def eof_received(self) -> bool:
        if self._splice is not None:
            self._splice.source_has_ended()
            return self._transport.can_write_eof()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._deadline.cancel()
        self._limits.leave(self)
        if self._asking is not None:
            self._asking.cancel()
        if self._splice is not None:
            self._splice.source_is_lost(exc)

    def pause_writing(self) -> None:
        if self._splice is not None:
            self._splice.pause_owner()

    def resume_writing(self) -> None:
        if self._splice is not None:
            self._splice.resume_owner()

    def evict(self) -> None:
        self._limits.leave(self)
        self._transport.abort()
