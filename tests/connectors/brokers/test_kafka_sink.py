"""The port `in` of `kafka`, with librdkafka's cluster, which does not hide what an aborted transaction has written:
what a crash leaves is always seen.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from itertools import chain, count
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from penstock.connectors.kafka import sink as sinks
from penstock.connectors.kafka.codes import END_OF_PARTITION
from penstock.connectors.kafka.sink import EpochWriter, KafkaSink, WrittenRows, short_name
from penstock.connectors.registry import make_connector
from penstock.connectors.sink_api import SinkLost
from penstock.core.types import Guarantee
from tests.connectors.brokers.epochs import SINK, epoch
from tests.connectors.brokers.kafka_cluster import KafkaCluster
from tests.connectors.brokers.kafka_topics import commit, read, write
from tests.fixtures.peers import stored
from tests.support.waiting import SECONDS_MAX

PRODUCE = 0
"""The number of a kind of request."""
TOO_LARGE = 10
"""The broker's error: a message is too large."""

NUMBERS = count()
"""Of topics: each test has its own."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[KafkaCluster]:
    with KafkaCluster() as found:
        yield found


@pytest.fixture
def topic(cluster: KafkaCluster) -> str:
    name = f"topic-{next(NUMBERS)}"
    cluster.topic(name, 4)
    return name


def options(cluster: KafkaCluster, topic: str, **others: Any) -> Any:
    given = {"brokers": [cluster.brokers], "topic": topic, "timeout": "10s", "transactional_id": topic}
    return make_connector("kafka", given | others).options


def make_sink(cluster: KafkaCluster, topic: str, **others: Any) -> KafkaSink:
    return KafkaSink(options(cluster, topic, **others), SINK)


def values(cluster: KafkaCluster, topic: str) -> list[bytes]:
    return sorted(record.value or b"" for record in read(cluster.brokers, topic))


async def test_rows_are_records_with_key_time_headers_and_id(cluster: KafkaCluster, topic: str) -> None:
    sink = make_sink(cluster, topic, constant_headers={"from": "test"}, tombstones=True)
    await sink.deliver(epoch(3, [b"a", b""], keys=[b"k", b"k"], time_us=1_700_000_000_123_456))
    await sink.close()
    first, second = read(cluster.brokers, topic)
    assert (first.value, first.key, first.time_ms) == (b"a", b"k", 1_700_000_000_123)
    assert first.headers == {"from": b"test", "penstock-id": b"pipeline/sink:1:3:0"}
    assert (second.value, second.headers["penstock-id"]) == (None, b"pipeline/sink:1:3:1")


async def test_an_epoch_that_is_delivered_again_is_written_once(cluster: KafkaCluster, topic: str) -> None:
    """As after a crash of the worker between the commit in Kafka and its own journal."""
    for number in (0, 0, 1, 1):
        sink = make_sink(cluster, topic)
        await sink.deliver(epoch(number, [b"%d %d" % (number, row) for row in range(50)], start=number))
        await sink.close()
    assert values(cluster, topic) == sorted(b"%d %d" % (number, row) for number in (0, 1) for row in range(50))


def write_for_ever(brokers: str, topic: str) -> None:
    """In a process that is killed: epoch 7, of which nothing is ever committed."""
    settings = {"brokers": [brokers], "topic": topic, "transactional_id": topic, "timeout": "10s"}
    writer = EpochWriter(make_connector("kafka", settings).options, SINK)
    writer.begin("pipeline:1:7", 0)
    (block,) = _blocks([b"%d" % row for row in range(2000)])
    writer.write(block)
    writer._opened().flush(5)
    print("written", flush=True)
    signal.pause()


def _blocks(rows: list[bytes]) -> list[Any]:
    from penstock.connectors.sink_api import PLAIN, Block
    from penstock.protocol.stored.bulk import decode
    from penstock.protocol.stored.names import Kind

    return [Block(decode(epoch(7, rows).data, 0, Kind.STORED, PLAIN), 0)]


def _kill_a_writer(brokers: str, topic: str) -> None:
    program = f"from {__name__} import write_for_ever; write_for_ever({brokers!r}, {topic!r})"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "written\n"
        finally:
            os.kill(process.pid, signal.SIGKILL)
            process.wait(SECONDS_MAX)


@pytest.mark.process
async def test_a_worker_that_is_killed_in_an_epoch_leaves_nothing_that_is_written_twice(
    cluster: KafkaCluster, topic: str
) -> None:
    write(cluster.brokers, topic, [b"from another producer"])
    _kill_a_writer(cluster.brokers, topic)
    assert len(values(cluster, topic)) == 2001, "the cluster shows what was never committed"
    sink = make_sink(cluster, topic)
    rows = [b"%d" % row for row in range(3000)]
    await sink.deliver(epoch(7, rows))
    await sink.deliver(epoch(8, [b"next"], start=1))
    await sink.close()
    assert values(cluster, topic) == sorted([*rows, b"next", b"from another producer"])


@pytest.mark.parametrize("transactions", [True, False])
async def test_a_broker_that_goes_away_in_an_epoch_has_every_row_once(
    cluster: KafkaCluster, topic: str, transactions: bool
) -> None:
    own = {} if transactions else {"transactional_id": ""}
    sink = make_sink(cluster, topic, transactions=transactions, timeout="1s", **own)
    await sink.deliver(epoch(0, [b"first"]))
    cluster.down()
    rows = [b"%d" % row for row in range(500)]
    with pytest.raises(SinkLost):
        await sink.deliver(epoch(1, rows, start=5))
    cluster.up()
    for _ in range(20):
        try:
            await sink.deliver(epoch(1, rows, start=5))
            break
        except SinkLost:
            continue
    await sink.close()
    assert values(cluster, topic) == sorted([b"first", *rows])


async def test_a_record_that_is_too_large_stops_the_sink_with_what_to_do(cluster: KafkaCluster, topic: str) -> None:
    sink = make_sink(cluster, topic, librdkafka={"message.max.bytes": 2000})
    with pytest.raises(SinkLost) as found:
        await sink.deliver(epoch(0, [b"small", b"x" * 3000]))
    assert "too large" in str(found.value).lower()
    assert "park the epoch" in found.value.hint
    await sink.deliver(epoch(1, [b"next"], start=9))  # as after it was parked
    await sink.close()
    assert b"next" in values(cluster, topic)


async def test_a_record_that_the_broker_refuses_stops_the_sink(cluster: KafkaCluster, topic: str) -> None:
    sink = make_sink(cluster, topic)
    await sink.deliver(epoch(0, [b"a"]))
    cluster.fail(PRODUCE, TOO_LARGE)
    with pytest.raises(SinkLost, match=r"(?i)too large"):
        await sink.deliver(epoch(1, [b"b"], start=1))
    await sink.deliver(epoch(1, [b"b"], start=1))
    await sink.close()
    assert values(cluster, topic) == [b"a", b"b"]


async def test_marks_move_on_so_that_little_is_read_after_a_crash(
    cluster: KafkaCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sinks, "MARK_SECONDS", 0.0)
    sink = make_sink(cluster, topic)
    for number in range(4):
        await sink.deliver(epoch(number, [b"%d" % number] * 10, start=10 * number))
    await sink.close()
    found: list[bytes] = []
    monkeypatch.setattr(WrittenRows, "add", lambda _, record_id: found.append(record_id))
    again = make_sink(cluster, topic)
    await again.deliver(epoch(4, [b"4"], start=40))
    await again.close()
    assert {one.split(b":")[2] for one in found} == {b"2", b"3"}


async def test_ids_and_a_mark_that_the_first_format_has_written_continue(
    cluster: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two rows of the epoch are there, behind the mark."""
    before = stored("kafka-1")
    cluster.topic("orders", 1)
    for record in before["records"]:
        headers = {name: value.encode() for name, value in record["headers"].items()}
        write(cluster.brokers, "orders", [record["value"].encode()], headers=headers)
    commit(cluster.brokers, before["group"], "orders", before["mark"])
    found: list[bytes] = []
    add = WrittenRows.add

    def note(written: WrittenRows, record_id: bytes) -> None:
        found.append(record_id)
        add(written, record_id)

    monkeypatch.setattr(WrittenRows, "add", note)
    sink = make_sink(cluster, "orders")
    await sink.deliver(epoch(8, [b"row 1", b"row 2", b"row 3"], start=5))
    await sink.close()
    assert [record.value for record in read(cluster.brokers, "orders", 1)] == [b"row %d" % row for row in range(4)]
    assert found == [b"pipeline/sink:1:8:0", b"pipeline/sink:1:8:1"]


# A transaction of another producer that is still open: whoever reads committed records cannot read what follows it.
# librdkafka's cluster does not do that, so the consumer's answers are scripted.


class Scripted:
    """Of a topic with one partition: the other producer's transaction begins at 5, ours, committed, at 6."""

    LAST_STABLE, END = 5, 9

    def __init__(self, settings: dict[str, Any], polls: Iterable[Sequence[Any]]) -> None:
        self._isolation = settings["isolation.level"]
        self._polls = iter(polls)

    def get_watermark_offsets(self, _: Any, timeout: float) -> tuple[int, int]:
        assert timeout
        return 0, self.LAST_STABLE if self._isolation == "read_committed" else self.END

    def consume(self, _: int, __: float) -> Sequence[Any]:
        return next(self._polls, [])

    def __getattr__(self, name: str) -> Any:
        assert name in ("assign", "unassign", "close")
        return lambda *_: None


class Polled:
    error: Callable[[], Any]

    def __init__(self, offset: int, *, row: int | None = None, partition: int = 0) -> None:
        self.offset = lambda: offset
        self.partition = lambda: partition
        self.headers = lambda: None if row is None else [("penstock-id", b"%b:1:7:%d" % (SINK.encode(), row))]
        self.error = lambda: None


class End(Polled):
    def __init__(self, offset: int) -> None:
        super().__init__(offset)
        self.error = lambda: self
        self.code = lambda: END_OF_PARTITION


def found_by(polls: Iterable[Sequence[Any]], monkeypatch: pytest.MonkeyPatch) -> Set[int]:
    made = make_connector("kafka", {"brokers": ["a:1"], "topic": "t", "timeout": "50ms"})
    monkeypatch.setattr(sinks, "Consumer", lambda settings, logger: Scripted(settings, polls))
    return EpochWriter(made.options, SINK)._read([TopicPartition("t", 0, 3)]).of("1:7")


def test_rows_behind_the_open_transaction_of_another_are_found_when_it_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    polls: list[list[Polled]] = [[End(5)], [], [Polled(6, row=0), Polled(7, row=1)], [End(9)]]
    assert found_by(polls, monkeypatch) == {0, 1}


def test_the_sink_waits_for_the_end_of_an_open_transaction_but_not_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SinkLost, match="another transaction is open on t/0 at 5") as found:
        found_by([[End(5)], []], monkeypatch)
    assert "transaction.timeout.ms" in found.value.hint


def test_a_topic_that_does_not_answer_is_not_taken_for_an_open_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SinkLost, match="no answer"):
        found_by([], monkeypatch)


def test_records_of_others_behind_the_ends_do_not_prolong_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    endless = ([Polled(offset, partition=1)] for offset in count())
    with pytest.raises(SinkLost, match="another transaction is open"):
        found_by(chain([[End(5)]], endless), monkeypatch)


# Ids.


def test_rows_of_other_sinks_and_other_headers_are_ignored() -> None:
    written = WrittenRows("p/s")
    for one in (b"p/s:1:7:2", b"p/s:1:7:0", b"p/other:1:7:1", b"p/s:1:8:1", b"nonsense", b"p/s:x"):
        written.add(one)
    assert written.of("1:7") == {0, 2}
    assert written.of("1:9") == frozenset()
    assert short_name("a:pipeline:1:7") == "1:7"


def test_without_transactions_the_sink_is_at_least_once() -> None:
    for transactions, guarantee in ((True, Guarantee.EXACTLY_ONCE), (False, Guarantee.AT_LEAST_ONCE)):
        connector = make_connector("kafka", {"brokers": ["a:1"], "topic": "t", "transactions": transactions})
        found = connector.capabilities(connector.options)
        assert (found.source, found.sink) == (None, guarantee)
