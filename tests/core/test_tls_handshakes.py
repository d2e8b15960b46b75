"""Unfinished TLS handshakes are limited in number and time, and a protocol notices nothing of them."""

import asyncio
import inspect
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any, Self, cast

import pytest
import uvloop

from penstock.core.tls_handshakes import HandshakeLimits, TlsHandshakes, close_once
from tests.support.tls import client_context, server_context
from tests.support.waiting import eventually


def on_each_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """`penstock worker` runs on uvloop, an embedded one on any loop."""

    def run(new_loop: Callable[[], asyncio.AbstractEventLoop], **given: Any) -> None:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(test(**given))

    own = inspect.signature(test)
    first = inspect.Parameter("new_loop", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    run.__name__, run.__doc__ = test.__name__, test.__doc__
    run.__signature__ = own.replace(parameters=[first, *own.parameters.values()])  # type: ignore[attr-defined]
    loops = pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
    return cast("Callable[..., None]", loops(run))


class Echo(asyncio.Protocol):
    made = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        type(self).made += 1
        self._transport = transport
        assert transport.get_extra_info("peername")
        assert transport.get_extra_info("cipher")

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)  # type: ignore[attr-defined]


class BufferedEcho(asyncio.BufferedProtocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._buffer = bytearray(3)

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._transport.write(bytes(self._buffer[:nbytes]))  # type: ignore[attr-defined]


@asynccontextmanager
async def listening(
    limits: HandshakeLimits, factory: Callable[[], asyncio.BaseProtocol] = Echo
) -> AsyncIterator[tuple[int, TlsHandshakes]]:
    handshakes = TlsHandshakes(server_context(), limits)
    server = await asyncio.get_running_loop().create_server(lambda: handshakes.protocol(factory), "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], handshakes
    finally:
        server.close()


class Silent:
    """Connections that never send anything."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._opened: list[socket.socket] = []

    async def connect(self, address: str = "127.0.0.1") -> socket.socket:
        connection = socket.socket()
        connection.bind((address, 0))
        connection.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", self._port))
        self._opened.append(connection)
        return connection

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for one in self._opened:
            one.close()


def is_closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


async def echoed(port: int, data: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client_context())
    writer.write(data)
    answer = await asyncio.wait_for(reader.readexactly(len(data)), 60)
    writer.close()
    with suppress(ConnectionError, ssl.SSLError):
        await writer.wait_closed()
    return answer


@on_each_loop
async def test_a_newcomer_replaces_the_oldest_unfinished_one_of_its_address() -> None:
    async with listening(HandshakeLimits(total_max=10, address_max=3, seconds=1000)) as (port, handshakes):
        with Silent(port) as silent:
            other = await silent.connect("127.0.0.2")
            own = [await silent.connect() for _ in range(3)]
            await eventually(lambda: len(handshakes.unfinished) == 4)
            assert await echoed(port, b"good") == b"good"
            await eventually(lambda: is_closed(own[0]))
            assert len(handshakes.unfinished) == 3, "whoever has finished does not count"
            assert not any(map(is_closed, [other, *own[1:]]))


@on_each_loop
async def test_in_total_the_address_with_most_loses_one() -> None:
    async with listening(HandshakeLimits(total_max=3, address_max=3, seconds=1000)) as (port, handshakes):
        with Silent(port) as silent:
            many = [await silent.connect("127.0.0.2") for _ in range(3)]
            await eventually(lambda: len(handshakes.unfinished) == 3)
            assert await echoed(port, b"good") == b"good"
            await eventually(lambda: is_closed(many[0]))
            assert not any(map(is_closed, many[1:]))


@on_each_loop
async def test_a_handshake_has_limited_time() -> None:
    async with listening(HandshakeLimits(seconds=0.1)) as (port, handshakes):
        with Silent(port) as silent:
            one = await silent.connect()
            await eventually(lambda: is_closed(one))
            await eventually(lambda: len(handshakes.unfinished) == 0)


@on_each_loop
async def test_bytes_that_are_not_a_handshake_end_it_quietly(caplog: pytest.LogCaptureFixture) -> None:
    Echo.made = 0
    async with listening(HandshakeLimits(seconds=1000)) as (port, handshakes):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\n\r\n" * 10)
        with suppress(ConnectionError):
            await asyncio.wait_for(reader.read(), 60)
        writer.close()
        await eventually(lambda: len(handshakes.unfinished) == 0)
        assert Echo.made == 0
        assert caplog.records == []


@pytest.mark.parametrize("factory", [Echo, BufferedEcho])
@on_each_loop
async def test_what_comes_with_the_end_of_the_handshake_is_received_once_and_in_order(
    factory: Callable[[], asyncio.BaseProtocol],
) -> None:
    """All of it in one segment: the loop reads it at once, before the protocol exists."""
    async with listening(HandshakeLimits(), factory) as (port, _):
        data = bytes(range(256)) * 40
        assert await asyncio.to_thread(_exchange, port, data) == data


@on_each_loop
async def test_a_handshake_that_has_arrived_with_the_connection_is_read_as_one() -> None:
    """The loop finds both at once, again and again."""
    async with listening(HandshakeLimits()) as (port, _):
        for _ in range(20):
            exchanges = [asyncio.to_thread(_exchange, port, b"%d" % number) for number in range(5)]
            time.sleep(0.01)  # noqa: ASYNC251  the loop is to be late
            assert await asyncio.gather(*exchanges) == [b"%d" % number for number in range(5)]


def _exchange(port: int, data: bytes) -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = client_context().wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    with socket.create_connection(("127.0.0.1", port), 60) as connection:
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                connection.sendall(outgoing.read())
                incoming.write(connection.recv(65536))
        tls.write(data[:1000])
        tls.write(data[1000:])
        connection.sendall(outgoing.read())
        answer = b""
        while len(answer) < len(data):
            try:
                answer += tls.read(65536)
            except ssl.SSLWantReadError:
                incoming.write(connection.recv(65536))
        return answer


@on_each_loop
async def test_a_connection_whose_peer_does_not_answer_its_end_is_aborted_although_it_was_closed_twice() -> None:
    made: list[Any] = []
    has_ended: list[bool] = []

    class Server(Echo):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            made.append(transport)

        def connection_lost(self, exc: Exception | None) -> None:
            has_ended.append(True)

    handshakes = TlsHandshakes(server_context(), HandshakeLimits())
    server = await asyncio.get_running_loop().create_server(lambda: handshakes.protocol(Server), "127.0.0.1", 0)
    with (
        socket.create_connection(server.sockets[0].getsockname()) as plain,
        await asyncio.to_thread(client_context().wrap_socket, plain, server_hostname="127.0.0.1"),
    ):
        await eventually(lambda: made)
        close_once(made[0])
        close_once(made[0])
        made[0].abort()
        for _ in range(10):  # otherwise it ends after half a minute
            await asyncio.sleep(0)
        assert has_ended
    server.close()
