"""TLS, also with client certificates."""

import ssl
from pathlib import Path
from typing import Any

import pytest
import trustme
from pydantic import ValidationError

from penstock.connectors.connector_protocol.options import ConnectorProtocolOptions
from penstock.connectors.connector_protocol.sink import ConnectorSink
from penstock.connectors.sink_api import YES, SinkLost
from penstock.core.address import Address
from tests.client.sink.recorder import Recorder
from tests.client.sink.running_sink import KINDS, Serve, serve_with
from tests.connectors.connector_protocol.scripted_sink import soon
from tests.delivery.fake_epoch import FakeEpoch

CA = trustme.CA()


@pytest.fixture(params=KINDS)
def serve(request: pytest.FixtureRequest, tmp_path: Path) -> Serve:
    return serve_with(request.param, tmp_path / "state")


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    CA.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    ours = CA.issue_cert("worker@example.org")
    ours.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    ours.cert_chain_pems[0].write_to_path(str(tmp_path / "cert.pem"))
    return {name: tmp_path / f"{name}.pem" for name in ("ca", "cert", "key")}


def server_context(name: str = "127.0.0.1", *, mutual: bool = False) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    CA.issue_cert(name).configure_cert(context)
    if mutual:
        CA.configure_trust(context)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def sink_at(address: str, **options: Any) -> ConnectorSink:
    parsed = Address.parse(address)
    return ConnectorSink(ConnectorProtocolOptions(host=parsed.host, port=parsed.port, **options), "p/out")


async def deliver_one(sink: ConnectorSink) -> None:
    await sink.open(b"")
    epoch = FakeEpoch([b"%06d" % number * 20 for number in range(10_000)], block_rows=1_000)
    assert await soon(sink.prepare(epoch)) == YES
    await sink.commit(epoch.transaction)
    await sink.end()
    await sink.close()


@pytest.mark.parametrize("mutual", [False, True])
async def test_epochs_are_delivered_over_tls(serve: Serve, files: dict[str, Path], mutual: bool) -> None:
    recorder = Recorder()
    options = files if mutual else {"ca": files["ca"]}
    with serve(recorder, ssl=server_context(mutual=mutual)) as address:
        await deliver_one(sink_at(address, tls=True, **options))
    assert len(recorder.payloads) == 10_000


async def test_the_certificate_may_name_another_server(serve: Serve, files: dict[str, Path]) -> None:
    with serve(Recorder(), ssl=server_context("sink.example.org")) as address:
        with pytest.raises(SinkLost, match="no TLS connection"):
            await sink_at(address, tls=True, ca=files["ca"]).open(b"")
        await deliver_one(sink_at(address, tls=True, ca=files["ca"], server_name="sink.example.org"))


async def test_a_sink_with_a_certificate_of_an_unknown_authority_gets_nothing(serve: Serve, tmp_path: Path) -> None:
    other = trustme.CA()
    other.cert_pem.write_to_path(str(tmp_path / "other.pem"))
    with serve(Recorder(), ssl=server_context()) as address:
        with pytest.raises(SinkLost, match="certificate verify failed"):
            await sink_at(address, tls=True, ca=tmp_path / "other.pem").open(b"")
        with pytest.raises(SinkLost, match="certificate verify failed"):
            await sink_at(address, tls=True).open(b"")


async def test_a_sink_that_requires_a_client_certificate_refuses_a_session_without_one(
    serve: Serve, files: dict[str, Path]
) -> None:
    with serve(Recorder(), ssl=server_context(mutual=True)) as address:
        sink = sink_at(address, tls=True, ca=files["ca"])
        with pytest.raises(SinkLost):
            await soon(sink.open(b""))
        assert not sink.is_open
        await deliver_one(sink_at(address, tls=True, **files))


async def test_errors_of_the_sink_are_received_over_tls(serve: Serve, files: dict[str, Path]) -> None:
    with (
        serve(Recorder(), ssl=server_context(), cookie=b"c") as address,
        pytest.raises(SinkLost, match="the cookie is wrong"),
    ):
        await soon(sink_at(address, tls=True, ca=files["ca"]).open(b""))


@pytest.mark.parametrize("missing", ["ca", "cert", "key"])
async def test_a_missing_tls_file_is_reported(files: dict[str, Path], missing: str) -> None:
    files |= {missing: files[missing].with_suffix(".none")}
    with pytest.raises(SinkLost, match="a TLS file of the connector cannot be used"):
        await sink_at("127.0.0.1:9", tls=True, **files).open(b"")


def test_contradictory_options_are_refused() -> None:
    key = Path("x")
    for options in (
        {"ca": key},
        {"server_name": "x"},
        {"tls": True, "key": key},
        {"vote": 0},
        {"frame_size_max": 2**24},
    ):
        with pytest.raises(ValidationError):
            sink_at("127.0.0.1:9", **options)
