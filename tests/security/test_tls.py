"""TLS on all ports of a worker: its clients, certificates in place of tokens, and certificates that are renewed."""

import json
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import trustme

from penstock.access.file import AccessFile, StoredGrant
from penstock.client.coordinator import CoordinatorClient
from penstock.core.errors import RequestError, Unauthenticated, Unavailable
from penstock.core.tls_handshakes import HandshakeLimits
from penstock.worker.certificates import ReloadedContext, TlsFiles
from tests.support.waiting import until
from tests.support.worker_process import WorkerProcess

pytestmark = pytest.mark.process

CA = trustme.CA()
UNFINISHED = 200


def write(certificate: trustme.LeafCert, folder: Path, name: str) -> tuple[Path, Path]:
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    certificate.cert_chain_pems[0].write_to_path(cert)
    certificate.private_key_pem.write_to_path(key)
    return cert, key


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("tls")
    CA.cert_pem.write_to_path(made / "ca.pem")
    write(CA.issue_cert("client.example"), made, "client")
    write(CA.issue_cert("worker.example"), made, "worker")
    return made


@pytest.fixture(scope="module")
def worker(folder: Path) -> Iterator[WorkerProcess]:
    options = ("--tls-cert", "worker.pem", "--tls-key", "worker.key")
    files = [str(folder / option) if option.startswith("worker") else option for option in options]
    with WorkerProcess(folder / "data", *files, "--tls-client-ca", str(folder / "ca.pem")) as running:
        yield running


@pytest.fixture
def address(worker: WorkerProcess, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("PENSTOCK_TLS_CA", str(folder / "ca.pem"))
    return f"https://127.0.0.1:{worker.http_port}"


def test_a_client_with_the_authority_and_the_token_is_served_over_tls(address: str) -> None:
    with CoordinatorClient(address, 0) as client:
        assert client.status().tls


def test_a_certificate_of_an_unknown_authority_ends_the_connection_before_the_token_is_sent(
    address: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trustme.CA().cert_pem.write_to_path(tmp_path / "other.pem")
    monkeypatch.setenv("PENSTOCK_TLS_CA", str(tmp_path / "other.pem"))
    with CoordinatorClient(address, 0) as client, pytest.raises(Unavailable, match="no TLS connection"):
        client.status()


def test_plain_http_gets_no_answer(worker: WorkerProcess) -> None:
    with CoordinatorClient(f"127.0.0.1:{worker.http_port}", 0) as client, pytest.raises(Unavailable):
        client.status()


def test_a_certificate_that_was_added_replaces_a_token(
    worker: WorkerProcess, address: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PENSTOCK_TOKEN_FILE")
    monkeypatch.setenv("PENSTOCK_TLS_CERT", str(folder / "client.pem"))
    monkeypatch.setenv("PENSTOCK_TLS_KEY", str(folder / "client.key"))

    def is_served() -> bool:
        with CoordinatorClient(address, 0) as client:
            try:
                return bool(client.status())
            except Unauthenticated:
                return False

    assert not is_served(), "nobody has added it"
    AccessFile(worker.data).add(StoredGrant("machine", "read", certificate="client.example"))
    until(is_served)
    monkeypatch.delenv("PENSTOCK_TLS_CERT")
    assert not is_served()


def test_commands_on_the_same_machine_find_token_and_certificate_by_the_data(
    worker: WorkerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PENSTOCK_TOKEN_FILE")
    command = [sys.executable, "-m", "penstock", "status", "--json", "--data", str(worker.data)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["tls"] is True


def test_a_renewed_certificate_is_used_on_all_ports_without_a_restart(tmp_path: Path) -> None:
    cert, key = write(CA.issue_cert("127.0.0.1"), tmp_path, "worker")
    with WorkerProcess(tmp_path / "data", "--tls-cert", str(cert), "--tls-key", str(key)) as worker:
        ports = (worker.http_port, worker.segment_port, worker.connector_port)

        def shown() -> set[str]:
            return {ssl.get_server_certificate(("127.0.0.1", port)) for port in ports}

        old = cert.read_text()
        assert {one.strip() for one in shown()} == {old.strip()}
        write(CA.issue_cert("127.0.0.1"), tmp_path, "worker")
        new = cert.read_text()
        assert new != old
        until(lambda: {one.strip() for one in shown()} == {new.strip()})


def test_unfinished_handshakes_are_limited_on_every_port(worker: WorkerProcess, address: str) -> None:
    for port in (worker.http_port, worker.segment_port, worker.connector_port):
        unfinished = [socket.create_connection(("127.0.0.1", port), 60) for _ in range(UNFINISHED)]
        with suppress(OSError):  # it has no certificate of its own, which it may learn now or later
            assert ssl.get_server_certificate(("127.0.0.1", port), timeout=60)
        with CoordinatorClient(address, 60) as client:
            assert client.status().tls
        assert sum(map(_is_open, unfinished)) <= HandshakeLimits().address_max
        for one in unfinished:
            one.close()


def _is_open(one: socket.socket) -> bool:
    one.settimeout(0)
    try:
        return bool(one.recv(1))
    except BlockingIOError:
        return True
    except OSError:
        return False


def test_files_that_cannot_be_used_leave_the_certificate_as_it_was(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cert, key = write(CA.issue_cert("127.0.0.1"), tmp_path, "worker")
    now = 0.0
    context = ReloadedContext(TlsFiles(cert, key), clock=lambda: now)
    cert.write_text("half of a certif")
    now = 1.0
    assert context.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_side=True) is not None
    assert "the certificates stay as they were" in caplog.text


def test_files_that_cannot_be_used_at_the_start_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="cannot be used"):
        ReloadedContext(TlsFiles(tmp_path / "absent.pem"))
