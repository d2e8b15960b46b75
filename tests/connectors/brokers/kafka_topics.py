"""Topics of a cluster, as a test writes and reads them."""

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from penstock.connectors.kafka.codes import END_OF_PARTITION
from tests.support.waiting import SECONDS_MAX


class Record(NamedTuple):
    partition: int
    value: bytes | None
    key: bytes | None
    time_ms: int
    headers: Mapping[str, bytes]


def write(
    brokers: str,
    topic: str,
    values: Sequence[bytes | None],
    partition: int = 0,
    *,
    key: bytes | None = None,
    headers: Mapping[str, bytes] | Sequence[tuple[str, bytes | None]] = (),
    time_ms: int = 0,
) -> None:
    """Returns when the broker has them."""
    pairs: list[tuple[str, str | bytes | None]] = [*headers.items()] if isinstance(headers, Mapping) else [*headers]
    producer = Producer({"bootstrap.servers": brokers, "linger.ms": 1})
    for value in values:
        producer.produce(topic, value, key, partition, timestamp=time_ms, headers=pairs)
    assert producer.flush(SECONDS_MAX) == 0


def read(brokers: str, topic: str, partitions: int = 4) -> list[Record]:
    """Everything that is there, each partition in order."""
    settings = {"bootstrap.servers": brokers, "group.id": "reader", "enable.partition.eof": True}
    consumer = Consumer(settings | {"enable.auto.commit": False})
    try:
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(partitions)])
        found: list[Record] = []
        ended: set[int] = set()
        deadline = time.monotonic() + SECONDS_MAX
        while len(ended) < partitions:
            assert time.monotonic() < deadline
            messages: list[Any] = consumer.consume(10_000, 0.05)
            for one in messages:
                if one.error() is None:
                    own = (one.partition(), one.value(), one.key(), one.timestamp()[1])
                    found.append(Record(*own, dict(one.headers() or ())))
                else:
                    assert one.error().code() == END_OF_PARTITION, one.error()
                    ended.add(one.partition())
        return found
    finally:
        consumer.close()


def committed(brokers: str, group: str, topic: str, partition: int = 0) -> int:
    """Negative if there is none."""
    consumer = Consumer({"bootstrap.servers": brokers, "group.id": group})
    try:
        (found,) = consumer.committed([TopicPartition(topic, partition)], timeout=SECONDS_MAX)
        return int(found.offset)
    finally:
        consumer.close()


def commit(brokers: str, group: str, topic: str, offset: int, partition: int = 0) -> None:
    consumer = Consumer({"bootstrap.servers": brokers, "group.id": group, "enable.auto.commit": False})
    try:
        consumer.commit(offsets=[TopicPartition(topic, partition, offset)], asynchronous=False)
    finally:
        consumer.close()
