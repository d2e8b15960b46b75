"""The port `in` of `kafka`: each epoch is one transaction, and after a failure only what is missing is written.

Kafka's two-phase commit cannot vote: a prepared transaction does not survive its producer. So the sink gets each epoch
after the decision, perhaps again after a crash, and must find out what it has already written:

    every record     has a header `penstock-id: PIPELINE/SINK:INCARNATION:EPOCH:ROW`
    every few        seconds, before an epoch, the ends of the partitions are committed as offsets of the sink's own
                     group: the mark
    a new producer   fences off an older one, which ends its transaction; then the records behind the mark are read,
                     and rows whose ids are there are not written again. If a transaction of another producer is open
                     there, what follows it cannot be read: the sink waits for its end

That does not depend on what a crash has left: if the broker has aborted the transaction, none of its rows are found.
"""

import logging
import time
from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager, suppress
from itertools import repeat
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition

from penstock.connectors.kafka.codes import END_OF_PARTITION, FENCED, TOO_LARGE, error_of
from penstock.connectors.kafka.options import KafkaOptions
from penstock.connectors.sink_api import Block, Epoch, SinkLost
from penstock.connectors.threaded import OneThread

log = logging.getLogger(__name__)

Headers = list[tuple[str, str | bytes | None]]

ID = "penstock-id"
"""The header."""

MARK_SECONDS = 10.0
"""How old a mark gets: after a failure, what was written since is read again."""

_QUEUE_SECONDS = 0.1
"""How long to wait for room in librdkafka's queue, which has a limit of its own (`queue.buffering.max.kbytes`)."""

_POLLED_ROWS = 1000
"""After so many rows, librdkafka may report errors."""

_READ_RECORDS = 10_000
"""How many records are taken at once when the topic is read."""

_SHOWN = 3
"""How many partitions an error names."""

_ABORT_SECONDS = 5.0
"""For reporting to the broker that a transaction has failed; otherwise it finds out later."""


class WrittenRows:
    """Which rows of which epochs were found in the topic."""

    def __init__(self, sink: str) -> None:
        self._prefix = sink.encode() + b":"
        self._rows: dict[bytes, set[int]] = {}

    def add(self, record_id: bytes) -> None:
        """Ids of other sinks are ignored."""
        if not record_id.startswith(self._prefix):
            return
        epoch, _, number = record_id[len(self._prefix) :].rpartition(b":")
        if number.isdigit():
            self._rows.setdefault(epoch, set()).add(int(number))

    def of(self, epoch: str) -> Set[int]:
        return self._rows.get(epoch.encode(), frozenset())


def short_name(epoch: str) -> str:
    """`INCARNATION:EPOCH` of `PIPELINE:INCARNATION:EPOCH`: the pipeline is in the sink's name."""
    return ":".join(epoch.rsplit(":", 2)[-2:])


class KafkaSink:
    """A NonVotingSink. `name` must be the same whenever the sink runs."""

    def __init__(self, options: KafkaOptions, name: str) -> None:
        self._writer = EpochWriter(options, name)
        self._thread = OneThread(name)

    async def deliver(self, epoch: Epoch) -> None:
        """Exactly once: when it returns, the transaction is committed. An epoch that is there already is skipped."""
        await self._thread.call(self._writer.begin, epoch.name, epoch.start)
        async for block in epoch.blocks():
            await self._thread.call(self._writer.write, block)
        await self._thread.call(self._writer.commit)

    async def close(self) -> None:
        self._thread.stop(self._writer.close)


class EpochWriter:
    """Writes epochs, in one thread. After any error the producer is replaced, and the topic is read: that settles
    whatever the error has left undecided.
    """

    def __init__(self, options: KafkaOptions, name: str) -> None:
        self._options = options
        self._name = name
        self._id = options.transactional_id or f"penstock/{name}"
        self._producer: Producer | None = None
        self._marker: Consumer | None = None
        self._marked_at = 0.0
        self._ends: list[TopicPartition] = []
        """The ends of the partitions before an earlier epoch: the next mark."""
        self._written = WrittenRows(name)
        self._present: Set[int] = frozenset()
        self._prefix = b""
        self._row = 0
        self._is_open = False
        """Whether an epoch has begun and not ended."""
        self._failure: KafkaError | None = None
        self._headers: Headers = [(key, value.encode()) for key, value in options.constant_headers.items()]

    def begin(self, epoch: str, start: int) -> None:
        """`start` is 0 for the first epoch that the sink ever gets."""
        if self._is_open:  # the call before was cancelled
            self._drop()
        with self._failing("the epoch cannot be started"):
            if self._producer is None:
                self._connect(is_first=not start)
            elif time.monotonic() - self._marked_at >= MARK_SECONDS:
                self._mark()
                self._written = WrittenRows(self._name)
            if self._options.transactions:
                self._opened().begin_transaction()
        name = short_name(epoch)
        self._present, self._prefix, self._row = self._written.of(name), f"{self._name}:{name}:".encode(), 0
        self._is_open = True

    def write(self, block: Block) -> None:
        producer, topic, headers = self._opened(), self._options.topic, self._headers
        times = block.times.tolist() if self._options.timestamps else repeat(0)
        tombstones, prefix, present, row = self._options.tombstones, self._prefix, self._present, self._row
        produce = producer.produce
        with self._failing("the epoch cannot be written"):
            for time_us, key, value in zip(times, block.keys.rows(), block.values.rows(), strict=False):
                if row not in present:
                    data = None if tombstones and not value else value
                    ms = time_us // 1000 if time_us > 0 else 0  # the current time
                    own: Headers = [*headers, (ID, b"%b%d" % (prefix, row))]
                    try:
                        produce(topic, data, key or None, timestamp=ms, headers=own)
                    except BufferError:
                        self._produce(producer, topic, data, key or None, ms, own)
                row += 1
                if not row % _POLLED_ROWS:
                    producer.poll(0)
                    self._check()
        self._row = row

    @staticmethod
    def _produce(
        producer: Producer, topic: str, data: bytes | None, key: bytes | None, ms: int, headers: Headers
    ) -> None:
        """When there is room in the queue."""
        while True:
            producer.poll(_QUEUE_SECONDS)
            try:
                producer.produce(topic, data, key, timestamp=ms, headers=headers)
            except BufferError:
                continue
            return

    def commit(self) -> None:
        producer, timeout = self._opened(), self._options.timeout
        with self._failing("the epoch cannot be committed"):
            if self._options.transactions:
                producer.commit_transaction(timeout)
            elif producer.flush(timeout):
                raise SinkLost(f"topic {self._options.topic!r}: no answer for {timeout:g} s")
            self._check()
        self._is_open = False

    def close(self) -> None:
        self._drop()
        if self._marker is not None:
            self._marker.close()
            self._marker = None

    # The producer.

    def _opened(self) -> Producer:
        if self._producer is None:
            raise SinkLost(f"topic {self._options.topic!r}: not connected")
        return self._producer

    def _connect(self, *, is_first: bool) -> None:
        """Fence off other producers of this sink, then find out what they have written."""
        self._failure, self._ends = None, []
        self._producer = Producer(self._producer_settings(), logger=log)
        if self._options.transactions:
            self._producer.init_transactions(self._options.timeout)
        self._written = self._read(self._marks(is_first=is_first))
        self._mark()

    def _producer_settings(self) -> dict[str, object]:
        options = self._options
        own: dict[str, object] = {
            "enable.idempotence": True,
            "partitioner": options.partitioner,
            "compression.type": options.compression,
            "delivery.report.only.error": True,
            "on_delivery": self._report,
        }
        if options.transactions:
            own |= {"transactional.id": self._id}
        return {"linger.ms": 5} | options.settings() | own

    def _report(self, error: KafkaError | None, _: object) -> None:
        if error is not None and self._failure is None:
            self._failure = error

    def _check(self) -> None:
        if self._failure is not None:
            raise KafkaException(self._failure)

    def _drop(self) -> None:
        """Without an answer from the broker: what it has of the transaction is settled when the next producer comes."""
        producer, self._producer, self._is_open = self._producer, None, False
        if producer is None:
            return
        with suppress(KafkaException):
            producer.purge()
            if self._options.transactions:
                producer.abort_transaction(_ABORT_SECONDS)

    # What is in the topic.

    def _mark_consumer(self) -> Consumer:
        if self._marker is None:
            settings = {
                "group.id": f"penstock-{self._id}",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "auto.offset.reset": "earliest",
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
            }
            self._marker = Consumer(self._options.settings() | settings, logger=log)
        return self._marker

    def _places(self) -> list[TopicPartition]:
        topic = self._options.topic
        found = self._mark_consumer().list_topics(topic, timeout=self._options.timeout).topics[topic]
        if found.error is not None:
            raise SinkLost(f"topic {topic!r}: {found.error.str()}", "Create it: kafka-topics.sh --create --topic …")
        return [TopicPartition(topic, number) for number in sorted(found.partitions)]

    def _marks(self, *, is_first: bool) -> list[TopicPartition]:
        """From where to read. A sink that has not written anything sets its first mark, and reads nothing."""
        found = self._mark_consumer().committed(self._places(), timeout=self._options.timeout)
        if is_first and all(one.offset < 0 for one in found):
            self._commit_marks(self._find_ends())
            return []
        # A partition without a mark is newer than the others, or the broker has forgotten all marks.
        start = OFFSET_BEGINNING
        return [TopicPartition(one.topic, one.partition, max(one.offset, start)) for one in found]

    def _mark(self) -> None:
        """Commit the ends that were found before an earlier epoch, which is delivered by now, and find the next."""
        if self._ends:
            self._commit_marks(self._ends)
        self._ends = self._find_ends()
        self._marked_at = time.monotonic()

    def _find_ends(self) -> list[TopicPartition]:
        return self._ends_by(self._mark_consumer(), self._places())

    def _ends_by(self, consumer: Consumer, places: Sequence[TopicPartition]) -> list[TopicPartition]:
        """Those that the consumer may read to, by its isolation level."""
        ends = []
        for place in places:
            _, end = consumer.get_watermark_offsets(place, timeout=self._options.timeout)
            ends.append(TopicPartition(place.topic, place.partition, end))
        return ends

    def _written_ends(self, places: Sequence[TopicPartition]) -> dict[int, int]:
        """By partition: the end of what has been written, also in transactions that are still open."""
        settings = {"group.id": f"penstock-{self._id}", "enable.auto.commit": False}
        consumer = Consumer(self._options.settings() | settings | {"isolation.level": "read_uncommitted"}, logger=log)
        try:
            return {one.partition: one.offset for one in self._ends_by(consumer, places)}
        finally:
            consumer.close()

    def _commit_marks(self, ends: list[TopicPartition]) -> None:
        self._mark_consumer().commit(offsets=ends, asynchronous=False)

    def _read(self, marks: list[TopicPartition]) -> WrittenRows:
        """The ids behind the marks. Rows of ours may follow the first record of a transaction of another producer that
        is still open. They cannot be read before it ends, so reading continues to the ends of what has been written.
        """
        found = WrittenRows(self._name)
        if not marks:
            return found
        ends, consumer = self._written_ends(marks), self._mark_consumer()
        consumer.assign(marks)
        try:
            self._read_to(ends, consumer, found)
        finally:
            consumer.unassign()
        return found

    def _read_to(self, ends: dict[int, int], consumer: Consumer, found: WrittenRows) -> None:
        left = dict(ends)
        stopped_at: dict[int, int] = {}
        """By partition: the end of what a reader of committed records gets for now."""
        deadline = time.monotonic() + self._options.timeout
        while left:
            messages: list[Any] = consumer.consume(_READ_RECORDS, _QUEUE_SECONDS)
            for message in messages:
                partition, offset, error = message.partition(), message.offset(), message.error()
                if error is None:
                    offset += 1
                    for key, value in message.headers() or ():
                        if key == ID and value is not None:
                            found.add(value)
                elif error.code() == END_OF_PARTITION:
                    stopped_at[partition] = offset
                else:
                    raise KafkaException(error)
                if partition in left:  # what others write behind the ends is no progress
                    deadline = time.monotonic() + self._options.timeout
                    if offset >= left[partition]:
                        del left[partition]
            if left and time.monotonic() > deadline:
                raise self._unread(left, stopped_at)

    def _unread(self, left: dict[int, int], stopped_at: dict[int, int]) -> SinkLost:
        topic = self._options.topic
        open_at = [f"{topic}/{number} at {stopped_at[number]}" for number in sorted(left) if number in stopped_at]
        if not open_at:
            return SinkLost(f"topic {topic!r} cannot be read: no answer")
        return SinkLost(
            f"another transaction is open on {', '.join(open_at[:_SHOWN])}: rows behind it cannot be read yet",
            "It ends with its producer, or after its transaction.timeout.ms: kafka-transactions.sh find-hanging",
        )

    # Errors.

    @contextmanager
    def _failing(self, what: str) -> Iterator[None]:
        """After any error nothing is known of the producer's state: the next epoch begins with a new one."""
        try:
            yield
        except SinkLost:
            self._drop()
            raise
        except KafkaException as error:
            reason = self._failure or error_of(error)  # before records that are dropped are reported, too
            self._drop()
            raise self._lost(what, reason) from error

    def _lost(self, what: str, error: KafkaError) -> SinkLost:
        text, hint = f"topic {self._options.topic!r}: {what}: {error.str()}", None
        if error.code() == TOO_LARGE:
            hint = "Raise the limits of the topic, the brokers and `librdkafka: message.max.bytes`, or park the epoch."
        elif error.code() in FENCED:
            hint = f"Another producer uses the transactional id {self._id!r}: set `transactional_id`."
        return SinkLost(text, hint)
