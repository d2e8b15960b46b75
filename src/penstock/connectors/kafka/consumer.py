"""Reads partitions with librdkafka's consumer: blocking calls, all from one thread."""

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple

import confluent_kafka
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from penstock.connectors.api import Lost
from penstock.connectors.kafka.codes import ALL_BROKERS_DOWN, AUTHENTICATION, FATAL, OUT_OF_RANGE, text_of
from penstock.connectors.kafka.options import KafkaOptions, is_pattern, matches

log = logging.getLogger(__name__)

Message: Any = confluent_kafka.Message
"""By its types everything is optional, but a record without an error has all parts. `map` over its methods costs a
third of a loop."""

POLL_SECONDS = 0.1
"""How long to wait for the first record; other calls wait for it."""

FULL_MS = 20
"""How long librdkafka fetches nothing when it has read ahead enough. Its own default is a second, in which a fast
pipeline has taken everything."""

_PERMANENT = frozenset({ALL_BROKERS_DOWN, AUTHENTICATION, FATAL})
"""Errors of the client as a whole that end the connection. It recovers from others by itself."""


class PartitionName(NamedTuple):
    topic: str
    number: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.number}"

    def at(self, offset: int) -> TopicPartition:
        return TopicPartition(self.topic, self.number, offset)


def name_of(place: TopicPartition) -> PartitionName:
    return PartitionName(place.topic, place.partition)


@dataclass(slots=True)
class Records:
    """Consecutive records of one partition, as columns."""

    values: list[bytes] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    """Offset + 1: the offset that Kafka calls committed when this record is done."""
    times_us: list[int] | None = None
    keys: list[bytes] | None = None
    metadata: list[Mapping[str, Any]] | None = None


class OutOfRange(NamedTuple):
    """Kafka does not have the records at the position where reading should continue."""

    partition: PartitionName
    offset: int
    first: int
    """What Kafka has: from here …"""
    end: int
    """… to here, exclusive."""

    @property
    def is_deleted(self) -> bool:
        """Whether retention has deleted them. Otherwise the topic ends before the position: it was created again."""
        return self.offset < self.first


class Polled(NamedTuple):
    records: Mapping[PartitionName, Records]
    out_of_range: Sequence[OutOfRange] = ()


# Where to start.


class Known(NamedTuple):
    """A partition that is about to be read."""

    partition: PartitionName
    last_id: int
    """Of the worker's store; 0: nothing."""
    committed: int = -1
    """The group's offset; negative: none."""


def resume_at(known: Known, *, is_shared: bool) -> int | None:
    """The offset after the last record that was read; None if nothing was. The worker's store decides. If the partition
    is shared, other members of the group may have read it since: then the committed offset decides if it is higher.
    """
    if known.last_id > 0:
        return max(known.last_id, known.committed) if is_shared else known.last_id
    return known.committed if known.committed >= 0 else None


def started_topics(known: Iterable[Known]) -> frozenset[str]:
    """Topics of which something was read before: what is new in them is read from its beginning."""
    return frozenset(one.partition.topic for one in known if one.last_id > 0 or one.committed >= 0)


Left = Callable[[list[PartitionName]], Mapping[PartitionName, int]]
Opened = Callable[[list[PartitionName]], list[Known]]


class PartitionConsumer:
    """One consumer. All methods block, are called by one thread, and raise Lost."""

    def __init__(self, options: KafkaOptions) -> None:
        self._options = options
        self._error: KafkaError | None = None
        self._has_assigned = False
        self._missing: list[OutOfRange] = []
        """Found when partitions were assigned, for the next `poll`."""
        settings = options.settings() | {
            "group.id": options.group,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",  # a gap must not be skipped silently
            "isolation.level": options.isolation,
            "partition.assignment.strategy": "cooperative-sticky",
            "queued.max.messages.kbytes": max(1, options.prefetch >> 10),
            "fetch.queue.backoff.ms": FULL_MS,
            "error_cb": self._note,
        }
        self._consumer = Consumer(settings | options.librdkafka, logger=log)

    def _note(self, error: KafkaError) -> None:
        if error.fatal() or error.code() in _PERMANENT:
            self._error = error

    def check(self) -> None:
        """Whether the brokers answer, and the topics exist."""
        there = self._topics()
        for topic in self._options.topics:
            if not is_pattern(topic) and topic not in there:
                raise Lost(f"topic {topic!r} does not exist", "Create it: kafka-topics.sh --create --topic …")

    def partitions(self) -> list[PartitionName]:
        """All that are to be read, without a group."""
        options, found = self._options, []
        for topic, numbers in self._topics().items():
            if matches(options.topics, topic):
                chosen = [number for number in numbers if not options.partitions or number in options.partitions]
                found += [PartitionName(topic, number) for number in sorted(chosen)]
        return found

    def _topics(self) -> dict[str, list[int]]:
        with _lost("the brokers cannot be reached"):
            found = self._consumer.list_topics(timeout=self._options.timeout)
        return {name: list(topic.partitions) for name, topic in found.topics.items() if topic.error is None}

    # Which partitions.

    def subscribe(self, assigned: Opened, revoked: Left) -> None:
        """Become a member of the group. Both are called in `poll`, by this thread; `revoked` returns what to commit."""

        def on_assign(_: Consumer, places: list[TopicPartition]) -> None:
            self.assign(assigned([name_of(one) for one in places]) if places else [])

        def on_revoke(_: Consumer, places: list[TopicPartition]) -> None:
            self.commit(revoked([name_of(one) for one in places]), is_last=True)

        self._consumer.subscribe(
            list(self._options.topics), on_assign=on_assign, on_revoke=on_revoke, on_lost=on_revoke
        )

    def assign(self, known: Sequence[Known]) -> None:
        """Read these, too, each from where it was left."""
        with _lost("the partitions cannot be assigned"):
            places = self._places([one._replace(committed=at) for one, at in self._committed(known)])
            self._missing += self._find_missing(places)
            self._consumer.incremental_assign(places)
        self._has_assigned = self._has_assigned or bool(known)

    def _find_missing(self, places: Sequence[TopicPartition]) -> list[OutOfRange]:
        """Before reading starts, so that a connector that cannot continue never counts as connected."""
        found = []
        for place in places:
            if place.offset >= 0:
                first, end = self._consumer.get_watermark_offsets(place, timeout=self._options.timeout)
                if not first <= place.offset <= end:
                    found.append(OutOfRange(name_of(place), place.offset, first, end))
        return found

    def _committed(self, known: Sequence[Known]) -> list[tuple[Known, int]]:
        if not known:
            return []
        found = self._consumer.committed([one.partition.at(0) for one in known], timeout=self._options.timeout)
        for one in found:
            if one.error is not None:
                raise KafkaException(one.error)
        offsets = {name_of(one): one.offset for one in found}
        return [(one, offsets.get(one.partition, -1)) for one in known]

    def _places(self, known: Sequence[Known]) -> list[TopicPartition]:
        started, places = started_topics(known), []
        for one in known:
            at = resume_at(one, is_shared=self._options.assignment == "group")
            is_new = one.partition.topic in started or self._has_assigned
            places.append(self._first(one.partition, is_new=is_new) if at is None else one.partition.at(at))
        return places

    def _first(self, partition: PartitionName, *, is_new: bool) -> TopicPartition:
        """Where to start in a partition of which nothing was read. A start other than the beginning is committed: after
        a restart without any event it must be the same.
        """
        if self._options.start == "earliest" or is_new:
            return partition.at(OFFSET_BEGINNING)
        timeout = self._options.timeout
        _, end = self._consumer.get_watermark_offsets(partition.at(0), timeout=timeout)
        at = end
        if self._options.start_at is not None:
            asked = partition.at(round(self._options.start_at.timestamp() * 1000))
            (found,) = self._consumer.offsets_for_times([asked], timeout=timeout)
            at = found.offset if found.offset >= 0 else end
        self._consumer.commit(offsets=[partition.at(at)], asynchronous=False)
        return partition.at(at)

    def move(self, partition: PartitionName, offset: int) -> None:
        """Continue at another offset."""
        with _lost(f"{partition} cannot be read at {offset}"):
            self._consumer.incremental_unassign([partition.at(0)])
            self._consumer.incremental_assign([partition.at(offset)])

    # Reading.

    def poll(self, paused: Sequence[PartitionName], resumed: Sequence[PartitionName]) -> Polled:
        """Records that have arrived, at most `batch_max`. Waits for the first for a short time. Before it, reading of
        some partitions is paused or resumed.
        """
        with _lost("reading has failed"):
            self._pause(paused, resumed)
            first = self._consumer.poll(POLL_SECONDS)
            if self._error is not None:
                raise Lost(f"the connection to Kafka is lost: {self._error.str()}")
            if first is None:
                return Polled({}, self._take_missing())
            return self._polled([first, *self._consumer.consume(self._options.batch_max - 1, 0)])

    def _take_missing(self) -> list[OutOfRange]:
        found, self._missing = self._missing, []
        return found

    def _pause(self, paused: Sequence[PartitionName], resumed: Sequence[PartitionName]) -> None:
        """Some may have been revoked in the meantime."""
        for names, change in ((paused, self._consumer.pause), (resumed, self._consumer.resume)):
            for name in names:
                with suppress(KafkaException):
                    change([name.at(0)])

    def _polled(self, messages: Sequence[Any]) -> Polled:
        missing = self._take_missing()
        errors = [*map(Message.error, messages)]
        if errors.count(None) != len(errors):
            missing += [self._out_of_range(one) for one in messages if _is_out_of_range(one)]
            messages = [one for one, error in zip(messages, errors, strict=True) if error is None]
        found: dict[PartitionName, list[Any]] = {}
        places = zip(map(Message.topic, messages), map(Message.partition, messages), strict=True)
        end = 0
        for place, run in groupby(places):  # most records follow one of the same partition
            start, end = end, end + sum(1 for _ in run)
            found.setdefault(PartitionName(*place), []).extend(messages[start:end])
        return Polled({name: self._columns(each) for name, each in found.items()}, missing)

    def _out_of_range(self, message: Any) -> OutOfRange:
        partition = PartitionName(message.topic(), message.partition())
        first, end = self._consumer.get_watermark_offsets(partition.at(0), timeout=self._options.timeout)
        return OutOfRange(partition, message.offset(), first, end)

    def _columns(self, messages: Sequence[Any]) -> Records:
        keys = _bytes(map(Message.key, messages))
        return Records(
            _bytes(map(Message.value, messages)),
            [offset + 1 for offset in map(Message.offset, messages)],
            _times(messages) if self._options.timestamps else None,
            keys if any(keys) else None,
            _metadata(messages) if self._options.headers else None,
        )

    # Committed offsets, for others to see.

    def commit(self, offsets: Mapping[PartitionName, int], *, is_last: bool = False) -> None:
        """Best effort: what is lost is committed later, and nothing of Penstock depends on it."""
        places = [name.at(offset) for name, offset in offsets.items()]
        if places:
            try:
                if is_last:
                    self._consumer.commit(offsets=places, asynchronous=False)
                else:
                    self._consumer.commit(offsets=places, asynchronous=True)
            except KafkaException as error:
                log.warning("offsets cannot be committed: %s", text_of(error))

    def close(self) -> None:
        with suppress(KafkaException, RuntimeError):
            self._consumer.close()


def _bytes(found: Iterable[bytes | None]) -> list[bytes]:
    """Empty for none."""
    return [one or b"" for one in found]


def _is_out_of_range(message: Any) -> bool:
    """Raises Lost for another error."""
    error = message.error()
    if error is not None and error.code() != OUT_OF_RANGE:
        raise Lost(f"{message.topic()}: {error.str()}")
    return error is not None


def _times(messages: Sequence[Any]) -> list[int]:
    """In microseconds; for a record without a time, now."""
    now = int(time.time() * 1000)
    return [1000 * (at if at > 0 else now) for _, at in map(Message.timestamp, messages)]


def _metadata(messages: Sequence[Any]) -> list[Mapping[str, Any]] | None:
    """The headers of each; None if there are none at all."""
    headers = [*map(Message.headers, messages)]
    if not any(headers):
        return None
    return [{"headers": headers_by_name(each)} if each else {} for each in headers]


def headers_by_name(headers: Collection[tuple[str, bytes | None]]) -> Mapping[str, Any]:
    """The text of each; all of them, in order, if several have the same name."""
    found = {name: _text(value) for name, value in headers}
    if len(found) == len(headers):
        return found
    texts: dict[str, list[str | None]] = {name: [] for name in found}
    for name, value in headers:
        texts[name].append(_text(value))
    return {name: several if len(several) > 1 else several[0] for name, several in texts.items()}


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "backslashreplace")


@contextmanager
def _lost(what: str) -> Iterator[None]:
    try:
        yield
    except KafkaException as error:
        raise Lost(f"{what}: {text_of(error)}") from error
