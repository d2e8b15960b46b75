"""Nobody listens, or the wrong server: the error reports it, and what to do."""

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from penstock.client.segments import AsyncSegmentClient, SegmentClient
from penstock.core.address import Address
from penstock.core.errors import PenstockError, ProtocolError, RequestError, Unavailable
from penstock.protocol.segment import VERSIONED, ErrorMessage, Hello


@contextmanager
def peer(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """Accepts connections and answers each; gives its address."""
    listener = socket.create_server(("127.0.0.1", 0))
    stopping = False

    def serve() -> None:
        while True:
            connection, _ = listener.accept()
            with connection:
                if stopping:
                    return
                answer(connection)

    thread = threading.Thread(target=serve)
    thread.start()
    port = listener.getsockname()[1]
    try:
        yield f"127.0.0.1:{port}"
    finally:
        stopping = True
        socket.create_connection(("127.0.0.1", port)).close()
        thread.join()
        listener.close()


def nobody() -> str:
    """An address where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"127.0.0.1:{listener.getsockname()[1]}"


def failures(address: str, *, timeout_seconds: float = 5.0, retry_seconds: float = 0.0) -> list[PenstockError]:
    """What both clients raise."""

    async def ask() -> None:
        async with AsyncSegmentClient(address, timeout_seconds=timeout_seconds, retry_seconds=retry_seconds) as client:
            await client.info("s")

    raised: list[PenstockError] = []
    with SegmentClient(address, timeout_seconds=timeout_seconds, retry_seconds=retry_seconds) as client:
        for call in (lambda: client.info("s"), lambda: client.appender("s"), lambda: asyncio.run(ask())):
            with pytest.raises(PenstockError) as error:
                call()
            raised.append(error.value)
    return raised


def test_a_refused_connection_names_the_address() -> None:
    address = nobody()
    for error in failures(address):
        assert isinstance(error, Unavailable)
        assert address in str(error)
        assert "penstock worker" in error.hint


def test_a_name_that_does_not_resolve_is_reported() -> None:
    for error in failures("no-such-host.invalid:1"):
        assert isinstance(error, Unavailable)
        assert "no-such-host.invalid:1" in str(error)


def test_it_is_retried_for_as_long_as_configured() -> None:
    address = nobody()
    began = time.monotonic()
    with pytest.raises(Unavailable), SegmentClient(address, retry_seconds=0.5) as client:
        client.info("s")
    assert 0.4 < time.monotonic() - began < 30


def test_a_web_server_is_not_a_worker() -> None:
    with peer(lambda connection: connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")) as address:
        for error in failures(address, retry_seconds=5):
            assert isinstance(error, ProtocolError)
            assert address in str(error)
            assert "segment port" in error.hint


def test_a_reply_before_hello_is_an_error() -> None:
    reply = VERSIONED.encode(ErrorMessage("s", "no", -1, 5))
    with peer(lambda connection: connection.sendall(reply)) as address:
        assert all(isinstance(error, ProtocolError) for error in failures(address))


def test_other_versions_are_refused() -> None:
    with peer(lambda connection: connection.sendall(VERSIONED.encode(Hello(99, 90)))) as address:
        for error in failures(address):
            assert isinstance(error, ProtocolError)
            assert "90 to 99" in str(error)


def test_a_peer_that_closes_at_once_is_reported() -> None:
    with peer(lambda connection: None) as address:
        for error in failures(address):
            assert isinstance(error, Unavailable)
            assert address in str(error)


def test_the_reason_that_the_server_gives_for_closing_is_passed_on() -> None:
    def answer(connection: socket.socket) -> None:
        connection.recv(100)
        connection.sendall(VERSIONED.encode(Hello(17, 5)) + VERSIONED.encode(ErrorMessage("", "too much", 7001)))

    with peer(answer) as address:
        for error in failures(address, retry_seconds=5):
            assert isinstance(error, ProtocolError)
            assert "too much" in str(error)


@pytest.mark.parametrize("greets", [False, True])
def test_a_silent_peer_counts_as_lost(greets: bool) -> None:
    def answer(connection: socket.socket) -> None:
        if greets:
            connection.sendall(VERSIONED.encode(Hello(17, 5)))
        while connection.recv(1000):
            pass

    with peer(answer) as address:
        for error in failures(address, timeout_seconds=0.2):
            assert isinstance(error, Unavailable)
            assert "0.2 s" in str(error)


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("a:1", "a", 1),
        ("a", "a", 7101),
        ("[::1]:2", "::1", 2),
        ("[::1]", "::1", 7101),
        ("10.0.0.1:65535", "10.0.0.1", 65535),
    ],
)
def test_addresses(text: str, host: str, port: int) -> None:
    address = Address.parse(text)
    assert (address.host, address.port) == (host, port)
    assert Address.parse(str(address)) == address


@pytest.mark.parametrize("text", ["", ":1", "a:b", "a:65536", "::1", "a:-1", "[]:1"])
def test_what_is_not_an_address_is_refused(text: str) -> None:
    with pytest.raises(RequestError):
        SegmentClient(text)
