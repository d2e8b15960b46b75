"""The segment port of a host with TLS: connections are passed on to the process, over TLS as well."""

import asyncio
from pathlib import Path

import pytest

from penstock.client.credentials import TLS_VARIABLES
from penstock.client.segments import SegmentClient
from penstock.cluster.places import Thing
from penstock.core.tls_handshakes import with_tls
from penstock.protocol.segment import VERSIONED, GetSegmentInfo
from penstock.segment_server.settings import ServerSettings
from penstock.worker.certificates import ReloadedContext, TlsFiles, requires_certificate
from penstock.worker.directory import SEGMENT
from penstock.worker.segment_splices import SegmentPort
from tests.support.running_worker import running_worker
from tests.support.tls import CA, client_context, server_context


class OneShard:
    """A directory in which one process has everything."""

    def __init__(self, segment: str) -> None:
        self._segment = segment

    async def likely(self, _: Thing) -> int:
        return 0

    async def addresses(self, _: int) -> dict[str, str]:
        return {SEGMENT: self._segment}


def append_and_read(address: str) -> list[bytes]:
    with SegmentClient(address, ssl=client_context()) as segments:
        with segments.appender("raw", create=True) as appender:
            for number in range(100):
                appender.append(b"%d" % number * 100)
        return [bytes(event.data) for event in segments.events("raw")]


async def test_a_client_of_segments_with_tls_is_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    CA.cert_pem.write_to_path(tmp_path / "ca.pem")
    monkeypatch.setenv(TLS_VARIABLES[0], str(tmp_path / "ca.pem"))
    with running_worker(tmp_path / "data", ssl=server_context()) as worker:
        settings = ServerSettings(port=0, ssl=server_context())
        port = SegmentPort(settings, OneShard(worker.address))  # type: ignore[arg-type]
        factory = with_tls(port.connection, settings.ssl, settings.handshake_seconds)
        server = await asyncio.get_running_loop().create_server(factory, "127.0.0.1", 0)
        async with server:
            address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
            found = await asyncio.to_thread(append_and_read, address)
    assert found == [b"%d" % number * 100 for number in range(100)]


async def test_a_client_is_closed_if_the_files_of_tls_cannot_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TLS_VARIABLES[0], str(tmp_path / "missing.pem"))
    settings = ServerSettings(port=0, ssl=server_context())
    port = SegmentPort(settings, OneShard("127.0.0.1:1"))  # type: ignore[arg-type]
    server = await asyncio.get_running_loop().create_server(port.connection, "127.0.0.1", 0)
    async with server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(VERSIONED.encode(GetSegmentInfo("raw")))
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()


def test_whether_clients_must_have_certificates_is_known_of_files_that_may_change(tmp_path: Path) -> None:
    CA.cert_pem.write_to_path(tmp_path / "ca.pem")
    CA.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(tmp_path / "cert.pem")
    assert not requires_certificate(ReloadedContext(TlsFiles(tmp_path / "cert.pem", None, None)))
    assert requires_certificate(ReloadedContext(TlsFiles(tmp_path / "cert.pem", None, tmp_path / "ca.pem")))
    assert requires_certificate(server_context(mutual=True))
