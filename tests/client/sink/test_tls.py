"""TLS, and TLS with certificates on both sides."""

import ssl
from contextlib import suppress

import pytest

from penstock.client import DataFile
from penstock.client.sink import lines
from penstock.protocol.connector import SINK_VERSION, Hello
from tests.client.scripted_peer import Cut
from tests.client.sink.conftest import Output
from tests.client.sink.running_sink import Serve
from tests.client.sink.scripted_worker import ScriptedWorker
from tests.support.tls import client_context, server_context


@pytest.mark.parametrize("mutual", [False, True])
def test_epochs_are_delivered_over_tls(serve: Serve, output: Output, mutual: bool) -> None:
    payloads = [b"%06d" % number * 20 for number in range(10_000)]
    with (
        serve(DataFile(output.path), encode=lines, ssl=server_context(mutual=mutual)) as address,
        ScriptedWorker(address, client_context(certificate=mutual)) as worker,
    ):
        worker.greet()
        worker.deliver(b"1", payloads)
        worker.deliver(b"2", payloads)
    assert output.committed == b"".join(payload + b"\n" for payload in payloads * 2)


def test_errors_of_the_sink_are_received_over_tls(serve: Serve, output: Output) -> None:
    with (
        serve(DataFile(output.path), cookie=b"c", ssl=server_context()) as address,
        ScriptedWorker(address, client_context()) as worker,
    ):
        worker.send(Hello(SINK_VERSION, b"", "penstock", "orders"))
        assert worker.expect_error() == "HELLO: the cookie is wrong (state Connected)"


def test_a_client_without_a_certificate_or_tls_gets_no_session_and_disturbs_none(serve: Serve, output: Output) -> None:
    context = client_context(certificate=True)
    with (
        serve(DataFile(output.path), ssl=server_context(mutual=True), handshake_seconds=10) as address,
        ScriptedWorker(address, context) as worker,
    ):
        worker.greet()
        for stranger_context in (client_context(), None):
            with suppress(ssl.SSLError, Cut), ScriptedWorker(address, stranger_context) as stranger:
                stranger.send(Hello(SINK_VERSION, b"", "penstock", "orders"))
                stranger.expect_close()
        worker.deliver(b"1", [b"first"])
    assert output.committed == b"first"
