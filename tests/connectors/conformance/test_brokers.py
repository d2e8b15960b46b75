"""Connectors to brokers, in the real frame, each with a real broker."""

from itertools import count
from pathlib import Path

import pytest

from penstock.connectors.api import Port
from penstock.connectors.mqtt.connector import Mqtt
from penstock.connectors.nats.connector import Nats
from penstock.connectors.rabbitmq import RabbitMq
from penstock.testing.brokers import Mosquitto, NatsServer, RabbitMqServer
from penstock.testing.conformance import ConnectorConformance
from penstock.testing.frame import Frame
from penstock.testing.peer import Peer
from tests.connectors.brokers.servers import need
from tests.connectors.conformance.broker_peers import MqttPeer, NatsPeer, RabbitMqPeer

pytestmark = pytest.mark.process

_numbers = count(1)


class BrokerConformance(ConnectorConformance):
    """A broker stands between the connector and its peers: it accepts what nobody reads, and no peer's end is seen."""

    lines_max = 1
    breaks_off = False
    streams_end = False
    feels_it = False
    is_dialled = True


class AtLeastOnce(BrokerConformance):
    """What was not acknowledged comes again."""

    def test_after_a_crash_nothing_is_missing_and_no_id_is_reused(self, tmp_path: Path) -> None:
        async def scenario(frame: Frame, peer: Peer) -> None:
            await (await peer.line(frame)).send(b"before\n")
            before = await frame.until_stored(1)
            frame.image(tmp_path / "crashed")
            await frame.stop()
            async with Frame(tmp_path / "crashed", self.connector, peer.config(), self.deployed()) as after:
                await (await peer.line(after)).send(b"after\n")
                await after.until_stored(2)  # the first one again, since its epoch was not complete
                events = await after.events()
                assert [event.value for event in events if event in before] == [b"before"]
                assert [event.value for event in events if event not in before] == [b"before", b"after"]
                keys = [(event.stream_id, event.event_id) for event in events]
                assert len(set(keys)) == len(keys)

        self.run(tmp_path, scenario, needs=Port.OUT, stops_itself=True)

    def test_a_peer_that_was_down_is_read_again(self, tmp_path: Path) -> None:
        async def scenario(frame: Frame, peer: Peer) -> None:
            await (await peer.line(frame)).send(b"before\n")
            await frame.until_stored(1)
            await peer.stop()
            await frame.until(lambda: frame.instance.host.counters.failures > 0, "the failure")
            await peer.start()
            await (await peer.line(frame)).send(b"after\n")
            await frame.until_stored(3)
            assert [*dict.fromkeys(await frame.values())] == [b"before", b"after"]

        self.run(tmp_path, scenario, needs=Port.OUT)

    def test_what_is_complete_is_acknowledged_and_does_not_come_again(self, tmp_path: Path) -> None:
        async def scenario(frame: Frame, peer: Peer) -> None:
            await (await peer.line(frame)).send(b"before\n")
            await frame.until_stored(1)
            await frame.take()
            await (await peer.line(frame)).send(b"between\n")
            await frame.until_stored(2)
            await frame.drain()
            frame.image(tmp_path / "restarted")
            await frame.stop()
            async with Frame(tmp_path / "restarted", self.connector, peer.config(), self.deployed()) as after:
                await (await peer.line(after)).send(b"after\n")
                await after.until_stored(2)
                assert [*dict.fromkeys(await after.values())] == [b"between", b"after"]

        self.run(tmp_path, scenario, needs=Port.OUT, stops_itself=True)

    def test_garbage_is_a_dead_letter_and_is_acknowledged(self, tmp_path: Path) -> None:
        async def scenario(frame: Frame, peer: Peer) -> None:
            line = await peer.line(frame)
            await line.send(b"fine\n")
            await line.send(b"\x00garbage" * 20_000)
            await line.send(b"still here\n")
            await frame.until_stored(2)
            (dead_letter,) = await frame.dead_letter_events()
            assert b"\x00garbage" in dead_letter.value
            assert await frame.values() == [b"fine", b"still here"]

        self.run(tmp_path, scenario, needs=Port.OUT)


class TestNats(BrokerConformance):
    connector = Nats
    interceptors_in = ()

    @pytest.fixture(autouse=True)
    def server(self) -> None:
        need(NatsServer)

    def make_peer(self, folder: Path) -> Peer:
        return NatsPeer(folder)


class TestMqtt(AtLeastOnce):
    connector = Mqtt

    @pytest.fixture(autouse=True)
    def server(self) -> None:
        need(Mosquitto)

    def make_peer(self, folder: Path) -> Peer:
        return MqttPeer(folder)


class TestRabbitMq(AtLeastOnce):
    connector = RabbitMq

    @pytest.fixture(autouse=True)
    def server(self, rabbitmq_server: RabbitMqServer) -> None:
        self._server = rabbitmq_server

    def make_peer(self, folder: Path) -> Peer:
        return RabbitMqPeer(self._server, f"conformance {next(_numbers)}")
