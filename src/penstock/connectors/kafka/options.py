"""The options of `kafka`, and what becomes of them in librdkafka."""

import re
from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import Field, SecretStr, model_validator

from penstock.connectors.api import Options
from penstock.connectors.sockets import ClientTls
from penstock.connectors.values import Size, SomeSeconds, without_port

OWN_SETTINGS = frozenset(
    {
        "auto.offset.reset",
        "bootstrap.servers",
        "delivery.report.only.error",
        "enable.auto.commit",
        "enable.auto.offset.store",
        "enable.idempotence",
        "enable.partition.eof",
        "group.id",
        "isolation.level",
        "metadata.broker.list",
        "partition.assignment.strategy",
        "partitioner",
        "security.protocol",
        "test.mock.num.brokers",
        "transactional.id",
    }
)
"""Settings that belong to an option of the connector, or that its guarantees depend on."""

_OWN_PREFIXES = ("sasl.", "ssl.", "plugin.")
"""`sasl` and `tls` set them, with the worker's rules for files; a plugin would be code in the worker."""

_OF_SOURCE = ("partitions", "assignment", "start", "start_at", "out_of_range", "isolation", "timestamps", "headers")
_OF_SINK = ("transactions", "transactional_id", "partitioner", "compression", "constant_headers", "tombstones")


class Sasl(Options):
    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "SCRAM-SHA-512"
    """The SASL mechanism."""
    username: str
    """The user."""
    password: SecretStr
    """The user's password: write a reference, such as `${KAFKA_PASSWORD}` or `${file:/run/secrets/kafka}`."""


class KafkaOptions(Options):
    """With `topics` it is a source, with `topic` a sink; a connector can be both.

    As a source, each partition is a stream, `TOPIC/PARTITION`, and the id of an event is its offset + 1. Reading
    continues after the last stored event, whatever offset is committed in Kafka. Offsets are committed to Kafka when
    epochs complete, so that other tools can show the lag; the source uses them only for partitions from which the
    worker has stored nothing. Key, time and headers of a record are the event's key, time and metadata. Compressed
    topics are read in any compression that librdkafka knows.

    As a sink, each epoch is one transaction, and consumers with `isolation.level=read_committed` see it entirely or not
    at all. Each record has a header `penstock-id`, `PIPELINE/SINK:INCARNATION:EPOCH:ROW`. After a failure, the sink
    reads from the topic which rows of the epoch are there, and writes the others: nothing is written twice. For that it
    must be allowed to read the topic, and to commit offsets as the group `penstock-TRANSACTIONAL_ID`: they mark where
    that reading starts. While a transaction of another producer is open there, the sink waits for its end, and says so
    in `penstock sink list`. The records of one key are in the order of the epoch. A record that is too large for Kafka
    stops the sink, with its reason in the same place: raise the topic's `max.message.bytes` and `message.max.bytes`, or
    park the epoch.

    The tests run against the cluster that librdkafka simulates: its protocol, groups, rebalances and retention are
    real enough, but it keeps topics in memory, so its connections are cut and the broker is not killed; it neither
    hides nor removes what an aborted transaction has written; and it has no replicas, no users and no TLS. What depends
    on these was not tried with a broker.
    """

    brokers: Annotated[tuple[str, ...], Field(min_length=1)]
    """The brokers to connect to first, as HOST:PORT."""
    topics: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """The topics to read. A name that starts with `^` is a regular expression, for all topics that match now or
    later."""
    topic: str = ""
    """The topic to write to."""
    group: str = ""
    """The consumer group in whose name offsets are committed. Required with `topics`."""
    assignment: Literal["all", "group"] = "all"
    """`all`: this connector reads all partitions. `group`: Kafka distributes the partitions among all members of the
    group, such as connectors in several workers. A partition that moves from a worker that has failed is read again
    from the committed offset: at-least-once."""
    partitions: tuple[Annotated[int, Field(ge=0)], ...] = ()
    """Only these partitions of each topic. Not with `assignment: group`."""
    start: Literal["earliest", "latest", "timestamp"] = "earliest"
    """Where to start in a topic for which neither the worker nor the group has an offset. A partition that is added to
    a topic later is always read from its beginning."""
    start_at: datetime | None = None
    """For `start: timestamp`: start with the first record that is not older than this, such as
    `2026-01-31T00:00:00Z`."""
    out_of_range: Literal["fail", "skip"] = "fail"
    """If Kafka's retention has deleted records that were not read: `fail` stops the connector; `skip` continues with
    the oldest record, with a dead letter that names the missing offsets."""
    isolation: Literal["read_committed", "read_uncommitted"] = "read_committed"
    """Whether records of transactions that are still open, or were aborted, are left out."""
    timestamps: bool = True
    """As a source: whether a record's timestamp is its event time; otherwise that is the time of arrival. As a sink:
    whether the event time is the record's timestamp."""
    headers: bool = True
    """Whether headers of records become the events' metadata `headers`: a text for each name, or a list of texts if a
    record has several headers of that name."""
    transactions: bool = True
    """Write each epoch in a transaction. Without transactions, for brokers that do not support them, readers may see
    parts of an epoch, and the sink is at-least-once: a worker that was replaced may still write."""
    transactional_id: str = ""
    """The producer's id. It must be unique in the Kafka cluster, and the same after every restart;
    `penstock/PIPELINE/SINK` by default. A second sink with the same id stops the first."""
    partitioner: Literal[
        "murmur2_random", "consistent_random", "murmur2", "consistent", "fnv1a_random", "fnv1a", "random"
    ] = "murmur2_random"
    """How the key determines the partition. The default is that of Kafka's Java clients."""
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = "lz4"
    """How batches are compressed."""
    constant_headers: dict[str, str] = Field(default_factory=dict)
    """Headers that every written record gets."""
    tombstones: bool = False
    """Write an empty value as null, which deletes the key in a compacted topic."""
    tls: ClientTls | None = None
    """Encrypt connections. `{}` trusts the system's authorities."""
    sasl: Sasl | None = None
    """Authenticate with a user and a password. Use it with `tls`."""
    timeout: SomeSeconds = 30.0
    """For connecting, and for each operation of a transaction."""
    commit_interval: SomeSeconds = 1.0
    """How often offsets of complete epochs are committed to Kafka."""
    refresh_interval: SomeSeconds = 60.0
    """How often to look for new topics and partitions, with `assignment: all`."""
    batch_max: Annotated[int, Field(ge=1, le=100_000)] = 10_000
    """How many records are taken from librdkafka at once."""
    prefetch: Size = 16 << 20
    """How much librdkafka reads ahead."""
    librdkafka: dict[str, str | int | float | bool] = Field(default_factory=dict)
    """Other settings of librdkafka, such as `linger.ms`. Those that an option or a guarantee depends on are refused."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        for problem in self._problems():
            raise ValueError(problem)
        return self

    def _problems(self) -> Iterator[str]:
        if not self.topics and not self.topic:
            yield "set `topics` to read, or `topic` to write to"
        if self.topics and not self.group:
            yield "`group` is missing: the consumer group in whose name offsets are committed"
        yield from without_port(self, "topics", "source", {*_OF_SOURCE, "group"} - {"timestamps"})
        yield from without_port(self, "topic", "sink", _OF_SINK)
        if self.partitions and self.assignment == "group":
            yield "`partitions` cannot be chosen with `assignment: group`: Kafka distributes them"
        if (self.start == "timestamp") is not (self.start_at is not None):
            yield "`start: timestamp` and `start_at` belong together"
        if self.start_at is not None and self.start_at.tzinfo is None:
            yield "start_at has no time zone: write it with Z or an offset"
        if self.tls is not None and self.tls.server_name:
            yield "tls.server_name is not supported here: brokers are verified by the names that they advertise"
        yield from self._setting_problems()
        yield from self._pattern_problems()

    def _setting_problems(self) -> Iterator[str]:
        for name in self.librdkafka:
            if name in OWN_SETTINGS or name.startswith(_OWN_PREFIXES) or name.endswith("_cb"):
                yield f"librdkafka: {name} cannot be set here: an option or a guarantee of the connector depends on it"

    def _pattern_problems(self) -> Iterator[str]:
        for topic in filter(is_pattern, self.topics):
            try:
                re.compile(topic)
            except re.error as error:
                yield f"topics: {topic!r} is not a valid regular expression: {error}"

    def settings(self) -> dict[str, Any]:
        """What librdkafka needs for every connection."""
        found: dict[str, Any] = {
            "bootstrap.servers": ",".join(self.brokers),
            "socket.timeout.ms": max(10, round(self.timeout * 1000)),
            "security.protocol": ("sasl_" if self.sasl else "") + ("ssl" if self.tls else "plaintext"),
        }
        if self.tls is not None:
            files = {"ca": self.tls.ca, "certificate": self.tls.cert, "key": self.tls.key or self.tls.cert}
            found |= {f"ssl.{name}.location": str(path) for name, path in files.items() if path is not None}
        if self.sasl is not None:
            password = self.sasl.password.get_secret_value()
            found |= {"sasl.mechanism": self.sasl.mechanism}
            found |= {"sasl.username": self.sasl.username, "sasl.password": password}
        return found | self.librdkafka


def is_pattern(topic: str) -> bool:
    return topic.startswith("^")


def matches(topics: tuple[str, ...], topic: str) -> bool:
    """Whether the topic is to be read. Kafka's internal topics must be named."""
    patterns = [one for one in topics if is_pattern(one)]
    is_internal = topic.startswith("__")
    return topic in topics or (not is_internal and any(re.search(one, topic) for one in patterns))
