"""Worker and broker are killed while a source reads: every event is stored once, and in order."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import pytest

from penstock.client.coordinator.client import ApplicationClient
from tests.application.deployments import connector, deployed, link, pipeline
from tests.connectors.brokers.kafka_cluster import KafkaCluster
from tests.connectors.brokers.kafka_topics import write
from tests.connectors.brokers.redis_server import RedisServer, need_redis
from tests.support.stored_events import stored_events
from tests.support.waiting import until
from tests.support.worker_process import WorkerProcess

pytestmark = pytest.mark.process

NAME = "orders"
STREAMS = 2
ROUNDS = 4
AT_ONCE = 2_000
"""Written to each stream in each round: more than a source reads before it is killed."""


class Peer(Protocol):
    """The broker of the source."""

    config: dict[str, Any]

    def write(self, stream: int, values: list[bytes]) -> None: ...
    def kill(self) -> None:
        """And start it again, with what it has acknowledged."""


class RedisPeer:
    def __init__(self, server: RedisServer) -> None:
        self._server = server
        self.config = {"unix_socket": str(server.socket), "streams": [str(number) for number in range(STREAMS)]}

    def write(self, stream: int, values: list[bytes]) -> None:
        with self._server.client() as client, client.pipeline() as together:
            for value in values:
                together.xadd(str(stream), {"value": value})
            together.execute()

    def kill(self) -> None:
        self._server.kill()
        self._server.start()


class KafkaPeer:
    """Its topics are in memory, so it is not killed: all its connections end, and none can be made for a while."""

    def __init__(self, cluster: KafkaCluster) -> None:
        self._cluster = cluster
        self.config = {"brokers": [cluster.brokers], "topics": [NAME], "group": "shop", "timeout": "10s"}
        cluster.topic(NAME, STREAMS)

    def write(self, stream: int, values: list[bytes]) -> None:
        write(self._cluster.brokers, NAME, values, stream)

    def kill(self) -> None:
        self._cluster.down()
        self._cluster.up()


@contextmanager
def started(kind: str) -> Iterator[Peer]:
    if kind == "redis":
        need_redis()
        with RedisServer() as server:
            yield RedisPeer(server)
    else:
        with KafkaCluster() as cluster:
            yield KafkaPeer(cluster)


def stored(worker: WorkerProcess) -> dict[int, list[bytes]]:
    """Values by stream, in the order in which they are stored."""
    found = stored_events(worker.address, NAME)
    return {stream: [event.payload for event in events] for stream, events in found.items()}


@pytest.mark.parametrize("kind", ["kafka", "redis"])
def test_every_event_is_stored_once_and_in_order_although_the_worker_is_killed_and_the_broker_goes_away(
    kind: str, tmp_path: Path
) -> None:
    with started(kind) as peer, WorkerProcess(tmp_path / "data") as worker:
        parts = (connector(NAME, kind, codec="string", config=peer.config), pipeline("p"))
        with ApplicationClient(f"127.0.0.1:{worker.http_port}") as client:
            client.apply(deployed(*parts, link(f"connector/{NAME}/out", "pipeline/p/in")), "app.yaml")
        expected: dict[int, list[bytes]] = {stream: [] for stream in range(STREAMS)}
        for number in range(ROUNDS):
            before = sum(map(len, stored(worker).values()))
            for stream in range(STREAMS):
                values = [b"%d %d %d" % (stream, number, row) for row in range(AT_ONCE)]
                peer.write(stream, values)
                expected[stream] += values
            until(lambda before=before: sum(map(len, stored(worker).values())) > before)  # type: ignore[misc]
            if number % 2:
                peer.kill()
            else:
                worker.kill()
                worker.start()
        total = STREAMS * ROUNDS * AT_ONCE
        until(lambda: sum(map(len, stored(worker).values())) >= total, lambda: sum(map(len, stored(worker).values())))
        assert sorted(stored(worker).values()) == sorted(expected.values())
