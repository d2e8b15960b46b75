"""The connector port of a worker in a cluster: every source is sent to the worker that owns its shard, or served here.

A source that has announced `0.0.1+migrate` gets MIGRATE. Any other gets OK and RESTART with the owner's address, or its
connection is spliced: passed on to the owner byte for byte.
"""

import asyncio
import logging
import ssl
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Final, cast

from penstock.access.file import AccessControl, Open
from penstock.access.principals import certificate_names
from penstock.access.refusals import Refusals
from penstock.client.credentials import CachedContexts
from penstock.core.address import Address
from penstock.core.connection_limits import ConnectionLimits, address_of, find_dead_peers
from penstock.core.errors import Forbidden, PenstockError, ProtocolError, RequestError
from penstock.core.logs import one_line
from penstock.core.tls_handshakes import close_once, feed
from penstock.ingest.sessions.migration import LEAVE_SECONDS_MAX
from penstock.ingest.sessions.program_access import ProgramAccess
from penstock.ingest.settings import ProgramServerSettings
from penstock.protocol.connector import (
    Decoder,
    Frame,
    Hello,
    HelloCheck,
    Migrate,
    MigrateAck,
    Ok,
    Restart,
    Role,
    Session,
    Use,
    error_frame,
)
from penstock.protocol.stored.names import check_source_name
from penstock.worker.certificates import requires_certificate
from penstock.worker.directory import Directory, thing_of
from penstock.worker.settings import Redirect

log = logging.getLogger(__name__)

RETURN_SECONDS = 900.0
"""A source that comes back this soon after RESTART with an address has not understood the address. Programs may wait
for minutes before they connect again; one that has understood and is back because its owner has died is only spliced.
"""

_REMEMBERED_MAX = 10_000
"""Sources that were sent away lately; the oldest is forgotten."""

_EARLY_BYTES_MAX = 256 * 1024
"""What a source may send before it is redirected: the credits of a HELLO are none, so this is its HELLO and NOTIFYs."""

_SPLICE_BYTES_MAX = 64 * 1024
"""Bytes that a splice keeps in each direction, besides the kernel's: beyond it the sender is not read."""

_DEAD_PEER_SECONDS = 30
"""An owner that does not answer on the network for so long is gone."""

_CONNECT_SECONDS_MAX = 10.0
"""An owner that does not accept a spliced connection by then is away."""

_LAST_WORDS_SECONDS = 5.0
"""How long a peer may take to fetch the last bytes sent to it."""


class _Here(Enum):
    HERE = "here"


HERE: Final = _Here.HERE

Route = Address | _Here | None
"""Where a source belongs: the connector address of the worker that owns its shard, or HERE. None: not known now."""

OwnerOf = Callable[[str], Awaitable[Route]]
"""Of the source of this name."""

Serve = Callable[[], asyncio.BaseProtocol]
"""A new connection of the program server, for a source that belongs here."""


class Redirects:
    """Decides what a source that does not know MIGRATE gets. The document's RESTART frame has no address, and its text
    says that it has one: a program of version 0.0.1 may or may not understand it, and its HELLO does not say.
    """

    def __init__(self, mode: Redirect, *, can_splice: bool = True) -> None:
        self._mode = mode
        self._can_splice = can_splice
        self._sent: OrderedDict[tuple[str, str, str], float] = OrderedDict()

    def choose(self, host: str, hello: Hello, now: float) -> Redirect:
        """RESTART or SPLICE."""
        if self._mode is not Redirect.AUTO or not self._can_splice:
            return Redirect.SPLICE if self._mode is Redirect.SPLICE and self._can_splice else Redirect.RESTART
        who = (host, hello.program, hello.instance)
        comes_back = now - self._sent.get(who, -RETURN_SECONDS) < RETURN_SECONDS
        self._sent[who] = now
        self._sent.move_to_end(who)
        if len(self._sent) > _REMEMBERED_MAX:
            self._sent.popitem(last=False)
        return Redirect.SPLICE if comes_back else Redirect.RESTART


class RedirectPort:
    """What the connections of the port share."""

    def __init__(
        self,
        settings: ProgramServerSettings,
        redirect: Redirect,
        owner_of: OwnerOf,
        serve: Serve | None = None,
        access: AccessControl | None = None,
    ) -> None:
        """Without access control the cookie alone decides whose source is looked for."""
        self.settings = settings
        self.access = access or Open()
        self.refusals = Refusals()
        self.owner_of = owner_of
        self.serve = serve
        # With TLS, the owner sees our certificate instead of the program's.
        can_splice = settings.ssl is None or not requires_certificate(settings.ssl)
        self.redirects = Redirects(redirect, can_splice=can_splice)
        self._contexts = CachedContexts()
        self.limits = ConnectionLimits(settings.sessions_max, settings.address_max)
        self.connections: set[RedirectedConnection] = set()
        self.is_owner_unknown = False
        """Whether the last source could not be told where it belongs."""

    def tls_to(self, owner: Address) -> ssl.SSLContext | None:
        """For a splice; None without TLS. Raises RequestError for files that cannot be used."""
        return None if self.settings.ssl is None else self._contexts.get(owner.host)

    def note_unknown(self, error: PenstockError) -> None:
        """Logged once: during an outage of the store, every source tries again and again."""
        if not self.is_owner_unknown:
            log.warning("sources wait: %s", error)
        self.is_owner_unknown = True

    def connection(self) -> "RedirectedConnection":
        return RedirectedConnection(self)

    def close_unanswered(self) -> None:
        """The worker becomes the owner: sources that have no answer yet connect again, and find it."""
        for one in list(self.connections):
            one.close_if_unanswered()

    def close(self) -> None:
        for one in list(self.connections):
            one.abort()


class RedirectedConnection(asyncio.Protocol):
    """A source at the wrong worker. As a Guest of ConnectionLimits it may be evicted until it is spliced."""

    is_authenticated = False

    def __init__(self, port: RedirectPort) -> None:
        self._port = port
        self._session = Session(Use.SOURCE, Role.ACCEPTOR)
        # The owner checks it as well. But looking for an owner gives a source its place, which is permanent.
        self._access = ProgramAccess(port.access, port.settings.cookie, port.refusals)
        check = HelloCheck(Use.SOURCE, check_cookie=self._access.check_cookie)
        self._decoder = Decoder(Use.SOURCE, frame_size_max=_EARLY_BYTES_MAX, hello=check)
        self._early = bytearray()
        self._answered = False
        self._splice: Splice | None = None
        self._asking: asyncio.Task[None] | None = None

    @property
    def _is_spliced(self) -> bool:
        return self._splice is not None

    # The transport calls these.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._loop = asyncio.get_running_loop()
        self.idle_since: float | None = self._loop.time()
        self._transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        self._host, settings = address_of(peer), self._port.settings
        self._access.certificate_names = certificate_names(transport.get_extra_info("peercert"))
        find_dead_peers(self._transport, settings.dead_peer_seconds)
        self._deadline = self._loop.call_later(settings.handshake_seconds, self.abort)
        if not self._port.limits.admit(self, self._host):
            self._transport.abort()
            return
        self._port.connections.add(self)

    def data_received(self, data: bytes) -> None:
        if self._splice is not None:
            self._splice.to_owner(data)
            return
        if not self._answered:
            self._early += data
            if len(self._early) > _EARLY_BYTES_MAX:
                self.abort()
                return
        try:
            for frame in self._decoder.feed(data):
                self._receive(frame)
                if self._is_spliced:
                    return
        except (ProtocolError, Forbidden) as error:
            self._refuse(error)

    def _refuse(self, error: PenstockError) -> None:
        if not self._session.is_over:
            log.warning("%s: %s", self._host, one_line(error))
            self._write(error_frame(ProtocolError(str(error))))
        self._end()

    def eof_received(self) -> bool:
        if self._splice is not None:
            self._splice.source_has_ended()
            return self._port.settings.ssl is None
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        if self._asking is not None:
            self._asking.cancel()
        if self._splice is not None:
            self._splice.source_is_lost(exc)

    def _forget(self) -> None:
        self._deadline.cancel()
        self._port.limits.leave(self)
        self._port.connections.discard(self)

    def pause_writing(self) -> None:
        if self._splice is not None:
            self._splice.pause_owner()

    def resume_writing(self) -> None:
        if self._splice is not None:
            self._splice.resume_owner()

    # Frames.

    def _receive(self, frame: Frame) -> None:
        if self._session.is_over:
            return
        if isinstance(frame, Hello):
            self._session.receive(frame)
            self._access.check_source(frame.instance)
            self._asking = self._loop.create_task(self._find_owner(frame))
        elif isinstance(frame, MigrateAck):
            self._session.receive(frame)
            self._end()

    async def _find_owner(self, hello: Hello) -> None:
        try:
            owner = await self._port.owner_of(hello.instance)
        except PenstockError as error:
            self._port.note_unknown(error)
            owner = None
        else:
            self._port.is_owner_unknown = False
        if not self._transport.is_closing():
            self._redirect(hello, owner)

    def _redirect(self, hello: Hello, owner: Route) -> None:
        if owner is HERE and self._port.serve is not None:
            self._hand_over(self._port.serve())
        elif owner is HERE:
            name = f"{hello.instance!r:.200}"
            self._refuse(ProtocolError(f"HELLO: {name} is not the name of a source to which programs can send"))
        elif not isinstance(owner, Address):
            self._end()
        elif self._session.can_migrate:
            self._answered = True
            self._write(Migrate(owner.host, owner.port))
            self._set_deadline(LEAVE_SECONDS_MAX)
        elif self._port.redirects.choose(self._host, hello, self._loop.time()) is Redirect.RESTART:
            self._answered = True
            self._write(Ok(0))
            self._write(Restart(str(owner)))
            self._end()
        else:
            self._answered = True
            self._begin_splice(owner)

    def _hand_over(self, connection: asyncio.BaseProtocol) -> None:
        """Reading is paused meanwhile: transports read in another way for another kind of protocol."""
        self._answered = True
        self._forget()
        self._transport.pause_reading()
        connection.connection_made(self._transport)
        self._transport.set_protocol(connection)
        feed(connection, bytes(self._early))
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def _begin_splice(self, owner: Address) -> None:
        try:
            tls = self._port.tls_to(owner)
        except RequestError as error:
            log.warning("%s cannot be passed on to the owner at %s: %s", self._host, owner, one_line(error))
            self._end()
            return
        self._deadline.cancel()
        self.idle_since = None
        self._transport.set_write_buffer_limits(high=_SPLICE_BYTES_MAX)
        self._splice = Splice(self._transport, owner, bytes(self._early), tls)
        self._early.clear()

    def _write(self, frame: Frame) -> None:
        self._transport.write(self._session.send(frame))

    def _end(self) -> None:
        """The peer may take some time to read what was sent."""
        self._session.close()
        if self._transport.can_write_eof():
            self._transport.write_eof()
        else:
            close_once(self._transport)
        self._set_deadline(_LAST_WORDS_SECONDS)

    def _set_deadline(self, seconds: float) -> None:
        self._deadline.cancel()
        self._deadline = self._loop.call_later(seconds, self.abort)

    # Others call these.

    def close_if_unanswered(self) -> None:
        if not self._answered:
            close_once(self._transport)

    def abort(self) -> None:
        self._transport.abort()

    def evict(self) -> None:
        self._port.limits.leave(self)
        self.abort()


def _end(transport: asyncio.Transport) -> None:
    """Nothing more is sent; what was written before is."""
    if transport.can_write_eof():
        transport.write_eof()
    else:
        transport.close()


class Splice(asyncio.Protocol):
    """The connection to the owner, for a source whose bytes are passed on. Neither side is read while the other one
    does not take what has come; an end of either direction is passed on, and so is a lost connection.
    """

    def __init__(
        self, source: asyncio.Transport, owner: Address, early: bytes, tls: ssl.SSLContext | None = None
    ) -> None:
        """`tls`: for the connection to the owner. With TLS, the end of one direction is the end of both."""
        self._source = source
        self._owner: asyncio.Transport | None = None
        self._tls = tls
        self._early = bytearray(early)
        self._has_source_ended = self._has_owner_ended = self._is_source_lost = False
        self._connecting = asyncio.get_running_loop().create_task(self._connect(owner))

    async def _connect(self, owner: Address) -> None:
        self._source.pause_reading()
        try:
            async with asyncio.timeout(_CONNECT_SECONDS_MAX):
                await asyncio.get_running_loop().create_connection(lambda: self, owner.host, owner.port, ssl=self._tls)
        except (OSError, TimeoutError) as error:
            log.warning("a source cannot be passed on to the owner at %s: %s", owner, error)
            self._source.close()

    # The connection of the source calls these.

    def to_owner(self, data: bytes) -> None:
        if self._owner is None:
            self._early += data
        else:
            self._owner.write(data)

    def source_has_ended(self) -> None:
        self._has_source_ended = True
        if self._owner is not None and not self._owner.is_closing():
            _end(self._owner)
            self._close_if_both_have_ended()

    def source_is_lost(self, error: Exception | None) -> None:
        self._is_source_lost = True
        if self._owner is None:
            self._connecting.cancel()
        elif error is None:
            self._owner.close()
        else:
            self._owner.abort()

    def pause_owner(self) -> None:
        if self._owner is not None and not self._owner.is_closing():
            self._owner.pause_reading()

    def resume_owner(self) -> None:
        if self._owner is not None and not self._owner.is_closing():
            self._owner.resume_reading()

    # The transport to the owner calls these.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._owner = cast("asyncio.Transport", transport)
        self._owner.set_write_buffer_limits(high=_SPLICE_BYTES_MAX)
        find_dead_peers(self._owner, _DEAD_PEER_SECONDS)
        if self._is_source_lost:
            self._owner.abort()
            return
        self._owner.write(bytes(self._early))
        self._early.clear()
        if self._has_source_ended:
            _end(self._owner)
        if not self._source.is_closing():
            self._source.resume_reading()

    def data_received(self, data: bytes) -> None:
        self._source.write(data)

    def eof_received(self) -> bool:
        self._has_owner_ended = True
        if not self._source.is_closing():
            _end(self._source)
            self._close_if_both_have_ended()
        return self._tls is None

    def _close_if_both_have_ended(self) -> None:
        if self._has_source_ended and self._has_owner_ended and self._owner is not None:
            self._owner.close()
            self._source.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is None:
            self._source.close()
        else:
            self._source.abort()

    def pause_writing(self) -> None:
        if not self._source.is_closing():
            self._source.pause_reading()

    def resume_writing(self) -> None:
        if not self._source.is_closing():
            self._source.resume_reading()


def connector_address(text: str) -> Address | None:
    """From a worker's record; None if it is not there or not valid."""
    try:
        return Address.parse(text) if text else None
    except RequestError:
        return None


async def route(directory: Directory, source: str, *, is_placed: bool = True) -> Route:
    """HERE for sources of this process's own shard, and for what is not a source of a program's. `is_placed`: a source
    without a place gets one. Of several partitions, sessions get one after the other; a program whose streams belong to
    another one is sent there when it opens them. Raises Unavailable, and RequestError for too many partitions.
    """
    try:
        thing = thing_of(check_source_name(source))
    except RequestError:
        return HERE
    if thing is None:
        return HERE
    shards = await (directory.partitions(source) if is_placed else directory.placed_partitions(source))
    shards = shards or (await directory.likely(thing),)
    if any(map(directory.is_own, shards)):
        return HERE
    first = directory.turn(source) if len(shards) > 1 else 0
    for number in range(len(shards)):  # a partition that no worker serves now is not waited for
        address = connector_address(await directory.connector_of(shards[(first + number) % len(shards)]))
        if address is not None:
            return address
    return None
