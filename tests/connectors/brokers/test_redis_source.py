"""The port `out` of `redis`, with a real server."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.connectors.redis.connector import RedisStreams
from penstock.connectors.redis.source import (
    Bad,
    BadId,
    Contents,
    Good,
    converted,
    entry_id,
    event_id,
    gap_at_start,
    gap_while_reading,
)
from penstock.connectors.registry import make_connector
from penstock.core.errors import RequestError
from penstock.testing.frame import Frame
from tests.connectors.brokers.redis_server import RedisServer, need_redis
from tests.support.waiting import eventually


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    need_redis()
    with RedisServer() as found:
        yield found


@pytest.fixture
def key(request: pytest.FixtureRequest) -> str:
    return str(request.node.name)


def config(server: RedisServer, *keys: str, **others: Any) -> dict[str, Any]:
    return {"unix_socket": str(server.socket), "streams": list(keys)} | others


async def test_a_redis_stream_is_a_stream_and_an_entry_s_id_the_event_s(
    server: RedisServer, key: str, tmp_path: Path
) -> None:
    with server.client() as client:
        client.xadd(key, {"value": b"a", "host": "h"}, "1700000000000-1")
        client.xadd(key, {"value": b"b"}, "1700000000000-2")
    async with Frame(tmp_path, RedisStreams, config(server, key)) as frame:
        first, second = await frame.until_stored(2)
        assert (first.value, second.value) == (b"a", b"b")
        assert (first.event_id, second.event_id) == ((1_700_000_000_000 << 20) + 1, (1_700_000_000_000 << 20) + 2)
        assert first.metadata["fields"] == {"host": "h"}
        assert (first.metadata["stream"], "fields" in second.metadata) == (key, False)


async def test_entries_that_cannot_be_events_are_dead_letters_once(
    server: RedisServer, key: str, tmp_path: Path
) -> None:
    with server.client() as client:
        client.xadd(key, {"value": b"a"}, "1-1")
        client.xadd(key, {"other": b"b"}, "1-2")
        client.xadd(key, {"value": b"c"}, f"1-{1 << 20}")
        client.xadd(key, {"value": b"d"}, "2-1")
        client.xadd(key, {"other": b"e"}, "2-2")
    async with Frame(tmp_path, RedisStreams, config(server, key)) as frame:
        assert [event.value for event in await frame.until_stored(2)] == [b"a", b"d"]
        await frame.until(lambda: frame.instance.host.dead_letters.count == 3, "the dead letters")
        found = [json.loads(one.value) for one in await frame.dead_letter_events()]
        assert sorted(one["id"] for one in found) == ["1-1048576", "1-2", "2-2"]
    with server.client() as client:
        client.xadd(key, {"value": b"f"}, "3-1")
    async with Frame(tmp_path, RedisStreams, config(server, key)) as frame:
        await frame.until_stored(1)
        assert len(await frame.dead_letter_events()) == 3


async def test_a_group_follows_and_entries_are_trimmed_when_epochs_complete(
    server: RedisServer, key: str, tmp_path: Path
) -> None:
    with server.client() as client:
        for number in range(1, 4):
            client.xadd(key, {"value": b"%d" % number}, f"{number}-1")
        options = config(server, key, group="shop", trim=True)
        async with Frame(tmp_path, RedisStreams, options) as frame:
            await frame.until_stored(3)
            assert client.xlen(key) == 3
            assert client.xinfo_groups(key) == []
            await frame.take()
            await eventually(lambda: client.xlen(key) == 1)
            (group,) = client.xinfo_groups(key)
            assert (group["name"], group["last-delivered-id"]) == (b"shop", b"3-1")


async def test_latest_starts_at_the_end_and_a_group_remembers_it(server: RedisServer, key: str, tmp_path: Path) -> None:
    options = config(server, key, group="shop", start="latest")
    with server.client() as client:
        client.xadd(key, {"value": b"old"})
        async with Frame(tmp_path, RedisStreams, options) as frame:
            await frame.connected()
        client.xadd(key, {"value": b"new"})
    async with Frame(tmp_path, RedisStreams, options) as frame:
        assert [event.value for event in await frame.until_stored(1)] == [b"new"]


async def _read_one(server: RedisServer, key: str, path: Path) -> None:
    with server.client() as client:
        client.xadd(key, {"value": b"a"}, "1-1")
    async with Frame(path, RedisStreams, config(server, key)) as frame:
        await frame.until_stored(1)
        await frame.events()


async def test_entries_that_were_perhaps_trimmed_while_it_was_away_are_one_dead_letter(
    server: RedisServer, key: str, tmp_path: Path
) -> None:
    await _read_one(server, key, tmp_path)
    with server.client() as client:
        for number in (2, 3):
            client.xadd(key, {"value": b"b"}, f"{number}-1", maxlen=1, approximate=False)
    async with Frame(tmp_path, RedisStreams, config(server, key)) as frame:
        await frame.until_stored(1)
        assert frame.instance.host.counts["deleted_before_read"] == 1
        (letter,) = await frame.dead_letter_events()
        assert json.loads(letter.value) == {"stream": key, "after": "1-1"}
    async with Frame(tmp_path, RedisStreams, config(server, key)) as frame:
        await frame.connected()
        assert len(await frame.dead_letter_events()) == 1


async def test_a_stream_that_was_emptied_while_it_was_away_stops_the_source(
    server: RedisServer, key: str, tmp_path: Path
) -> None:
    await _read_one(server, key, tmp_path)
    with server.client() as client:
        for _ in range(100):
            client.xadd(key, {"value": b"b"})
        client.xtrim(key, maxlen=0, approximate=False)
    async with Frame(tmp_path, RedisStreams, config(server, key)) as frame:
        await frame.until(
            lambda: "has deleted all entries after 1-1" in str(frame.instance.host.status()), "the failure"
        )
    async with Frame(tmp_path, RedisStreams, config(server, key, when_deleted="skip")) as frame:
        await frame.connected()
        assert frame.instance.host.counts["deleted_before_read"] == 1
        assert len(await frame.dead_letter_events()) == 1
        with server.client() as client:
            client.xadd(key, {"value": b"c"})
        assert (await frame.until_stored(1))[-1].value == b"c"


async def test_entries_that_are_deleted_while_it_reads_stop_it_until_they_may_be_skipped(
    server: RedisServer, key: str, tmp_path: Path
) -> None:
    with server.client() as client:
        client.xadd(key, {"value": b"a"}, "1-1")
        async with Frame(tmp_path, RedisStreams, config(server, key)) as frame:
            await frame.until_stored(1)
            with client.pipeline(transaction=True) as together:
                for number in range(2, 7):
                    together.xadd(key, {"value": b"b"}, f"{number}-1")
                together.xtrim(key, minid="5-1", approximate=False)
                together.execute()
            await frame.until(lambda: "has deleted 3 entries" in str(frame.instance.host.status()), "the failure")
            failures = frame.instance.host.status().failures
            await frame.until(lambda: frame.instance.host.status().failures > failures, "another attempt")
            assert len(await frame.events()) == 1


async def test_entries_that_are_deleted_while_it_reads_are_counted(
    server: RedisServer, key: str, tmp_path: Path
) -> None:
    with server.client() as client:
        client.xadd(key, {"value": b"a"}, "1-1")
        async with Frame(tmp_path, RedisStreams, config(server, key, when_deleted="skip")) as frame:
            await frame.until_stored(1)
            with client.pipeline(transaction=True) as together:
                for number in range(2, 7):
                    together.xadd(key, {"value": b"b"}, f"{number}-1")
                together.xtrim(key, minid="5-1", approximate=False)
                together.execute()
            assert [event.value for event in await frame.until_stored(3)][1:] == [b"b", b"b"]
            await frame.until(lambda: "deleted_before_read" in frame.instance.host.counts, "the gap")
            assert frame.instance.host.counts["deleted_before_read"] == 3
            client.xtrim(key, maxlen=0, approximate=False)
            client.xadd(key, {"value": b"c"}, "7-1")
            await frame.until_stored(4)
            assert frame.instance.host.counts["deleted_before_read"] == 3


async def test_large_entries_are_transferred_once(server: RedisServer, key: str, tmp_path: Path) -> None:
    def sent() -> int:
        return int(client.info("stats")["total_net_output_bytes"])

    value = bytes(1 << 20)
    with server.client() as client:
        client.xadd(key, {"value": b"a"})
        async with Frame(tmp_path, RedisStreams, config(server, key)) as frame:
            await frame.until_stored(1)
            before = sent()
            for number in range(4):
                client.xadd(key, {"value": value})
                await frame.until_stored(number + 2)
            assert 4 * len(value) <= sent() - before < 5 * len(value)


async def test_a_user_who_may_run_no_scripts_notices_deletions_too(
    server: RedisServer, key: str, tmp_path: Path
) -> None:
    with server.client() as client:
        client.acl_setuser("reader", enabled=True, passwords=["+word"], keys=["*"], commands=["+@all", "-@scripting"])
        client.xadd(key, {"value": b"a"}, "1-1")
        options = config(server, key, when_deleted="skip", username="reader", password="word")
        async with Frame(tmp_path, RedisStreams, options) as frame:
            await frame.until_stored(1)
            with client.pipeline(transaction=True) as together:
                for number in range(2, 7):
                    together.xadd(key, {"value": b"b"}, f"{number}-1")
                together.xtrim(key, minid="5-1", approximate=False)
                together.execute()
            await frame.until_stored(3)
            await frame.until(lambda: "deleted_before_read" in frame.instance.host.counts, "the gap")
            assert frame.instance.host.counts["deleted_before_read"] == 3


async def test_its_own_trimming_is_no_gap(server: RedisServer, key: str, tmp_path: Path) -> None:
    with server.client() as client:
        for _ in range(3):
            client.xadd(key, {"value": b"a"})
        async with Frame(tmp_path, RedisStreams, config(server, key, trim=True)) as frame:
            await frame.until_stored(3)
            await frame.take()
            await eventually(lambda: client.xlen(key) == 1)
        client.xadd(key, {"value": b"b"})
        async with Frame(tmp_path, RedisStreams, config(server, key, trim=True)) as frame:
            await frame.until_stored(1)
            assert "deleted_before_read" not in frame.instance.host.counts


def contents(added: int | None, length: int, last: bytes, first: bytes | None, deleted: bytes = b"0-0") -> Contents:
    return Contents(added, length, last, first, deleted)


@pytest.mark.parametrize(
    ("found", "is_certain"),
    [
        (contents(5, 5, b"5-1", b"1-1"), None),
        (contents(5, 0, b"3-1", None), None),
        (contents(5, 0, b"5-1", None), True),
        (contents(None, 0, b"5-1", None), True),
        (contents(5, 3, b"5-1", b"1-1", b"4-1"), True),
        (contents(5, 1, b"5-1", b"5-1"), False),
        (contents(5, 1, b"3-2", b"3-2"), None),  # nothing can have been between
    ],
)
def test_gaps_at_the_start(found: Contents, is_certain: bool | None) -> None:
    gap = gap_at_start(found, b"3-1")
    assert (None if gap is None else gap.is_certain) is is_certain


@pytest.mark.parametrize(
    ("found", "count"),
    [
        (contents(3, 3, b"3-1", b"1-1"), 0),
        (contents(3, 0, b"3-1", None), 0),
        (contents(6, 3, b"6-1", b"4-1"), 0),
        (contents(6, 1, b"6-1", b"6-1"), 2),
        (contents(6, 0, b"6-1", None), 3),
        (contents(None, 0, b"6-1", None), 1),
        (contents(4, 3, b"3-1", b"1-1"), 1),  # one after the other: XDEL
    ],
)
def test_gaps_while_reading(found: Contents, count: int) -> None:
    gap = gap_while_reading(found, b"3-1", 3)
    assert (0 if gap is None else gap.entries) == count


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (contents(4, 0, b"4-1", None), "Redis has deleted 1 entry near 3-1 before it was read"),
        (contents(2003, 0, b"9-1", None), "Redis has deleted 2,000 entries near 3-1 before they were read"),
        (contents(None, 0, b"9-1", None), "Redis has deleted all entries near 3-1 before they were read"),
    ],
)
def test_a_gap_says_how_many_entries_are_gone(found: Contents, reason: str) -> None:
    gap = gap_while_reading(found, b"3-1", 3)
    assert gap is not None
    assert gap.reason == reason


# Entries and ids.


@given(st.integers(0, (1 << 43) - 2), st.integers(0, (1 << 20) - 1))
def test_ids_are_in_the_order_of_the_entries_and_can_be_turned_back(milliseconds: int, sequence: int) -> None:
    raw = b"%d-%d" % (milliseconds, sequence)
    assert entry_id(event_id(raw)) == raw
    assert event_id(raw) < event_id(b"%d-0" % (milliseconds + 1))


@pytest.mark.parametrize("raw", [b"1-1048576", b"8796093022208-0"])
def test_an_id_that_does_not_fit_is_refused(raw: bytes) -> None:
    with pytest.raises(BadId):
        event_id(raw)


def test_without_a_field_an_entry_is_a_json_object() -> None:
    found = converted((b"1-1", {b"a": b"1", b"b": b"\xff"}), None)
    assert isinstance(found, Good)
    assert json.loads(found.value) == {"a": "1", "b": "\\xff"}
    assert isinstance(converted((b"1-1", None), b"value"), Bad)


@pytest.mark.parametrize(
    ("others", "reason"),
    [
        ({}, "set `streams` to read"),
        ({"streams": ["a"], "maxlen": 5}, "only for a sink"),
        ({"stream": "a", "trim": True}, "only for a source"),
        ({"stream": "a", "field": None}, "needs a `field`"),
        ({"stream": "a", "exact_maxlen": True}, "needs a maxlen"),
    ],
)
def test_options_that_do_not_fit_together_are_refused(others: dict[str, Any], reason: str) -> None:
    with pytest.raises(RequestError, match=reason):
        make_connector("redis", others)
