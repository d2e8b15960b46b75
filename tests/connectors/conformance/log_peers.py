"""Real peers that are brokers: a partition or a stream of theirs is a line."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from redis import Redis
from redis.exceptions import RedisError

from penstock.testing.frame import Frame
from penstock.testing.peer import Line, Peer
from tests.connectors.brokers.kafka_cluster import KafkaCluster
from tests.connectors.brokers.kafka_topics import read, write
from tests.connectors.brokers.redis_server import RedisServer

PARTITIONS = 4


class BrokerLine:
    """Lines of text, each a message; the rest waits for its end."""

    def __init__(self) -> None:
        self._rest = b""

    async def send(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        if lines:
            await asyncio.to_thread(self.write, lines)

    def write(self, lines: list[bytes]) -> None:
        raise NotImplementedError

    async def end(self) -> None:
        """Neither partitions nor Redis streams end."""

    async def break_off(self) -> None: ...

    def received(self) -> bytes:
        return b""

    def stop_reading(self) -> None: ...

    def continue_reading(self) -> None: ...


class PartitionLine(BrokerLine):
    def __init__(self, brokers: str, partition: int) -> None:
        super().__init__()
        self._brokers, self._partition = brokers, partition

    def write(self, lines: list[bytes]) -> None:
        write(self._brokers, "in", lines, self._partition)


class KafkaPeer(Peer):
    """The cluster's broker goes down and comes back with its topics."""

    def __init__(self) -> None:
        self._cluster = KafkaCluster()
        for topic in ("in", "out"):
            self._cluster.topic(topic, PARTITIONS)
        self._lines = 0
        self._is_up = True
        self._kept = b""

    def config(self) -> Mapping[str, Any]:
        both = {"topics": ["in"], "group": "tested", "topic": "out", "transactional_id": "tested"}
        return {"brokers": [self._cluster.brokers], "timeout": "2s", "prefetch": "64KiB", "batch_max": 100} | both

    async def start(self) -> None:
        if not self._is_up:
            self._cluster.up()
        self._is_up = True

    async def stop(self) -> None:
        if self._is_up:
            self._kept, self._is_up = self.received(), False
            self._cluster.down()

    def remove(self) -> None:
        self._cluster.close()

    async def line(self, frame: Frame) -> Line:
        self._lines += 1
        return PartitionLine(self._cluster.brokers, self._lines - 1)

    def received(self) -> bytes:
        """In the order of the epochs: a topic has an order in each partition only."""
        if not self._is_up:
            return self._kept
        found = {_place(one.headers["penstock-id"]): one.value or b"" for one in read(self._cluster.brokers, "out")}
        return b"".join(found[place] + b"\n" for place in sorted(found))


def _place(record_id: bytes) -> tuple[int, int]:
    _, _, number, row = record_id.split(b":")
    return int(number), int(row)


class EntryLine(BrokerLine):
    def __init__(self, client: "Redis", key: str) -> None:
        super().__init__()
        self._client, self._key = client, key

    def write(self, lines: list[bytes]) -> None:
        with self._client.pipeline(transaction=False) as pipeline:
            for line in lines:
                pipeline.xadd(self._key, {"value": line})
            pipeline.execute()


class RedisPeer(Peer):
    def __init__(self) -> None:
        self._server = RedisServer()
        self._client = self._server.client()
        self._lines = 0
        self._is_up = True
        self._kept = b""

    def config(self) -> Mapping[str, Any]:
        keys = [f"in{number}" for number in range(PARTITIONS)]
        both = {"streams": keys, "stream": "out"}
        return {"unix_socket": str(self._server.socket), "timeout": "2s", "batch_max": 100} | both

    async def start(self) -> None:
        if not self._is_up:
            await asyncio.to_thread(self._server.start)
        self._is_up = True

    async def stop(self) -> None:
        if self._is_up:
            self._kept, self._is_up = self.received(), False
            await asyncio.to_thread(self._server.kill)

    def remove(self) -> None:
        with suppress(RedisError):
            self._client.close()
        self._server.remove()

    async def line(self, frame: Frame) -> Line:
        self._lines += 1
        return EntryLine(self._client, f"in{self._lines - 1}")

    def received(self) -> bytes:
        return b"".join(value + b"\n" for value in self._server.values("out")) if self._is_up else self._kept
