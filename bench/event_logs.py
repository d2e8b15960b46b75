"""Kafka and Redis streams for `script/bench connectors`: events in and out, beside what a program does with the plain
client library.

in kafka    records of four partitions, as events           confluent-kafka's `consume`, a PlainLog for each partition
out kafka   an epoch as a transaction; a restart finds      confluent-kafka's transactional producer, with each event's
            what is there by the id in a record's header    number in a header, for the same reason
in redis    entries of a stream, as events                  redis-py's `xread`, into a PlainLog
out redis   an epoch, each row once                         redis-py's pipelines of `xadd`

Each case has a new client, and ours a new store. Only the CPU time of this process counts: the broker is another one.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Any, cast

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from redis.asyncio import Redis

from bench.formats import Case
from bench.plain_log import PlainLog
from penstock.connectors.api import Connector
from penstock.connectors.kafka.connector import Kafka
from penstock.connectors.redis.connector import RedisStreams
from penstock.connectors.tables import no_schema
from penstock.testing.frame import Frame, GivenEpoch
from tests.connectors.brokers.epochs import epoch
from tests.connectors.brokers.kafka_cluster import KafkaCluster
from tests.connectors.brokers.redis_server import RedisServer

PARTITIONS = 4
TOPIC, COPIES = "in", "out"
"""What is read, and what is written to."""
SECONDS_MAX = 60.0
EVENTS_MIN = 20_000
"""With fewer, connecting would be most of the work."""
RECORDS_PER_EVENT = 10
"""A record takes a few microseconds: so many for each event of the other benchmarks, so that a round takes a second."""


@contextmanager
def event_log_cases(events: int) -> Iterator[list[Case]]:
    """With brokers that run meanwhile. Redis is left out where there is no server."""
    numbers = range(max(RECORDS_PER_EVENT * events, EVENTS_MIN))
    values = [b'{"id": %d, "name": "item %d", "price": %d}' % (n, n % 97, n) for n in numbers]
    with ExitStack() as stack:
        cases = [*_kafka_cases(stack.enter_context(KafkaCluster()), values)]
        if shutil.which("redis-server") is not None:
            cases += _redis_cases(stack.enter_context(RedisServer()), values)
        for case in cases:  # what is imported and compiled when it is first used is not measured
            case.ours()
        yield cases


def _kafka_cases(cluster: KafkaCluster, values: Sequence[bytes]) -> Iterator[Case]:
    for topic in (TOPIC, COPIES):
        cluster.topic(topic, PARTITIONS)
    own, size = {"brokers": [cluster.brokers]}, sum(map(len, values))
    _produce(cluster.brokers, TOPIC, values)
    source = own | {"topics": [TOPIC], "group": "bench"}
    yield Case(
        "in kafka",
        size,
        lambda: _read(Kafka, source, len(values)),
        lambda: _consume(cluster, len(values)),
        events=len(values),
    )
    numbers, results = count(), epoch(0, values)

    def write() -> None:
        options = own | {"topic": COPIES, "transactional_id": f"bench-{next(numbers)}"}
        _write(Kafka, options, results)

    def write_plainly() -> None:
        _produce(cluster.brokers, COPIES, values, f"plain-{next(numbers)}")

    yield Case("out kafka", size, write, write_plainly, events=len(values))


def _redis_cases(server: RedisServer, values: Sequence[bytes]) -> Iterator[Case]:
    own, size = {"unix_socket": str(server.socket)}, sum(map(len, values))
    _add(server, TOPIC, values)
    source = own | {"streams": [TOPIC]}
    yield Case(
        "in redis", size, lambda: _read(RedisStreams, source, len(values)), lambda: _range(server), events=len(values)
    )
    numbers, results = count(), epoch(0, values)

    def write() -> None:
        _write(RedisStreams, own | {"stream": f"{COPIES}-{next(numbers)}"}, results)

    yield Case("out redis", size, write, lambda: _add(server, f"plain-{next(numbers)}", values), events=len(values))


# Ours.


def _read(connector: type[Connector[Any]], config: dict[str, Any], events: int) -> None:
    async def read(folder: Path) -> None:
        async with Frame(folder, connector, config) as frame:
            await frame.until(lambda: frame.instance.host.counters.events == events, "all events", SECONDS_MAX)

    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        asyncio.run(read(Path(folder)))


def _write(connector: type[Connector[Any]], config: dict[str, Any], results: GivenEpoch) -> None:
    async def write() -> None:
        made = connector(connector.about.options.model_validate(config))
        sink: Any = made.make_sink("bench/sink", no_schema)
        await sink.deliver(results)
        await sink.close()

    asyncio.run(write())


# The plain libraries, as their documentation shows them.


def _produce(brokers: str, topic: str, values: Sequence[bytes], transactional_id: str = "") -> None:
    """Without an id, to fill a topic with records that have no headers."""
    if not transactional_id:
        producer = Producer({"bootstrap.servers": brokers, "queue.buffering.max.messages": len(values)})
        for value in values:
            producer.produce(topic, value)
        assert producer.flush(SECONDS_MAX) == 0
        return
    settings = {"transactional.id": transactional_id, "compression.type": "lz4", "linger.ms": 5}
    producer = Producer({"bootstrap.servers": brokers} | settings)
    producer.init_transactions(SECONDS_MAX)
    producer.begin_transaction()
    for number, value in enumerate(values):
        headers: list[tuple[str, str | bytes | None]] = [("number", b"%d" % number)]
        while True:
            try:
                producer.produce(topic, value, headers=headers)
                break
            except BufferError:
                producer.poll(0.1)
    producer.commit_transaction(SECONDS_MAX)


def _consume(cluster: KafkaCluster, events: int) -> None:
    consumer = Consumer({"bootstrap.servers": cluster.brokers, "group.id": "plain", "enable.auto.commit": False})
    consumer.assign([TopicPartition(TOPIC, number, OFFSET_BEGINNING) for number in range(PARTITIONS)])
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-bench-")))
        logs = [stack.enter_context(PlainLog(folder / str(number))) for number in range(PARTITIONS)]
        read = 0
        while read < events:
            messages = consumer.consume(1000, 0.1)
            _keep(messages, logs)
            read += len(messages)
        offsets = [TopicPartition(TOPIC, number, log.events) for number, log in enumerate(logs)]
    consumer.commit(offsets=offsets, asynchronous=False)
    consumer.close()


def _keep(messages: Sequence[Any], logs: Sequence[PlainLog]) -> None:
    """The parts of a record that an event keeps; headers, if there were some."""
    found: dict[int, list[Any]] = {}
    for message in messages:
        if message.error() is not None:
            raise RuntimeError(message.error().str())
        found.setdefault(message.partition(), []).append(message)
    for number, each in found.items():
        logs[number].append(
            [one.value() for one in each],
            [one.offset() for one in each],
            [one.key() or b"" for one in each],
            [1000 * one.timestamp()[1] for one in each],
        )
        assert not any(one.headers() for one in each)


def _add(server: RedisServer, key: str, values: Sequence[bytes]) -> None:
    with server.client() as client:
        for start in range(0, len(values), 1000):
            with client.pipeline(transaction=False) as pipeline:
                for value in values[start : start + 1000]:
                    pipeline.xadd(key, {"value": value})
                pipeline.execute()


def _range(server: RedisServer) -> None:
    """With asyncio, like ours: a worker has one event loop."""

    async def read() -> None:
        async with Redis(unix_socket_path=str(server.socket), protocol=2) as client:
            last: Any = "0-0"
            while found := cast("list[Any]", await client.xread({TOPIC: last}, count=1000)):
                entries = found[0][1]
                log.append([fields[b"value"] for _, fields in entries], keys=[entry for entry, _ in entries])
                last = entries[-1][0]

    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder, PlainLog(Path(folder) / "log") as log:
        asyncio.run(read())
