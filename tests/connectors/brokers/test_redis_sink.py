"""The port `in` of `redis`, with a real server that is killed."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.connectors.redis import sink as sinks
from penstock.connectors.redis.sink import Mark, RedisSink, chunks
from penstock.connectors.registry import make_connector
from penstock.connectors.sink_api import SinkLost
from tests.connectors.brokers.epochs import SINK, epoch
from tests.connectors.brokers.redis_server import RedisServer, need_redis
from tests.fixtures.peers import stored


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    need_redis()
    with RedisServer() as found:
        yield found


@pytest.fixture
def key(request: pytest.FixtureRequest) -> str:
    return str(request.node.name)


def make_sink(server: RedisServer, key: str, **others: Any) -> RedisSink:
    options = make_connector("redis", {"unix_socket": str(server.socket), "stream": key} | others).options
    return RedisSink(options, SINK)


async def test_rows_are_entries_with_their_keys(server: RedisServer, key: str) -> None:
    sink = make_sink(server, key)
    await sink.deliver(epoch(0, [b"a", b"b"], keys=[b"k", b""]))
    await sink.close()
    with server.client() as client:
        found = [fields for _, fields in client.xrange(key)]
    assert found == [{b"key": b"k", b"value": b"a"}, {b"value": b"b"}]


async def test_an_epoch_that_is_delivered_again_is_written_once(server: RedisServer, key: str) -> None:
    """As after a crash of the worker between the answer of Redis and its own journal."""
    for number in (0, 0, 1, 1):
        sink = make_sink(server, key)
        await sink.deliver(epoch(number, [b"%d" % number] * 3, start=3 * number))
        await sink.close()
    assert server.values(key) == [b"0"] * 3 + [b"1"] * 3


async def test_the_rest_of_an_epoch_follows_what_was_written_of_it(
    server: RedisServer, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sinks, "ROWS_MAX", 10)
    values = [b"%d" % number for number in range(35)]
    sink = make_sink(server, key)
    written = 0

    async def break_off(mark: Mark, chunk: Any) -> Mark:
        nonlocal written
        if written == 3:  # the first begins the epoch
            raise ConnectionResetError("the worker is killed")
        written += 1
        return await RedisSink._add(sink, mark, chunk)

    monkeypatch.setattr(sink, "_add", break_off)
    with pytest.raises(SinkLost):
        await sink.deliver(epoch(0, values))
    await sink.close()
    assert len(server.values(key)) == 20
    again = make_sink(server, key)
    await again.deliver(epoch(0, values))
    await again.close()
    assert server.values(key) == values


async def test_a_mark_that_the_first_format_has_written_continues(server: RedisServer) -> None:
    """Two rows of the epoch are there."""
    before = stored("redis-1")
    with server.client() as client:
        for entry, fields in before["entries"]:
            client.xadd("orders", fields, id=entry)
        client.set(before["key"], before["mark"])
    rows = [b"row %d" % number for number in range(5)]
    sink = make_sink(server, "orders")
    await sink.deliver(epoch(7, rows))
    await sink.deliver(epoch(8, [b"next"], start=25))
    await sink.close()
    assert server.values("orders") == [*rows, b"next"]


async def test_a_worker_that_was_replaced_cannot_write(server: RedisServer, key: str) -> None:
    old, new = make_sink(server, key), make_sink(server, key)
    await old.deliver(epoch(0, [b"a"]))
    await new.deliver(epoch(1, [b"b"], start=1))
    with pytest.raises(SinkLost, match="changed by another process"):
        await old.deliver(epoch(1, [b"b"], start=1))
    await old.deliver(epoch(1, [b"b"], start=1))  # it has seen that the epoch is there
    await old.close()
    await new.close()
    assert server.values(key) == [b"a", b"b"]


async def test_a_server_that_is_killed_has_every_row_once(key: str) -> None:
    need_redis()
    with RedisServer() as server:
        sink = make_sink(server, key, timeout="1s")
        expected: list[bytes] = []
        for number in range(6):
            values = [b"%d %d" % (number, row) for row in range(5000)]
            killing = asyncio.create_task(_kill_soon(server, 0.003 * number)) if number % 2 else None
            while True:
                try:
                    await sink.deliver(epoch(number, values, start=len(expected)))
                    break
                except SinkLost:
                    await asyncio.sleep(0.01)
            if killing is not None:
                await killing
            expected += values
        await sink.close()
        assert server.values(key) == expected


async def test_rows_that_a_killed_server_keeps_of_a_script_are_not_repeated(key: str) -> None:
    """Redis removes an incomplete command at the end of its file, but not the MULTI before it, which swallows what is
    written next: two starts later it executes both.
    """
    need_redis()
    values = [b"%d" % row for row in range(20)]
    with RedisServer() as server:
        for _ in range(2):
            sink = make_sink(server, key)
            await sink.deliver(epoch(0, values))
            await sink.close()
            server.kill()
            (file,) = server.folder.glob("appendonlydir/*.incr.aof")
            data = file.read_bytes()
            if data.count(b"MULTI") == 1:
                file.write_bytes(data[: data.rindex(b"XADD") + 10])
            server.start()
        assert server.values(key) == values


async def test_other_programs_may_write_to_the_stream_meanwhile(
    server: RedisServer, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sinks, "ROWS_MAX", 2)
    sink = make_sink(server, key)
    with server.client() as client:
        client.xadd(key, {"value": "before"}, id="9000000000000-7")
        add = sink._add

        async def among_others(mark: Mark, chunk: Any) -> Mark:
            client.xadd(key, {"value": "other"})
            return await add(mark, chunk)

        monkeypatch.setattr(sink, "_add", among_others)
        await sink.deliver(epoch(0, [b"a", b"b", b"c"]))
        await sink.close()
    assert server.values(key) == [b"before", b"other", b"other", b"a", b"b", b"other", b"c"]


async def test_a_long_epoch_has_ids_that_a_source_can_read(server: RedisServer, key: str) -> None:
    sink = make_sink(server, key)
    with server.client() as client:
        client.set(sink._key, f"{epoch(0, [b'a']).name} {(1 << 20) - 1} 1000")
        await sink.deliver(epoch(0, [b""] * ((1 << 20) - 1) + [b"a", b"b"]))
        await sink.close()
        assert [entry for entry, _ in client.xrange(key)] == [b"1000-1048575", b"1001-0"]


async def _kill_soon(server: RedisServer, seconds: float) -> None:
    await asyncio.sleep(seconds)
    await asyncio.to_thread(server.kill)
    await asyncio.to_thread(server.start)


async def test_a_lost_mark_stops_the_sink_unless_the_loss_is_accepted(server: RedisServer, key: str) -> None:
    for others in ({}, {"when_lost": "continue"}):
        sink = make_sink(server, key, **others)
        if others:
            await sink.deliver(epoch(7, [b"a"], start=100))
        else:
            with pytest.raises(SinkLost, match="has lost the sink's mark"):
                await sink.deliver(epoch(7, [b"a"], start=100))
        await sink.close()
    assert server.values(key) == [b"a"]


async def test_the_stream_is_trimmed_to_its_maximum(server: RedisServer, key: str) -> None:
    sink = make_sink(server, key, maxlen=5, exact_maxlen=True)
    await sink.deliver(epoch(0, [b"%d" % number for number in range(9)]))
    await sink.close()
    assert server.values(key) == [b"4", b"5", b"6", b"7", b"8"]


def test_chunks_are_within_their_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sinks, "ROWS_MAX", 3)
    monkeypatch.setattr(sinks, "BYTES_MAX", 10)
    pairs = [(b"", b"x" * size) for size in (1, 1, 1, 1, 20, 5, 5, 1)]
    assert [[len(value) for _, value in chunk] for chunk in chunks(pairs)] == [[1, 1, 1], [1], [20], [5, 5], [1]]
    assert [*chunks([])] == []


def test_a_mark_can_be_read_back() -> None:
    assert Mark.parse(str(Mark("a b:1:2", 3, 4))) == Mark("a b:1:2", 3, 4)
    assert Mark.parse("") is None
