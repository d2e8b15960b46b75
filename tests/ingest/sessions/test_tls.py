"""Sources over TLS, also with client certificates."""

import asyncio
import ssl
from contextlib import suppress
from pathlib import Path

import pytest

from penstock.access.file import AccessFile, StoredGrant
from penstock.protocol.connector import NOTHING_YET, Ack, Acked, EndOfStream, Error, Hello, Message, Ok, announce_window
from tests.ingest.conftest import Peer, Serve
from tests.support.tls import CA, client_context, server_context
from tests.support.waiting import SECONDS_MAX
from tests.support.worker_process import WorkerProcess


async def hello(port: int, context: ssl.SSLContext | None) -> Peer:
    peer = Peer(*await asyncio.open_connection("127.0.0.1", port, ssl=context))
    peer.send(Hello("0.0.1", b"", announce_window("test"), "source"))
    try:
        frame = await peer.frame()
        assert isinstance(frame, Ok), frame
    except (OSError, EOFError, AssertionError):
        await peer.close()
        raise
    return peer


async def stream(peer: Peer) -> None:
    """Some MiB, so that TLS records end inside frames."""
    assert await peer.open(7) == NOTHING_YET
    for number in range(1, 101):
        peer.send(Message(7, number, 0, b"key", number.to_bytes(1, "big") * 30_000))
    peer.send(EndOfStream(7))
    while not (isinstance(frame := await peer.frame(), Ack) and Acked(7, 100) in frame.acked):
        assert isinstance(frame, Ack), frame


@pytest.mark.parametrize("mutual", [False, True])
async def test_a_source_streams_over_tls(serve: Serve, mutual: bool) -> None:
    running = await serve(ssl=server_context(mutual=mutual))
    peer = await hello(running.port, client_context(certificate=mutual))
    await stream(peer)
    assert [event.event_id for event in running.events()] == list(range(1, 101))
    assert {event.payload for event in running.events()} == {bytes([n]) * 30_000 for n in range(1, 101)}
    peer.send(Hello("0.0.1", b"", announce_window("test"), "source"))
    frames = await peer.frames_until_closed()
    assert isinstance(frames[-1], Error), "an error is sent over TLS too"
    await peer.close()


async def test_a_source_without_a_certificate_is_refused_where_one_is_required(serve: Serve) -> None:
    running = await serve(ssl=server_context(mutual=True))
    with pytest.raises((ssl.SSLError, EOFError, ConnectionError)):
        await hello(running.port, client_context())
    assert running.sources.counters.sessions_joined == 0


async def test_tls_on_one_side_only_ends_the_connection(serve: Serve) -> None:
    running = await serve(ssl=server_context())
    with pytest.raises((EOFError, ConnectionError)):
        await hello(running.port, None)
    running = await serve()
    with pytest.raises((ssl.SSLError, EOFError, ConnectionError)):
        await hello(running.port, client_context())


async def test_a_peer_that_does_not_complete_the_tls_handshake_is_closed_after_the_timeout(serve: Serve) -> None:
    running = await serve(ssl=server_context(), handshake_seconds=0.3)
    reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
    async with asyncio.timeout(SECONDS_MAX):
        with suppress(ConnectionError):
            assert await reader.read() == b""
    writer.close()


@pytest.mark.process
async def test_the_worker_accepts_only_listed_client_certificates(tmp_path: Path) -> None:
    server, authority = CA.issue_cert("127.0.0.1"), tmp_path / "ca.pem"
    key, chain = tmp_path / "key.pem", tmp_path / "chain.pem"
    CA.cert_pem.write_to_path(authority)
    server.private_key_pem.write_to_path(key)
    for part in server.cert_chain_pems:
        part.write_to_path(chain, append=True)
    options = ("--tls-cert", str(chain), "--tls-key", str(key), "--tls-client-ca", str(authority))
    access, certified = AccessFile(tmp_path / "data"), client_context(certificate=True)
    with WorkerProcess(tmp_path / "data", *options) as worker:
        access.add(StoredGrant("program", "write", certificate="client@example.org"))
        peer = await let_in(worker.connector_port, certified)
        await stream(peer)
        await peer.close()
        with pytest.raises((ssl.SSLError, EOFError, ConnectionError)):
            await hello(worker.connector_port, client_context())
        with pytest.raises(AssertionError, match="the certificate is not listed"):
            await hello(worker.connector_port, client_context(certificate=True, name="other@example.org"))
        access.revoke("program")
        await until_refused(worker.connector_port, certified)


async def let_in(port: int, context: ssl.SSLContext) -> Peer:
    """Retries until the worker has reloaded its access file."""
    async with asyncio.timeout(SECONDS_MAX):
        while True:
            with suppress(AssertionError):
                return await hello(port, context)
            await asyncio.sleep(0.05)


async def until_refused(port: int, context: ssl.SSLContext) -> None:
    """Wait until a revoked certificate is refused."""
    async with asyncio.timeout(SECONDS_MAX):
        while True:
            try:
                await (await hello(port, context)).close()
            except AssertionError:
                return
            await asyncio.sleep(0.05)
