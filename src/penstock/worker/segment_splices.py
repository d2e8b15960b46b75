"""The segment port of a host: each connection is passed on to the process that has the segment of its first request.

Clients of ours learn the address of that process when they ask it for something that is elsewhere (WrongHost).
"""

import asyncio
import ssl

from penstock.client.credentials import CachedContexts
from penstock.core.address import Address
from penstock.core.connection_limits import ConnectionLimits
from penstock.core.errors import ProtocolError
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
from penstock.worker.spliced_connection import BeginSplice, SplicedConnection

_EARLY_BYTES_MAX = 1 << 20
"""What a client may send before its first request is passed on: a Hello and some requests."""


class SegmentPort:
    """What the connections share."""

    def __init__(self, settings: ServerSettings, directory: Directory) -> None:
        """With TLS, a connection ends here, and another one leads on to the process: tokens are in the requests. A
        client's certificate would be lost, so a host that requires one has no such port.
        """
        self.settings = settings
        self.directory = directory
        self.limits = ConnectionLimits(settings.connections_max, settings.address_max)
        self._contexts = CachedContexts()

    def connection(self) -> "SegmentConnection":
        return SegmentConnection(self)

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


class SegmentConnection(SplicedConnection):
    def __init__(self, port: SegmentPort) -> None:
        settings = port.settings
        super().__init__(port.limits, settings.handshake_seconds, settings.dead_peer_seconds)
        self._port = port
        self._decoder = Decoder(Role.SERVER, block_size_max=settings.block_bytes_max)
        self._early = bytearray()
        self._hello = b""

    def _received_early(self, data: bytes) -> None:
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
                    self._pass_on(self._find(message))
                    return
            del self._early[: HEADER_SIZE + length]

    async def _find(self, request: Message) -> BeginSplice | None:
        owner = await self._port.find(request)
        if owner is None:
            return None
        tls = self._port.tls_to(owner)
        kind = _SpliceAfterHello if self._hello else Splice
        return lambda client: kind(client, owner, self._hello + bytes(self._early), tls)
