"""The port `out` of `kafka`, with librdkafka's cluster."""

import asyncio
import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from penstock.connectors.kafka.connector import Kafka
from penstock.connectors.kafka.consumer import Known, PartitionName, headers_by_name, resume_at, started_topics
from penstock.connectors.registry import make_connector
from penstock.core.errors import RequestError
from penstock.core.types import Guarantee
from penstock.testing.frame import Event, Frame
from tests.connectors.brokers.kafka_cluster import KafkaCluster
from tests.connectors.brokers.kafka_topics import committed, write
from tests.support.waiting import eventually

GROUP = "shop"
RETAINED_BYTES = 5 << 20
"""Of a partition: then the cluster deletes the oldest records."""

NUMBERS = count()
"""Of topics: each test has its own."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[KafkaCluster]:
    with KafkaCluster() as found:
        yield found


@pytest.fixture
def topic(cluster: KafkaCluster) -> str:
    name = f"topic-{next(NUMBERS)}"
    cluster.topic(name, 2)
    return name


def config(cluster: KafkaCluster, topic: str, **others: Any) -> dict[str, Any]:
    quick = {"commit_interval": "50ms", "refresh_interval": "100ms", "timeout": "10s"}
    return {"brokers": [cluster.brokers], "topics": [topic], "group": f"{GROUP}-{topic}"} | quick | others


def values(events: list[Event]) -> list[bytes]:
    return [event.value for event in events]


async def test_a_partition_is_a_stream_and_an_offset_an_id(cluster: KafkaCluster, topic: str, tmp_path: Path) -> None:
    write(cluster.brokers, topic, [b"a", b"b"], 0, key=b"k", headers={"trace": b"1"}, time_ms=1_700_000_000_000)
    write(cluster.brokers, topic, [b"c", None], 1)
    async with Frame(tmp_path, Kafka, config(cluster, topic)) as frame:
        events = sorted(await frame.until_stored(4), key=lambda event: (event.metadata["partition"], event.event_id))
        assert values(events) == [b"a", b"b", b"c", b""]
        assert [event.event_id for event in events] == [1, 2, 1, 2]
        assert events[0].metadata["headers"] == {"trace": "1"}
        assert (events[0].metadata["topic"], events[2].metadata["partition"]) == (topic, 1)
        assert "headers" not in events[2].metadata


async def test_headers_of_the_same_name_are_all_kept(cluster: KafkaCluster, topic: str, tmp_path: Path) -> None:
    write(cluster.brokers, topic, [b"a"], 0, headers=[("x", b"1"), ("y", b"2"), ("x", None), ("x", b"3")])
    async with Frame(tmp_path, Kafka, config(cluster, topic)) as frame:
        (event,) = await frame.until_stored(1)
        assert event.metadata["headers"] == {"x": ["1", None, "3"], "y": "2"}


def test_many_headers_are_walked_twice_however_many_have_the_same_name() -> None:
    class Headers(list[tuple[str, bytes | None]]):
        walks = 0

        def __iter__(self) -> Iterator[tuple[str, bytes | None]]:
            self.walks += 1
            return super().__iter__()

    headers = Headers(
        [*((f"n{number}", b"1") for number in range(100)), *((f"n{number}", b"2") for number in range(50))]
    )
    found = headers_by_name(headers)
    assert found == {f"n{number}": ["1", "2"] if number < 50 else "1" for number in range(100)}
    assert [*found] == [f"n{number}" for number in range(100)]
    assert headers.walks <= 2


async def test_reading_continues_after_the_last_stored_event_whatever_kafka_has(
    cluster: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    write(cluster.brokers, topic, [b"a", b"b"])
    async with Frame(tmp_path / "one", Kafka, config(cluster, topic)) as frame:
        await frame.until_stored(2)
        await frame.events()
        frame.image(tmp_path / "crashed")
    assert committed(cluster.brokers, f"{GROUP}-{topic}", topic) < 0, "no epoch was complete"
    write(cluster.brokers, topic, [b"c"])
    async with Frame(tmp_path / "crashed", Kafka, config(cluster, topic)) as frame:
        await frame.until_stored(1)
        assert values(await frame.events()) == [b"a", b"b", b"c"]


async def test_offsets_are_committed_when_epochs_complete(cluster: KafkaCluster, topic: str, tmp_path: Path) -> None:
    write(cluster.brokers, topic, [b"a", b"b"])
    async with Frame(tmp_path, Kafka, config(cluster, topic)) as frame:
        await frame.until_stored(2)
        group = f"{GROUP}-{topic}"
        assert await asyncio.to_thread(committed, cluster.brokers, group, topic) < 0
        await frame.take()
        await eventually(lambda: committed(cluster.brokers, group, topic) == 2)


async def test_offsets_of_what_completes_after_a_drain_are_committed(
    cluster: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    write(cluster.brokers, topic, [b"a", b"b"])
    async with Frame(tmp_path, Kafka, config(cluster, topic)) as frame:
        await frame.until_stored(2)
        await frame.drain()
        assert frame.streams() == []
        await frame.take()
        await eventually(lambda: committed(cluster.brokers, f"{GROUP}-{topic}", topic) == 2)


async def test_a_worker_without_data_starts_at_the_committed_offset(
    cluster: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    write(cluster.brokers, topic, [b"a", b"b"])
    async with Frame(tmp_path / "one", Kafka, config(cluster, topic)) as frame:
        await frame.until_stored(2)
        await frame.take()
        await eventually(lambda: committed(cluster.brokers, f"{GROUP}-{topic}", topic) == 2)
    write(cluster.brokers, topic, [b"c"])
    async with Frame(tmp_path / "two", Kafka, config(cluster, topic)) as frame:
        assert values(await frame.until_stored(1)) == [b"c"]


async def test_latest_starts_at_the_end_and_stays_there_if_nothing_was_read(
    cluster: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    write(cluster.brokers, topic, [b"old"])
    options = config(cluster, topic, start="latest")
    async with Frame(tmp_path, Kafka, options) as frame:
        await frame.connected()
    write(cluster.brokers, topic, [b"new"])
    async with Frame(tmp_path, Kafka, options) as frame:
        assert values(await frame.until_stored(1)) == [b"new"]


async def test_a_topic_that_matches_later_is_read_from_its_beginning(
    cluster: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    async with Frame(tmp_path, Kafka, config(cluster, f"^{topic}", start="latest")) as frame:
        await frame.connected()
        cluster.topic(f"{topic}-more", 1)
        write(cluster.brokers, f"{topic}-more", [b"first"])
        (event,) = await frame.until_stored(1)
        assert (event.value, event.metadata["topic"]) == (b"first", f"{topic}-more")


async def test_only_the_chosen_partitions_are_read(cluster: KafkaCluster, topic: str, tmp_path: Path) -> None:
    write(cluster.brokers, topic, [b"a"], 0)
    write(cluster.brokers, topic, [b"b"], 1)
    async with Frame(tmp_path, Kafka, config(cluster, topic, partitions=[1])) as frame:
        assert values(await frame.until_stored(1)) == [b"b"]
        assert len(frame.streams()) == 1


async def test_deleted_records_stop_the_connector(cluster: KafkaCluster, topic: str, tmp_path: Path) -> None:
    async with Frame(tmp_path, Kafka, await _overtaken(cluster, topic, tmp_path)) as frame:
        reason = f"{topic}/0: Kafka has deleted the offsets 1 to "
        await frame.until(lambda: reason in frame.instance.host.status().reason, "the failure")
        assert frame.instance.host.status().state == "disconnected"
        assert values(await frame.events()) == [b"first"]


async def test_with_skip_deleted_records_leave_a_dead_letter_with_their_offsets(
    cluster: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    options = await _overtaken(cluster, topic, tmp_path) | {"out_of_range": "skip"}
    async with Frame(tmp_path, Kafka, options) as frame:
        await frame.until(lambda: frame.instance.host.counters.events > 0, "what Kafka still has")
        (dead_letter,) = await frame.dead_letter_events()
        gap = json.loads(dead_letter.value)
        assert gap["first_offset"] == 1
        after = [event.event_id for event in await frame.events() if event.value != b"first"]
        assert after[0] == gap["last_offset"] + 2, "the id of the offset after the gap"
        assert frame.instance.host.counts["deleted_before_read"] == gap["last_offset"]


async def _overtaken(cluster: KafkaCluster, topic: str, folder: Path) -> dict[str, Any]:
    """A worker that has read one record, and then the topic's retention was faster."""
    options = config(cluster, topic)
    write(cluster.brokers, topic, [b"first"])
    async with Frame(folder, Kafka, options) as frame:
        await frame.until_stored(1)
        await frame.events()
    for _ in range(8):
        write(cluster.brokers, topic, [b"x" * 10_000] * (RETAINED_BYTES // 40_000))
    return options


async def test_a_topic_that_was_created_again_is_not_mistaken_for_the_old_one(
    cluster: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    with KafkaCluster() as other:
        other.topic(topic, 2)
        write(cluster.brokers, topic, [b"a", b"b"])
        async with Frame(tmp_path, Kafka, config(cluster, topic)) as frame:
            await frame.until_stored(2)
            await frame.events()
        write(other.brokers, topic, [b"c"])
        async with Frame(tmp_path, Kafka, config(other, topic)) as frame:
            reason = "ends at offset 1, before offset 2"
            await frame.until(lambda: reason in frame.instance.host.status().reason, "the failure")


async def test_a_topic_that_does_not_exist_is_waited_for(cluster: KafkaCluster, topic: str, tmp_path: Path) -> None:
    async with Frame(tmp_path, Kafka, config(cluster, f"{topic}-late")) as frame:
        await frame.until(lambda: "does not exist" in str(frame.instance.host.status()), "the reason")
        cluster.topic(f"{topic}-late", 1)
        write(cluster.brokers, f"{topic}-late", [b"a"])
        assert values(await frame.until_stored(1)) == [b"a"]


async def test_partitions_move_between_the_members_of_a_group_and_nothing_is_lost(
    cluster: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    """And nothing that was complete is read by the next member."""
    options = config(cluster, topic, assignment="group", librdkafka={"session.timeout.ms": 6000})
    options["librdkafka"]["heartbeat.interval.ms"] = 200
    write(cluster.brokers, topic, [b"a"], 0)
    write(cluster.brokers, topic, [b"b"], 1)
    async with Frame(tmp_path / "one", Kafka, options) as one:
        assert sorted(values(await one.until_stored(2))) == [b"a", b"b"]
        await one.take()
        group = f"{GROUP}-{topic}"
        await eventually(lambda: all(committed(cluster.brokers, group, topic, number) == 1 for number in (0, 1)))
        async with Frame(tmp_path / "two", Kafka, options) as two:
            await eventually(lambda: len(one.streams()) == len(two.streams()) == 1)
            write(cluster.brokers, topic, [b"c"], 0)
            write(cluster.brokers, topic, [b"d"], 1)
            await eventually(lambda: one.instance.host.counters.events == 3)
            await eventually(lambda: two.instance.host.counters.events == 1)
            found = sorted(values(await one.events()) + values(await two.events()))
            assert found == [b"c", b"d"]
            await two.take()
            await eventually(lambda: sum(committed(cluster.brokers, group, topic, number) for number in (0, 1)) == 3)
        await eventually(lambda: len(one.streams()) == 2)
        write(cluster.brokers, topic, [b"e"], 0)
        write(cluster.brokers, topic, [b"f"], 1)
        await one.until_stored(5)
        assert {b"e", b"f"} <= {*values(await one.events())}
        assert one.instance.host.counters.events == 5, "it did not read what the other has completed"


# Decisions.

PLACE = PartitionName("t", 0)


@pytest.mark.parametrize(
    ("last_id", "at", "alone", "shared"),
    [(0, -1, None, None), (0, 7, 7, 7), (5, -1, 5, 5), (5, 3, 5, 5), (5, 9, 5, 9)],
)
def test_the_store_decides_where_to_resume_unless_others_read_the_partition(
    last_id: int, at: int, alone: int | None, shared: int | None
) -> None:
    known = Known(PLACE, last_id, at)
    assert (resume_at(known, is_shared=False), resume_at(known, is_shared=True)) == (alone, shared)


def test_a_topic_is_started_if_one_of_its_partitions_is() -> None:
    known = [Known(PLACE, 0, -1), Known(PartitionName("t", 1), 1, -1), Known(PartitionName("u", 0), 0, -1)]
    assert started_topics(known) == {"t"}


@pytest.mark.parametrize(
    ("others", "reason"),
    [
        ({}, "set `topics` to read"),
        ({"topics": ["a"]}, "`group` is missing"),
        ({"topics": ["^("], "group": "g"}, "not a valid regular expression"),
        ({"topics": ["a"], "group": "g", "start": "timestamp"}, "belong together"),
        ({"topics": ["a"], "group": "g", "assignment": "group", "partitions": [1]}, "Kafka distributes them"),
        ({"topics": ["a"], "group": "g", "librdkafka": {"enable.auto.commit": True}}, "cannot be set here"),
        ({"topics": ["a"], "group": "g", "librdkafka": {"ssl.ca.location": "x"}}, "cannot be set here"),
        ({"topics": ["a"], "group": "g", "transactional_id": "x"}, "only for a sink"),
        ({"topic": "a", "start": "latest"}, "only for a source"),
    ],
)
def test_options_that_do_not_fit_together_are_refused(others: dict[str, Any], reason: str) -> None:
    with pytest.raises(RequestError, match=reason.replace("(", r"\(")):
        make_connector("kafka", {"brokers": ["127.0.0.1:1"]} | others)


def test_credentials_go_to_librdkafka_and_into_no_text() -> None:
    sasl = {"mechanism": "PLAIN", "username": "me", "password": "hidden-word"}
    given = {"brokers": ["a:1", "b:2"], "topics": ["t"], "group": "g", "sasl": sasl, "tls": {"ca": "/ca.pem"}}
    connector = make_connector("kafka", given)
    settings = connector.options.settings()
    assert settings["security.protocol"] == "sasl_ssl"
    assert (settings["bootstrap.servers"], settings["ssl.ca.location"]) == ("a:1,b:2", "/ca.pem")
    assert settings["sasl.password"] == "hidden-word"
    assert "hidden-word" not in repr(connector.options)


def test_a_group_is_at_least_once_because_a_failed_member_cannot_say_how_far_it_was() -> None:
    base = {"brokers": ["a:1"], "topics": ["t"], "group": "g"}
    for assignment, guarantee in (("all", Guarantee.EXACTLY_ONCE), ("group", Guarantee.AT_LEAST_ONCE)):
        connector = make_connector("kafka", base | {"assignment": assignment})
        assert connector.capabilities(connector.options).source is guarantee
