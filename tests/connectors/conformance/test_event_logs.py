"""Connectors to brokers in the real frame."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from penstock.connectors.kafka.connector import Kafka
from penstock.connectors.redis.connector import RedisStreams
from penstock.protocol.api.deployment import InterceptorSpec
from penstock.testing.conformance import ConnectorConformance
from penstock.testing.peer import Peer
from tests.connectors.brokers.redis_server import need_redis
from tests.connectors.conformance.log_peers import KafkaPeer, RedisPeer


class BrokerConformance(ConnectorConformance):
    """Each message is an event: there are no interceptors. A broker accepts messages whether they are read or not."""

    is_dialled = True
    breaks_off = False
    streams_end = False
    feels_it = False
    in_buffers_bytes = 3 << 20  # librdkafka's cluster keeps 5 MiB of a partition
    interceptors_in: ClassVar[Sequence[InterceptorSpec]] = ()
    interceptors_out: ClassVar[Sequence[InterceptorSpec]] = ()

    @pytest.fixture(autouse=True)
    def _removed(self) -> Iterator[None]:
        self.peers: list[Any] = []
        yield
        for peer in self.peers:
            peer.remove()

    def kept(self, peer: Any) -> Peer:
        self.peers.append(peer)
        found: Peer = peer
        return found


class TestKafka(BrokerConformance):
    connector = Kafka

    def make_peer(self, folder: Path) -> Peer:
        return self.kept(KafkaPeer())


class TestRedis(BrokerConformance):
    connector = RedisStreams

    def make_peer(self, folder: Path) -> Peer:
        need_redis()
        return self.kept(RedisPeer())
