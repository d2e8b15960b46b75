"""Pravega's own Python client, unchanged, against a real worker."""

import json
import subprocess
from collections import defaultdict

import pytest

from penstock.client.segments import SegmentClient
from penstock.protocol.stored.names import Source
from tests.pravega.conftest import Client, Running, result, tell, wait_for

pytestmark = pytest.mark.process


def by_key(events: list[str]) -> dict[str, list[int]]:
    found = defaultdict[str, list[int]](list)
    for event in events:
        key, _, number = event.partition(":")
        found[key].append(int(number))
    return found


def assert_in_order(events: list[str], count: int) -> None:
    """All events are there once, and those of a routing key in the order in which they were written."""
    keys = by_key(events)
    assert sorted(number for numbers in keys.values() for number in numbers) == list(range(count))
    assert all(numbers == sorted(numbers) for numbers in keys.values())


def test_scopes_and_streams_are_created_listed_updated_and_deleted(client: Client) -> None:
    assert client.run("manager") == {
        "scope": [True, False],
        "stream": [True, False],
        "tags": ["a", "b"],
        "new tags": ["c"],
        "lists": [True, ["s"]],
        "refused": [True, True],
        "invalid": [True, True],
        "deleted": [True, True, True],
        "gone": True,
    }


def test_events_are_read_once_and_in_the_order_of_their_routing_keys(client: Client) -> None:
    scope = client.new_scope(3)
    client.run("write", scope, 0, 300, 7)
    events = client.run("read", scope, "readers", "r", 300)
    assert_in_order(events, 300)


def test_events_without_routing_keys_are_read_once(client: Client) -> None:
    scope = client.new_scope(2)
    client.run("write", scope, 0, 100, 0)
    events = client.run("read", scope, "readers", "r", 100)
    assert sorted(by_key(events)["None"]) == list(range(100))


def test_two_readers_share_a_stream_until_one_is_killed(client: Client) -> None:
    """The client moves segments from one reader to the other after 10 s. What the killed one has not recorded is read
    again; the other one reads nothing twice.
    """
    scope = client.new_scope(2)
    first = client.start("read_to_the_end", scope, "readers", 6)
    wait_for(first, "reader is there")
    second = client.start("read_and_report", scope, "readers")
    wait_for(second, "reader is there")
    writer = client.start("write_until_told", scope, 6)
    seen = reported(second)
    client.run("take_offline", scope, "readers", "killed")
    tell(writer)
    count, found = result(writer), result(first)
    assert len({*found}) == len(found)
    assert all(numbers == sorted(numbers) for numbers in by_key(found).values())
    assert_in_order(sorted({*found, *seen}, key=lambda event: int(event.partition(":")[2])), count)


def reported(reader: subprocess.Popen[str]) -> list[str]:
    """What it has read when it is killed: its first slice, and more."""
    assert reader.stdout is not None
    lines = [reader.stdout.readline()]
    reader.kill()
    lines += [line for line in reader.stdout.read().splitlines(keepends=True) if line.endswith("\n")]
    return [event for line in lines for event in json.loads(line)]


def test_a_group_that_begins_at_the_positions_of_another_reads_what_was_written_since(
    client: Client, shared: Running
) -> None:
    scope = client.new_scope(2)
    client.run("write", scope, 0, 100, 5)
    before, offsets, after = client.run("positions", scope, 100)
    assert_in_order(before, 100)
    assert_in_order([*before, *after], 200)
    with SegmentClient(shared.worker.address, token=client.token) as segments:
        for number, offset in offsets.items():
            events = segments.events(f"{scope}/s/{number}.#epoch.0", offset)
            assert {bytes(event.data).decode() for event in events} <= {*after}


def test_transactions_are_committed_as_a_whole_or_not_at_all(client: Client, shared: Running) -> None:
    scope = client.new_scope(2)
    states, events = client.run("transactions", scope)
    assert states == [True, True, False, False, True]
    assert sorted(events) == [f"committed {number}" for number in range(10)]


def test_a_transaction_is_committed_although_the_stream_was_scaled_since_it_began(shared: Running) -> None:
    scope = shared.client.new_scope(1)
    transaction = shared.client.start("begin", scope)
    wait_for(transaction, "begun")
    shared.controller.scale(scope, (0, 0.5), (0.5, 1))
    tell(transaction)
    assert result(transaction)
    assert shared.client.run("read", scope, "readers", "r", 1) == ["inside"]
    ranges = shared.controller.call("getCurrentSegments", scope=scope, stream="s").segmentRanges
    assert [one.maxKey for one in ranges] == [0.5, 1]


def test_a_byte_stream_is_written_read_and_truncated(client: Client) -> None:
    scope = client.new_scope(1)
    assert client.run("byte_stream", scope) == ["hello", 6, "world", 4, 11, "o wor", 12]


def test_an_event_of_eight_megabytes_is_one_event(client: Client) -> None:
    scope = client.new_scope(1)
    assert client.run("large", scope, 8_000_000) == [5, 8_000_000, 4]


def test_scaling_from_one_segment_to_three_to_two_keeps_the_order_of_every_key(shared: Running) -> None:
    client, count = shared.client, 3000
    scope = client.new_scope(1)
    reader = client.start("read", scope, "readers", "r", count)
    wait_for(reader, "reader is there")
    writer = client.start("write", scope, 0, count, 11)
    wait_for(writer, "written 500")
    shared.controller.scale(scope, (0, 0.3), (0.3, 0.6), (0.6, 1))
    wait_for(writer, "written 1500")
    shared.controller.scale(scope, (0, 0.5), (0.5, 1))
    assert result(writer) == count
    assert_in_order(result(reader), count)


def test_its_events_are_those_of_segments_in_both_directions(shared: Running) -> None:
    """So what reads and writes segments, as Spark does, reads and writes its streams."""
    client = shared.client
    scope = client.new_scope(1)
    segment = f"{scope}/s/0.#epoch.0"
    assert Source.parse(f"pravega:{scope}/s").owns(segment)
    client.run("write", scope, 0, 50, 3)
    with SegmentClient(shared.worker.address, token=client.token) as segments:
        assert_in_order([bytes(event.data).decode() for event in segments.events(segment)], 50)
        with segments.appender(segment) as appender:
            for number in range(50, 100):
                appender.append(f"k{number % 3}:{number}".encode())
    assert_in_order(client.run("read", scope, "readers", "r", 100), 100)


def test_a_worker_that_is_killed_and_started_again_loses_and_repeats_nothing(running: Running) -> None:
    client, count = running.client, 2000
    scope = client.new_scope(2)
    writer = client.start("write", scope, 0, count, 5)
    wait_for(writer, "written 500")
    running.worker.kill()
    running.worker.start()
    assert result(writer) == count
    assert_in_order(client.run("read", scope, "readers", "r", count), count)
