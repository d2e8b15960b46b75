"""The connector sink: any program that speaks the connector protocol in the sink role."""

import asyncio
import os
import ssl
from collections.abc import Callable
from contextlib import suppress
from ssl import SSLContext

from penstock.client.sockets import DEAD_PEER_SECONDS, PeerProtocol
from penstock.connectors.connector_protocol.options import (
    EVENT_TIME_UNITS,
    ConnectorProtocolOptions,
    read_cookie,
    tls_context,
)
from penstock.connectors.connector_protocol.session import OutputSession
from penstock.connectors.sink_api import YES, Block, CheckReport, Epoch, SinkLost, Transaction, Vote, accept_any
from penstock.core.address import Address
from penstock.core.errors import LimitExceeded, RequestError
from penstock.core.platforms import limit_unacknowledged
from penstock.core.types import Buffer
from penstock.protocol.connector import SINK_VERSION, Hello
from penstock.protocol.connector.output import encode_output

# A connection to a connector sink: the bytes of one session.

UNSENT_BYTES_MAX = 256 * 1024
"""Bytes that may wait for the sink to read, besides the kernel's buffers: "TCP is the backpressure"."""

PIECE_BYTES = 256 * 1024
"""Passed to the transport at a time, which copies what it cannot send immediately."""

FAREWELL_SECONDS = 2.0
"""How long a sink may take to read the last data, and to close."""


class OutputConnection(PeerProtocol[SinkLost]):
    """It always reads, so that messages of the sink are noticed both while data is sent and while idle.

    One task at a time waits on it.
    """

    def __init__(self, session: OutputSession, options: ConnectorProtocolOptions, address: Address) -> None:
        super().__init__(asyncio.Event(), UNSENT_BYTES_MAX)
        self.session = session
        self._options = options
        self._address = address
        self._where = str(address)

    async def connect(self, tls: ssl.SSLContext | None) -> None:
        """Raises SinkLost if nothing listens there, or TLS fails."""
        host, port = self._address.host, self._address.port
        name = None if tls is None else self._options.server_name or host
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(lambda: self, host, port, ssl=tls, server_hostname=name)
        except ssl.SSLError as error:
            hint = "Check certificates and authorities, and that the sink speaks TLS."
            raise SinkLost(f"no TLS connection to the sink at {self._where}: {error}", hint) from error
        except OSError as error:
            raise self._loss(error) from error
        self.flush()

    def flush(self) -> None:
        """Sends what the session has to send. Raises SinkLost when the connection is lost."""
        self.check()
        if parts := self.session.take():
            self._write(parts)

    async def send(self, data: Buffer) -> None:
        """Send as fast as the sink reads. Raises SinkLost when the connection is lost, however much has been sent."""
        view = memoryview(data)
        for start in range(0, len(view), PIECE_BYTES):
            await self.until(lambda: self._has_room)
            assert self._transport is not None
            self._transport.write(view[start : start + PIECE_BYTES])
            await asyncio.sleep(0)  # the sink may have sent something
        self.check()

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Wait until the condition is true. Raises SinkLost when the connection is lost before that."""
        while True:
            self.check()
            if is_so():
                return
            self._changed.clear()
            await self._changed.wait()

    def check(self) -> None:
        """Raises SinkLost when the connection is lost."""
        if self.lost is not None:
            raise SinkLost(str(self.lost), self.lost.hint)

    async def farewell(self) -> None:
        """Let the data arrive: send all of it, and read until the sink closes."""
        await self.end_sending(FAREWELL_SECONDS)

    def close(self, reason: SinkLost | None = None) -> None:
        """Immediately."""
        self._end(reason or SinkLost(f"the connection to the sink at {self._where} is closed"))
        self._abort()

    @property
    def _stall_milliseconds(self) -> int:
        """After this time TCP drops a sink that has not read. A sink may take as long to commit as to vote, and does
        not read in the meantime.
        """
        return round(max(DEAD_PEER_SECONDS, self._options.vote) * 1000)

    def _send_last(self) -> None:
        assert self._transport is not None
        self._write(self.session.take())
        self._transport.close()

    def _loss(self, error: Exception | None) -> SinkLost:
        if error is None:
            return SinkLost(f"the sink at {self._where} closed the connection")
        number = getattr(error, "errno", None)  # asyncio puts the address in place of the system's text
        reason = os.strerror(number) if number else str(error) or type(error).__name__
        return SinkLost(f"the sink at {self._where} cannot be reached: {reason}")

    # Called by the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        with suppress(OSError):  # it is lost already: the transport will notice
            limit_unacknowledged(transport.get_extra_info("socket"), self._stall_milliseconds)

    def data_received(self, data: bytes) -> None:
        if self.lost is not None:
            return
        try:
            self.session.receive(data)
            self.flush()
        except SinkLost as error:
            self._end(error)
            self._send_last()
        self._changed.set()


HANDSHAKE_SECONDS = 10.0
"""From the first packet to the list of uncommitted transactions, including TLS."""

END_SECONDS = 2.0
"""How long to wait for the ACK of an EOS_MESSAGE: "existing sinks" send none."""


class ConnectorSink:
    """A VotingSink. The sink's two-phase messages are its votes; if a message does not fit into a frame, we vote no.

    What was sent without a PHASE1 can be revoked only by a new connection, which `abort` opens.

    A sink that sends RESTART with an address has moved there: the next session is there, and if nothing answers, the
    one after that at the configured address again.
    """

    def __init__(self, options: ConnectorProtocolOptions, instance: str) -> None:
        self._options = options
        self._instance = options.instance or instance
        self._unit_us = EVENT_TIME_UNITS[options.event_time_unit]
        self._decided = b""
        self._check: CheckReport = accept_any
        self._connection: OutputConnection | None = None
        self._reported = ""
        """The last ERROR of the sink program, until it accepts a session again."""
        self._moved_to: Address | None = None

    def __repr__(self) -> str:
        return f"ConnectorSink({self._options.where}, {self._instance!r})"

    @property
    def _address(self) -> Address:
        """Where the sink is now."""
        options = self._options
        assert options.port is not None, "without one there is no port `in`"
        return self._moved_to or Address(options.host, options.port)

    @property
    def is_open(self) -> bool:
        """Whether there is a session, as far as is known: a sink that closes or fails is noticed even while idle."""
        return self.lost is None and self._connection is not None and self._connection.session.is_ready

    @property
    def lost(self) -> SinkLost | None:
        """Why there is no session any more; None while there is one, and before the first."""
        return None if self._connection is None else self._connection.lost

    async def open(self, decided: bytes, check: CheckReport = accept_any) -> None:
        """See VotingSink. Also ends the current session."""
        self._drop()
        self._decided, self._check = decided, check
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                await self._connect()
        except TimeoutError:
            lost = SinkLost(f"the sink at {self._address} has not answered for {HANDSHAKE_SECONDS:g} s")
            self._go_home()
            raise self._explained(lost) from None
        except SinkLost as error:
            self._go_home()
            raise self._explained(error) from error
        except BaseException:
            self._drop()
            raise
        self._reported = ""

    async def prepare(self, epoch: Epoch) -> Vote:
        """See VotingSink. PHASE1 is sent only after the attempt is journalled; data is sent before that."""
        connection = await self._clean()
        async for block in epoch.blocks():
            try:
                frames = self._encode(block)
            except LimitExceeded as error:
                return Vote(False, str(error))
            connection.session.data(_last_id(block))
            await connection.send(frames)
        await epoch.journalled()
        connection.check()
        connection.session.ask(epoch.transaction)
        connection.flush()
        return await self._vote(connection)

    async def commit(self, transaction: Transaction) -> None:
        """See VotingSink. There is no confirmation: only a later list without the transaction shows that it arrived."""
        connection = self._usable()
        is_done = connection.session.asked is None and self._decided == transaction.id
        self._decided = transaction.id
        if not is_done:
            connection.session.decide(transaction.id, True)
            connection.flush()

    async def abort(self, transaction_id: bytes) -> None:
        """See VotingSink: PHASE2 if there was a PHASE1, else a new connection if there was data."""
        del transaction_id  # there is only one in a session
        await self._clean()

    async def end(self) -> None:
        """Sends EOS_MESSAGE, and waits briefly for its ACK; a sink that sends none, or closes, does nothing wrong."""
        connection = self._usable()
        connection.session.end()
        connection.flush()
        with suppress(TimeoutError, SinkLost):
            async with asyncio.timeout(END_SECONDS):
                await connection.until(lambda: connection.session.is_end_acknowledged)

    async def close(self) -> None:
        """Let a sink without an open transaction read everything that was sent; close the connection to any other at
        once.
        """
        connection = self._connection
        try:
            if connection is not None and connection.lost is None and connection.session.is_settled:
                await connection.farewell()
        finally:
            self._drop()

    async def _connect(self) -> None:
        hello, tls = await asyncio.to_thread(self._read_files)
        session = OutputSession(str(self._address), hello, self._decided, self._check)
        self._connection = OutputConnection(session, self._options, self._address)
        await self._connection.connect(tls)
        await self._connection.until(lambda: session.is_ready)

    def _read_files(self) -> tuple[Hello, SSLContext | None]:
        options = self._options
        try:
            hello = Hello(SINK_VERSION, read_cookie(options), options.program, self._instance)
            return hello, tls_context(options)
        except (OSError, RequestError) as error:
            raise SinkLost(
                f"the sink at {options.where}: a TLS file of the connector cannot be used: {error}"
            ) from error

    async def _clean(self) -> OutputConnection:
        """A session in which an epoch may start. An open round is aborted; what was sent without one is revoked."""
        connection = self._usable()
        asked = connection.session.asked
        if asked is not None:
            connection.session.decide(asked, False)
            connection.flush()
        if not connection.session.can_begin:
            await self.open(self._decided, self._check)
        return self._usable()

    def _encode(self, block: Block) -> memoryview:
        options = {"unit_us": self._unit_us, "frame_size_max": self._options.frame_size_max}
        return encode_output(block.times, block.keys, block.values, block.first_id, **options)

    async def _vote(self, connection: OutputConnection) -> Vote:
        session, seconds = connection.session, self._options.vote
        try:
            async with asyncio.timeout(seconds):
                await connection.until(lambda: session.vote is not None)
        except TimeoutError:
            lost = SinkLost(f"the sink at {self._address} has not voted for {seconds:g} s")
            connection.close(lost)
            raise lost from None
        return YES if session.vote else Vote(False, f"the sink at {self._address} votes no")

    def _usable(self) -> OutputConnection:
        if self._connection is None:
            raise SinkLost(f"no connection to the sink at {self._address}")
        self._connection.check()
        return self._connection

    def _go_home(self) -> None:
        """There was no session: back to the configured address, unless the sink has just sent us elsewhere."""
        self._moved_to = None
        self._drop()

    def _drop(self) -> None:
        if self._connection is not None:
            self._reported = self._connection.session.reported or self._reported
            with suppress(RequestError):  # not an address: connect where it was
                if moved_to := self._connection.session.moved_to:
                    self._moved_to = Address.parse(moved_to, self._address.port)
            self._connection.close()
            self._connection = None

    def _explained(self, error: SinkLost) -> SinkLost:
        """The error with the sink program's last report, which names the cause if this error is only a consequence."""
        if not self._reported or self._reported in str(error):
            return error
        return SinkLost(f"{error}; before that it reported: {self._reported}", error.hint)


def _last_id(block: Block) -> int:
    offsets = block.values.offsets
    return block.first_id + int(offsets[len(block) - 1]) - int(offsets[0])
