"""HTTP connectors in the real frame, each with a real peer."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

from penstock.connectors.api import Port
from penstock.connectors.http_client import HttpClient
from penstock.connectors.http_server.connector import HttpServer
from penstock.testing.conformance import ConnectorConformance
from penstock.testing.frame import Frame, Setup
from penstock.testing.peer import Peer
from tests.connectors.conformance.http_peers import HttpClients, HttpServing


class TestHttpServerRequests(ConnectorConformance):
    """A request ends with its answer, so no record is broken off, and nothing waits for the next one."""

    connector = HttpServer
    breaks_off = False
    ack: Literal["checkpoint", "durable"] = "checkpoint"

    def make_peer(self, folder: Path) -> Peer:
        return HttpClients("epoch")

    @pytest.mark.slow
    def test_at_the_quota_nothing_is_read_and_nothing_is_lost(self, tmp_path: Path) -> None:
        self.ack = "durable"  # otherwise a client waits for its answer until nothing counts against the quota
        super().test_at_the_quota_nothing_is_read_and_nothing_is_lost(tmp_path)

    def deployed(self) -> Setup:
        return replace(super().deployed(), ack=self.ack)

    def run(self, *args: Any, needs: Port | None = None, **options: Any) -> None:
        if needs is Port.IN:
            pytest.skip("replies are the other class's")
        super().run(*args, needs=needs, **options)


class TestHttpServerReplies(ConnectorConformance):
    """A reply has the id of one of the request's events, and a request has one reply."""

    connector = HttpServer
    speaks = False

    def make_peer(self, folder: Path) -> Peer:
        return HttpClients("reply")

    def test_values_reach_the_peer_in_order(self, tmp_path: Path) -> None:
        async def scenario(frame: Frame, peer: Peer) -> None:
            line = await peer.line(frame)
            for number in range(50):
                await line.send(b"question %d\n" % number)
                event = (await frame.until_stored(number + 1))[-1]
                frame.give(frame.streams()[0], [b"answer %d" % number], [event.event_id])
            answers = b"".join(b"answer %d\n" % number for number in range(50))
            await frame.until(lambda: peer.received() == answers, "the last answer")
            assert frame.dead_letters == 0

        self.run(tmp_path, scenario, needs=Port.IN)

    def test_a_peer_that_stops_reading_blocks_no_other_and_finally_gets_everything(self, tmp_path: Path) -> None:
        pytest.skip("a reply is bounded by reply_bytes_max, and whole before it is sent")


class TestHttpClient(ConnectorConformance):
    connector = HttpClient
    speaks = False
    is_dialled = True

    def make_peer(self, folder: Path) -> Peer:
        return HttpServing()
