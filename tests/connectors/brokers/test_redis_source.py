"""The port `out` of `redis`, with a real server."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.connectors.redis.connector import RedisStreams
from penstock.connectors.redis.source import Bad, BadId, Good, converted, entry_id, event_id
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
            await eventually(lambda: client.xlen(key) == 0)
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


async def test_entries_that_were_trimmed_before_they_were_read_are_suspected(
    server: RedisServer, key: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with server.client() as client:
        client.xadd(key, {"value": b"a"}, "1-1")
        async with Frame(tmp_path, RedisStreams, config(server, key)) as frame:
            await frame.until_stored(1)
            await frame.events()
        for number in (2, 3):
            client.xadd(key, {"value": b"b"}, f"{number}-1", maxlen=1, approximate=False)
    async with Frame(tmp_path, RedisStreams, config(server, key)) as frame:
        await frame.until_stored(1)
        assert frame.instance.host.counts["trimmed"] == 1
        assert "Redis has deleted all entries up to 1-1" in caplog.text


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
