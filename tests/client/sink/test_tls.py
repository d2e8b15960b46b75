"""TLS, and TLS with certificates on both sides."""

import ssl
from contextlib import suppress

import pytest
import trustme

from penstock.client import DataFile
from penstock.client.sink import lines
from penstock.protocol.connector import SINK_VERSION, Hello
from tests.client.sink.conftest import Output
from tests.client.sink.running_sink import Serve
from tests.client.sink.scripted_worker import Cut, ScriptedWorker

CA = trustme.CA()


def server_context(*, mutual: bool = False) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    CA.issue_cert("127.0.0.1").configure_cert(context)
    if mutual:
        CA.configure_trust(context)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def worker_context(*, certificate: bool = False) -> ssl.SSLContext:
    context = ssl.create_default_context()
    CA.configure_trust(context)
    if certificate:
        CA.issue_cert("worker@example.org").configure_cert(context)
    return context


@pytest.mark.parametrize("mutual", [False, True])
def test_epochs_are_delivered_over_tls(serve: Serve, output: Output, mutual: bool) -> None:
    payloads = [b"%06d" % number * 20 for number in range(10_000)]
    with (
        serve(DataFile(output.path), encode=lines, ssl=server_context(mutual=mutual)) as address,
        ScriptedWorker(address, worker_context(certificate=mutual)) as worker,
    ):
        worker.greet()
        worker.deliver(b"1", payloads)
        worker.deliver(b"2", payloads)
    assert output.committed == b"".join(payload + b"\n" for payload in payloads * 2)


def test_an_error_arrives_over_tls_too(serve: Serve, output: Output) -> None:
    with (
        serve(DataFile(output.path), cookie=b"c", ssl=server_context()) as address,
        ScriptedWorker(address, worker_context()) as worker,
    ):
        worker.send(Hello(SINK_VERSION, b"", "penstock", "orders"))
        assert worker.expect_error() == "HELLO: the cookie is wrong (state Connected)"


def test_who_has_no_certificate_or_no_tls_gets_no_session_and_disturbs_none(serve: Serve, output: Output) -> None:
    context = worker_context(certificate=True)
    with (
        serve(DataFile(output.path), ssl=server_context(mutual=True), handshake_seconds=10) as address,
        ScriptedWorker(address, context) as worker,
    ):
        worker.greet()
        for stranger_context in (worker_context(), None):
            with suppress(ssl.SSLError, Cut), ScriptedWorker(address, stranger_context) as stranger:
                stranger.send(Hello(SINK_VERSION, b"", "penstock", "orders"))
                stranger.expect_close()
        worker.deliver(b"1", [b"first"])
    assert output.committed == b"first"
