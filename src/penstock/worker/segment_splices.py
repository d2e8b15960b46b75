"""The segment port of a host: each connection is passed on to the process that has the segment of its first request.

Clients of ours learn the address of that process when they ask it for something that is elsewhere (WrongHost).
"""

import asyncio
import logging
import ssl
from typing import cast

from penstock.client.credentials import CachedContexts
from penstock.core.address import Address
from penstock.core.connection_limits import ConnectionLimits, address_of, find_dead_peers
from penstock.core.errors import PenstockError, ProtocolError
from penstock.protocol.segment import (
    VERSIONED,
    Decoder,
    Hello,
    KeepAlive,
    MergeSegments,
    Message,
    Role,
)
from penstock.protocol.segment.frame import HEADER_SIZE, unpack_header
from penstock.protocol.segment.messages import VERSION_HIGH, VERSION_LOW
from penstock.segment_server.settings import ServerSettings
from penstock.worker.directory import SEGMENT, Directory, thing_of_segment
from penstock.worker.redirects import Splice

log = logging.getLogger(__name__)

_EARLY_BYTES_MAX = 1 << 20
"""What a client may send before its first request is passed on: a Hello and some requests."""


class SegmentPort:
    """What the connections share."""

    def __init__(self, settings: ServerSettings, directory: Directory) -> None:
        """With TLS, a connection ends here, and another one goes on to the process: tokens are in the requests. A
        client's certificate would be lost, so a host that requires one has no such port.
        """
        self.settings = settings
        self.directory = directory
        self.limits = ConnectionLimits(settings.connections_max, settings.address_max)
        self._contexts = CachedContexts()

    def connection(self) -> "SplicedConnection":
        return SplicedConnection(self)

    async def find(self, request: Message) -> Address | None:
        """The process that has the segment of the request, or is to have it: there it gets its place, if whoever asks
        may create it. Raises Unavailable.
        """
        name = request.target if isinstance(request, MergeSegments) else getattr(request, "segment", "")
        thing = thing_of_segment(name)
        if thing is None:
            return None
        found = await self.directory.addresses(await self.directory.likely(thing))
        return None if found is None or SEGMENT not in found else Address.parse(found[SEGMENT])

    def tls_to(self, owner: Address) -> ssl.SSLContext | None:
        """None without TLS. Raises RequestError for files that cannot be used."""
        return None if self.settings.ssl is None else self._contexts.get(owner.host)


class _SpliceAfterHello(Splice):
    """The Hello of the process is dropped: the client has had ours."""

    def __init__(
        self, source: asyncio.Transport, owner: Address, early: bytes, tls: ssl.SSLContext | None = None
    ) -> None:
        super().__init__(source, owner, early, tls)
        self._reply = bytearray()
        self._is_greeted = False

    def data_received(self, data: bytes) -> None:
        if self._is_greeted:
            super().data_received(data)
            return
        self._reply += data
        if len(self._reply) >= HEADER_SIZE:
            _, length = unpack_header(self._reply[:HEADER_SIZE])
            if len(self._reply) >= HEADER_SIZE + length:
                self._is_greeted = True
                super().data_received(bytes(self._reply[HEADER_SIZE + length :]))


class SplicedConnection(asyncio.Protocol):
    """As a Guest of ConnectionLimits it may be evicted until it is passed on."""

    is_authenticated = False

    def __init__(self, port: SegmentPort) -> None:
        self._port = port
        self._decoder = Decoder(Role.SERVER, block_size_max=port.settings.block_bytes_max)
        self._early = bytearray()
        self._hello = b""
        self._asking: asyncio.Task[None] | None = None
        self._splice: Splice | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._loop = asyncio.get_running_loop()
        self.idle_since: float | None = self._loop.time()
        self._transport = cast("asyncio.Transport", transport)
        find_dead_peers(self._transport, self._port.settings.dead_peer_seconds)
        self._deadline = self._loop.call_later(self._port.settings.handshake_seconds, self._transport.abort)
        if not self._port.limits.admit(self, address_of(transport.get_extra_info("peername"))):
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._splice is not None:
            self._splice.to_owner(data)
            return
        self._early += data
        try:
            if self._asking is None:
                self._read()
        except ProtocolError:
            self._transport.abort()
            return
        if len(self._early) > _EARLY_BYTES_MAX:
            self._transport.abort()

    def _read(self) -> None:
        """Greetings are answered here, and the first request decides."""
        while self._asking is None and len(self._early) >= HEADER_SIZE:
            _, length = unpack_header(self._early[:HEADER_SIZE])
            if len(self._early) < HEADER_SIZE + length:
                return
            frame = bytes(self._early[: HEADER_SIZE + length])
            buffer = self._decoder.get_buffer(len(frame))
            buffer[: len(frame)] = frame
            for message in self._decoder.received(len(frame)):
                if isinstance(message, Hello):
                    self._hello = frame
                    self._transport.write(VERSIONED.encode(Hello(VERSION_HIGH, VERSION_LOW)))
                elif isinstance(message, KeepAlive):
                    self._transport.write(VERSIONED.encode(message))
                elif isinstance(message, Message):
                    self._transport.pause_reading()
                    self._asking = self._loop.create_task(self._pass_on(message))
                    return
            del self._early[: HEADER_SIZE + length]

    async def _pass_on(self, request: Message) -> None:
        tls = None
        try:
            owner = await self._port.find(request)
            if owner is not None:
                tls = self._port.tls_to(owner)
        except PenstockError as error:
            log.warning("a client of segments waits: %s", error)
            owner = None
        if self._transport.is_closing():
            return
        if owner is None:
            self._transport.close()  # the client tries again
            return
        self._deadline.cancel()
        self.idle_since = None
        kind = _SpliceAfterHello if self._hello else Splice
        self._splice = kind(self._transport, owner, self._hello + bytes(self._early), tls)

    def eof_received(self) -> bool:
        if self._splice is not None:
            self._splice.source_has_ended()
            return self._transport.can_write_eof()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._deadline.cancel()
        self._port.limits.leave(self)
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
        self._port.limits.leave(self)
        self._transport.abort()
