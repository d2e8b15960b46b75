"""`sse-client` and `sse-server`, with real peers and with each other."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from httpx_sse import ServerSentEvent, aconnect_sse

from penstock.connectors.api import StreamGone
from penstock.connectors.registry import CONNECTORS, make_connector
from penstock.connectors.sse_server import Replay, SseServer, encoded
from penstock.core.types import Guarantee
from penstock.protocol.api.deployment import ReconnectSpec
from tests.connectors.real_host import Hosted, hosting
from tests.connectors.sse_peers import SseServing
from tests.support.waiting import SECONDS_MAX, eventually

QUICKLY = ReconnectSpec(first_seconds=0.01, max_seconds=0.05)


@asynccontextmanager
async def serving(**options: Any) -> AsyncIterator[SseServing]:
    server = SseServing(**options)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@asynccontextmanager
async def reading(folder: Path, server: SseServing, ids: str = "number", **config: Any) -> AsyncIterator[Hosted]:
    given = {"url": server.url, "ids": ids, **config}
    async with hosting(folder, "sse-client", given, reconnect=QUICKLY) as hosted:
        yield hosted


# sse-client


async def test_the_data_of_an_event_is_an_event_with_its_id_and_type(tmp_path: Path) -> None:
    async with serving() as server, reading(tmp_path, server) as hosted:
        await server.add(
            b"data: one", b"event: price\ndata: two\ndata: lines", b": a comment\nretry: 7\ndata: \xc3\xa4"
        )
        await eventually(lambda: len(hosted.values()) == 3)
        found = [(event.value, event.metadata["id"], event.metadata["event"]) for event in hosted.events()]
        assert found == [(b"one", "0", "message"), (b"two\nlines", "1", "price"), ("ä".encode(), "2", "message")]


async def test_after_a_lost_connection_nothing_is_missing_and_nothing_comes_twice(tmp_path: Path) -> None:
    async with serving() as server, reading(tmp_path, server) as hosted:
        for number in range(5):
            await server.add(*[b"data: %d" % (number * 100 + one) for one in range(100)])
            await eventually(lambda number=number: len(hosted.values()) > number * 100)  # type: ignore[misc]
            server.cut()
        await eventually(lambda: len(hosted.values()) == 500)
        assert hosted.values() == [b"%d" % number for number in range(500)]
        assert server.asked[0] is None
        assert len(server.asked) > 2


async def test_after_a_restart_it_continues_after_the_last_stored_number(tmp_path: Path) -> None:
    async with serving() as server:
        await server.add(b"data: one", b"data: two")
        async with reading(tmp_path, server) as hosted:
            await eventually(lambda: len(hosted.values()) == 2)
        await server.add(b"data: three")
        async with reading(tmp_path, server) as hosted:
            await eventually(lambda: len(hosted.values()) == 3)
            assert hosted.values() == [b"one", b"two", b"three"]
        assert server.asked == [None, "1"]


async def test_events_that_a_server_sends_again_are_dropped_and_counted(tmp_path: Path) -> None:
    async with serving() as server:
        await server.add(b"data: one", b"data: two")
        async with reading(tmp_path, server) as hosted:
            await eventually(lambda: len(hosted.values()) == 2)
            server.asked.clear()
            server.cut()
            await eventually(lambda: server.asked)
            await server.add(b"data: three")
            await eventually(lambda: len(hosted.values()) == 3)
        async with reading(tmp_path, server, headers={"Last-Event-ID": "x"}) as hosted:  # it starts from the first
            await server.add(b"data: four")
            await eventually(lambda: len(hosted.values()) == 4)
            assert hosted.values() == [b"one", b"two", b"three", b"four"]


async def test_with_text_ids_it_continues_while_the_worker_runs(tmp_path: Path) -> None:
    async with serving() as server, reading(tmp_path, server, "text") as hosted:
        await server.add(b"data: one")
        await eventually(lambda: len(hosted.values()) == 1)
        server.cut()
        await eventually(lambda: len(server.asked) == 2)
        await server.add(b"data: two")
        await eventually(lambda: len(hosted.values()) == 2)
        assert hosted.values() == [b"one", b"two"]
        assert server.asked == [None, "0"]


async def test_events_without_ids_of_their_own_are_in_another_stream(tmp_path: Path) -> None:
    async with serving() as server, reading(tmp_path, server) as hosted:
        await server.add(b"data: one\n\ndata: ping", b"data: two")
        await eventually(lambda: len(hosted.values()) == 3)
        streams = {event.value: event.stream_id for event in hosted.events()}
        assert streams[b"one"] == streams[b"two"] != streams[b"ping"]


@pytest.mark.parametrize("second", [b"id: 5", b"id: x", b"id: -1", b"id: 99999999999999999999"])
async def test_an_id_that_is_not_a_growing_number_is_reported(tmp_path: Path, second: bytes) -> None:
    async with serving() as server, reading(tmp_path, server) as hosted:
        await server.add(b"id: 6\ndata: one", second + b"\ndata: two")
        await eventually(lambda: "is not a number greater" in hosted.host.status().reason)


@pytest.mark.parametrize(
    ("status", "head", "reason"),
    [
        (b"404 Not Found", b"Content-Type: text/event-stream\r\n", "replied 404 Not Found"),
        (b"200 OK", b"Content-Type: text/html\r\n", "sends no event stream"),
        (b"301 Moved", b"Location: http://127.0.0.1:1/\r\n", "replied 301"),
    ],
)
async def test_a_server_without_events_is_reported(tmp_path: Path, status: bytes, head: bytes, reason: str) -> None:
    async with serving() as server:
        server.status, server.head = status, head
        async with reading(tmp_path, server) as hosted:
            await eventually(lambda: reason in hosted.host.status().reason, lambda: hosted.host.status().reason)


async def test_a_server_that_replies_204_has_ended_the_stream_for_good(tmp_path: Path) -> None:
    async with serving() as server:
        server.status = b"204 No Content"
        async with reading(tmp_path, server) as hosted:
            await hosted.ended()
            assert server.asked == [None], "it does not ask again"


async def test_an_event_without_end_is_not_buffered_and_comments_do_not_count(tmp_path: Path) -> None:
    async with serving() as server, reading(tmp_path, server, event_bytes_max=2000) as hosted:
        await server.add(b": ping\n" * 500 + b"data: fine")
        await eventually(lambda: hosted.values() == [b"fine"])
        await server.add(b"data: " + b"x" * 300_000)
        await eventually(lambda: "event_bytes_max" in hosted.host.status().reason)
        assert hosted.values() == [b"fine"]


async def test_only_the_named_types_are_read(tmp_path: Path) -> None:
    async with serving() as server, reading(tmp_path, server, events=["price"]) as hosted:
        await server.add(b"data: no", b"event: price\ndata: yes")
        await eventually(lambda: hosted.values() == [b"yes"])
        assert hosted.host.counts["skipped_events"] == 1


async def test_a_drain_stores_what_was_read_and_reads_no_more(tmp_path: Path) -> None:
    async with serving() as server, reading(tmp_path, server) as hosted:
        await server.add(b"data: one")
        await eventually(lambda: len(hosted.values()) == 1)
        async with asyncio.timeout(SECONDS_MAX):
            await hosted.host.drain()
        await server.add(b"data: two")
        assert hosted.values() == [b"one"]


def test_only_numbers_promise_each_event_once() -> None:
    type_ = CONNECTORS.get("sse-client")
    for ids, guarantee in (("number", Guarantee.EXACTLY_ONCE), ("text", Guarantee.AT_MOST_ONCE)):
        made = make_connector("sse-client", {"url": "http://h/", "ids": ids})
        assert type_.capabilities(made.options).source is guarantee


# sse-server


@asynccontextmanager
async def publishing(folder: Path, **config: Any) -> AsyncIterator[tuple[Hosted, str]]:
    given = {"port": 0, **config}
    async with hosting(folder, "sse-server", given, has_in=True, has_out=False) as hosted:
        await hosted.connected()
        assert isinstance(hosted.connector, SseServer)
        yield hosted, f"http://{hosted.connector.addresses[0]}/events"


async def read_events(url: str, count: int, headers: dict[str, str] | None = None) -> list[ServerSentEvent]:
    found: list[ServerSentEvent] = []
    async with (
        httpx.AsyncClient(timeout=20) as client,
        aconnect_sse(client, "GET", url, headers=dict(headers or {})) as source,
    ):
        async for event in source.aiter_sse():
            found += [event] if event.data else []
            if len(found) == count:
                break
    return found


def clients(hosted: Hosted) -> int:
    assert isinstance(hosted.connector, SseServer)
    return len(hosted.connector.clients)


async def test_all_clients_get_what_comes_from_then_on(tmp_path: Path) -> None:
    async with publishing(tmp_path) as (hosted, url):
        await hosted.deliver([b"before"], [1], 5, "p:1:1/0")
        tasks = [asyncio.create_task(read_events(url, 2)) for _ in range(3)]
        await eventually(lambda: clients(hosted) == 3)
        await hosted.deliver([b"one", b"two\nlines"], [2, 3], 5, "p:1:2/1", metadata=[{"event": "price"}, {}])
        for events in await asyncio.gather(*tasks):
            found = [(event.data, event.event, event.id) for event in events]
            assert found == [("one", "price", "p:1:2/1-1"), ("two\nlines", "message", "p:1:2/1-0")]


@pytest.mark.parametrize(("last", "expected"), [("p:1:1/2-1", ["two", "three"]), ("unknown", ["one", "two", "three"])])
async def test_a_client_that_comes_back_continues_after_its_last_event(
    tmp_path: Path, last: str, expected: list[str]
) -> None:
    async with publishing(tmp_path) as (hosted, url):
        await hosted.deliver([b"one", b"two"], [1, 2], 5, "p:1:1/2")
        await hosted.deliver([b"three"], [3], 5, "p:1:2/0")
        await hosted.deliver([b"three"], [3], 5, "p:1:2/0")  # it is delivered again
        events = await read_events(url, len(expected), {"Last-Event-ID": last})
        assert [event.data for event in events] == expected


async def test_a_client_that_does_not_read_holds_up_nobody_and_is_disconnected(tmp_path: Path) -> None:
    async with publishing(tmp_path, replay_bytes="1MiB", keep_alive="10m") as (hosted, url):
        host, _, port = url.removeprefix("http://").partition("/")[0].rpartition(":")
        slow, writer = await asyncio.open_connection(host, int(port), limit=1000)
        writer.write(b"GET /events HTTP/1.1\r\nHost: a\r\n\r\n")
        await eventually(lambda: clients(hosted) == 1)
        async with httpx.AsyncClient(timeout=60) as client, aconnect_sse(client, "GET", url) as source:
            events = source.aiter_sse()
            await eventually(lambda: clients(hosted) == 2)
            for number in range(60):
                await hosted.deliver([b"x" * 500_000], [number], 5, f"p:1:{number}/0")
                assert len((await anext(events)).data) == 500_000
            await events.aclose()
        async with asyncio.timeout(60):
            while await slow.read(1 << 20):
                pass
        writer.close()
        assert hosted.host.counts["slow_clients"] == 1


async def test_a_value_that_is_not_utf8_is_a_dead_letter(tmp_path: Path) -> None:
    async with publishing(tmp_path) as (hosted, url):
        with pytest.raises(StreamGone, match="UTF-8") as raised:
            await hosted.deliver([b"one", b"\xff", b"two"], [1, 2, 3], 5)
        assert raised.value.places == [1]
        assert [event.data for event in await read_events(url, 2, {"Last-Event-ID": "?"})] == ["one", "two"]


async def test_other_requests_are_refused_and_only_listed_pages_may_read(tmp_path: Path) -> None:
    options = {"auth": {"bearer": ["t0ken"]}, "origins": ["https://example.org"]}
    async with publishing(tmp_path, **options) as (hosted, url), httpx.AsyncClient() as client:
        token = {"authorization": "Bearer t0ken"}
        assert (await client.get(url)).status_code == 401
        assert (await client.post(url, headers=token)).status_code == 405
        assert (await client.get(f"{url}/x", headers=token)).status_code == 404
        for origin, is_allowed in (("https://example.org", True), ("https://other.org", False)):
            async with client.stream("GET", url, headers=token | {"origin": origin}) as response:
                assert response.status_code == 200
                assert (response.headers.get("access-control-allow-origin") == origin) is is_allowed
        await eventually(lambda: clients(hosted) == 0)


async def test_a_silent_connection_gets_comments(tmp_path: Path) -> None:
    async with publishing(tmp_path, keep_alive="20ms") as (_, url), httpx.AsyncClient() as client:
        got = b""
        async with client.stream("GET", url) as response:
            async for data in response.aiter_bytes():
                got += data
                if got.count(b":\n\n") == 3:
                    break


async def test_what_the_server_serves_the_client_reads(tmp_path: Path) -> None:
    async with publishing(tmp_path / "server") as (hosted, url):
        given = {"url": url, "ids": "text"}
        async with hosting(tmp_path / "client", "sse-client", given, reconnect=QUICKLY) as reader:
            await eventually(lambda: clients(hosted) == 1)
            await hosted.deliver([b"one", b"two"], [1, 2], 5)
            await eventually(lambda: reader.values() == [b"one", b"two"])


def test_what_is_retained_is_bounded_by_count_and_by_size() -> None:
    replay = Replay(3, 100)
    for number in range(5):
        replay.add(f"{number}", b"%d" % number)
    assert (replay.start, replay.end) == (2, 5)
    assert replay.chunk(2) == (b"234", 5)
    assert (replay.after("2"), replay.after("0"), replay.after("")) == (3, 2, 5)
    replay.add("large", b"x" * 200)
    assert (replay.start, replay.end, replay.chunk(5)) == (5, 6, (b"x" * 200, 6))


@pytest.mark.parametrize("value", ["a\nb", "a\r\nb", "a\rb"])
def test_any_end_of_a_line_makes_another_line_of_data(value: str) -> None:
    assert encoded("1", value, "x\ny") == b"id: 1\ndata: a\ndata: b\n\n"
