"""Webhooks, event streams, mail and telemetry in the real frame, each with a real peer."""

from dataclasses import replace
from pathlib import Path

import pytest

from penstock.connectors.email import Email
from penstock.connectors.otlp.connector import Otlp
from penstock.connectors.sse_client import SseClient
from penstock.connectors.sse_server import SseServer
from penstock.connectors.webhook.client import WebhookClient
from penstock.connectors.webhook.server import WebhookServer
from penstock.testing.conformance import ConnectorConformance
from penstock.testing.frame import Setup
from penstock.testing.peer import Peer
from tests.connectors.conformance.web_peers import Mailbox, SseClients, SseServers, WebhookReceiving, WebhookSenders


class TestWebhookServer(ConnectorConformance):
    """A request is a whole message, so no record is broken off."""

    connector = WebhookServer
    breaks_off = False

    def make_peer(self, folder: Path) -> Peer:
        return WebhookSenders()

    def deployed(self) -> Setup:
        return replace(super().deployed(), ack="durable")


class TestWebhookClient(ConnectorConformance):
    connector = WebhookClient
    speaks = False
    is_dialled = True

    def make_peer(self, folder: Path) -> Peer:
        return WebhookReceiving()


class TestSseClient(ConnectorConformance):
    """A stream goes on after a lost connection, and an event is whole or not there."""

    connector = SseClient
    lines_max = 1
    breaks_off = False
    streams_end = False
    is_dialled = True
    interceptors_in = ()

    def make_peer(self, folder: Path) -> Peer:
        return SseServers()


class TestSseServer(ConnectorConformance):
    connector = SseServer
    speaks = False

    def make_peer(self, folder: Path) -> Peer:
        return SseClients()


class TestEmail(ConnectorConformance):
    connector = Email
    speaks = False
    is_dialled = True

    def make_peer(self, folder: Path) -> Peer:
        return Mailbox()


class TestOtlp(ConnectorConformance):
    """What is sent is not what is stored, so its other tests are in tests/connectors/otlp."""

    connector = Otlp
    speaks = False
    interceptors_in = ()

    def make_peer(self, folder: Path) -> Peer:
        pytest.importorskip("opentelemetry.proto")
        return _Exporters()


class _Exporters(Peer):
    def config(self) -> dict[str, object]:
        return {"port": 0, "grpc_port": None}
