"""ws-server and ws-client, each with a real peer."""

import asyncio
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed, InvalidStatus

from penstock.connectors.api import Lost, Outgoing, StreamGone, StreamLost, StreamRef
from penstock.connectors.registry import make_chains, make_connector
from penstock.connectors.ws_client import WsClient, WsClientOptions
from penstock.connectors.ws_server import WsServer, WsServerOptions
from penstock.core.errors import RequestError
from penstock.protocol.api.deployment import InterceptorSpec
from tests.connectors.recording_host import RecordingHost, running
from tests.support.waiting import SECONDS_MAX, eventually

A = StreamRef("source", 1)


def server(**options: Any) -> WsServer:
    return WsServer(WsServerOptions.model_validate({"port": 0, **options}))


def url(tested: WsServer, path: str = "/") -> str:
    return f"ws://{tested.addresses[0]}{path}"


def to(stream: StreamRef | None, *values: bytes) -> Outgoing:
    return Outgoing(stream, values, [1] * len(values))


async def send_all(peer: ClientConnection, message: bytes, times: int) -> None:
    for _ in range(times):
        await peer.send(message)


async def test_each_connection_is_a_stream_and_a_message_an_event() -> None:
    tested, host = server(), RecordingHost(has_in=False)
    async with running(tested, host):
        async with connect(url(tested, "/some/path")) as peer:
            await peer.send("text")
            await peer.send(b"\xffbytes")
        await eventually(lambda: host.streams and host.streams[0].is_closed)
    assert host.streams[0].events == [b"text", b"\xffbytes"]
    assert host.streams[0].metadata["path"] == "/some/path"
    assert host.streams[0].cut_off_because is None


async def test_a_reply_goes_to_its_connection_as_text_if_it_is_text() -> None:
    tested, host = server(), RecordingHost()
    async with running(tested, host), connect(url(tested)) as first:
        await eventually(lambda: len(host.streams) == 1)
        async with connect(url(tested)) as second:
            await eventually(lambda: len(host.streams) == 2)
            receiving = asyncio.create_task(second.recv())
            await tested.deliver(to(host.streams[1].ref, "für zwei".encode()), host)
            assert await receiving == "für zwei"
            await tested.deliver(to(host.streams[0].ref, b"\xff"), host)
            assert await first.recv() == b"\xff"
        await eventually(lambda: host.streams[1].is_closed)
        await asyncio.sleep(0.01)
        with pytest.raises(StreamGone):
            await tested.deliver(to(host.streams[1].ref, b"late"), host)


async def test_a_message_over_the_limit_ends_only_its_connection() -> None:
    tested, host = server(message_bytes_max=100), RecordingHost(has_in=False)
    async with running(tested, host), connect(url(tested)) as good:
        async with connect(url(tested)) as bad:
            await bad.send("x" * 101)
            with pytest.raises(ConnectionClosed):
                await bad.recv()
        await good.send("still here")
        await eventually(lambda: any(stream.events == [b"still here"] for stream in host.streams))


async def test_garbage_instead_of_a_handshake_ends_only_its_connection() -> None:
    tested, host = server(), RecordingHost(has_in=False)
    async with running(tested, host):
        name, _, port = tested.addresses[0].rpartition(":")
        _, writer = await asyncio.open_connection(name, int(port))
        writer.write(b"\x00\x01garbage\r\n\r\n")
        writer.close()
        async with connect(url(tested)) as peer:
            await peer.send("fine")
            await eventually(lambda: host.streams and host.streams[0].events == [b"fine"])


async def test_nothing_is_read_while_the_stream_may_not_send_and_no_ping_ends_it() -> None:
    tested, host = server(ping_interval="50ms", ping_timeout="50ms"), RecordingHost(has_in=False)
    host.gate.clear()
    async with running(tested, host), connect(url(tested), ping_interval=None) as peer:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(send_all(peer, b"x" * 100_000, 1000), 0.6)
        assert host.streams[0].events == []
        host.gate.set()
        await eventually(lambda: len(host.streams[0].events) > 5)
        assert not host.streams[0].is_closed


async def test_a_peer_that_answers_no_ping_loses_its_connection() -> None:
    tested, host = server(ping_interval="50ms", ping_timeout="100ms"), RecordingHost(has_in=False)
    async with running(tested, host):
        name, _, port = tested.addresses[0].rpartition(":")
        reader, writer = await asyncio.open_connection(name, int(port))
        writer.write(
            b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        )
        await reader.readuntil(b"\r\n\r\n")
        await eventually(lambda: host.streams and host.streams[0].cut_off_because is not None)
        writer.close()


async def test_a_drain_keeps_what_was_sent_and_waits_for_the_replies() -> None:
    tested, host = server(), RecordingHost()
    async with running(tested, host) as run, connect(url(tested)) as peer:
        await peer.send("one")
        await eventually(lambda: host.streams and host.streams[0].events)
        host.drain()
        await eventually(lambda: host.streams[0].is_closed)
        receiving = asyncio.create_task(peer.recv())
        await tested.deliver(to(host.streams[0].ref, b"answer"), host)
        assert await receiving == "answer"
        await tested.stream_closed(host.streams[0].ref, host)
        await peer.wait_closed()
        assert peer.close_code == 1000
        await asyncio.wait_for(run, SECONDS_MAX)


async def test_connections_beyond_the_limit_are_refused_with_a_status() -> None:
    tested, host = server(connections_max=1), RecordingHost()
    async with running(tested, host), connect(url(tested)):
        await eventually(lambda: host.streams)
        with pytest.raises(InvalidStatus) as raised:
            await connect(url(tested))
        assert raised.value.response.status_code == 503


async def test_the_stream_of_a_slow_peer_is_closed_until_the_peer_has_received_everything() -> None:
    tested, host = server(slow_after="100ms"), RecordingHost()
    async with running(tested, host), connect(url(tested), max_size=None, max_queue=1) as peer:
        await eventually(lambda: host.streams)
        ref, much = host.streams[0].ref, [b"x" * 1_000_000] * 30
        await tested.deliver(to(ref, *much), host)
        assert host.reported[-1] == ("closed", ref)
        with pytest.raises(StreamLost):
            await tested.deliver(to(ref, b"more"), host)
        for _ in much:
            assert len(await peer.recv()) == 1_000_000
        await eventually(lambda: host.reported[-1] == ("opened", ref))


async def test_a_batch_leaves_as_one_message() -> None:
    tested, host = server(), RecordingHost()
    host.chains = make_chains([], [InterceptorSpec(type="join", config={"delimiter": r"\n"})])
    async with running(tested, host), connect(url(tested)) as peer:
        await eventually(lambda: host.streams)
        chain = host.outgoing_chain()
        receiving = asyncio.create_task(peer.recv())
        await tested.deliver(to(host.streams[0].ref, *chain.feed([b"1", b"2"]), *chain.flush()), host)
        assert await receiving == "1\n2\n"


async def test_a_client_sends_receives_and_notices_when_the_server_is_gone() -> None:
    heard: list[Any] = []
    connected: list[ServerConnection] = []

    async def serve_one(connection: ServerConnection) -> None:
        connected.append(connection)
        await connection.send("welcome")
        async for message in connection:
            heard.append(message)  # noqa: PERF401  the test looks meanwhile

    async with serve(serve_one, "127.0.0.1", 0) as real:
        port = real.sockets[0].getsockname()[1]
        tested, host = WsClient(WsClientOptions(url=f"ws://127.0.0.1:{port}/")), RecordingHost()
        async with running(tested, host) as run:
            await tested.deliver(to(A, b"one", b"two"), host)
            assert heard == ["one", "two"]
            await eventually(lambda: host.streams and host.streams[0].events == [b"welcome"])
            await connected[0].close()
            with pytest.raises(Lost):
                await run


async def test_a_client_whose_server_refuses_is_lost() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    real = await asyncio.start_server(refuse, "127.0.0.1", 0)
    port = real.sockets[0].getsockname()[1]
    with pytest.raises(Lost, match="cannot be reached"):
        await WsClient(WsClientOptions(url=f"ws://127.0.0.1:{port}/")).run(RecordingHost())
    real.close()


@pytest.mark.parametrize("wrong", ["ws://", "http://h/", "ws://user:hunter2@h/", "ws://h:99999", "ws://h:x"])
def test_an_invalid_url_or_one_with_a_password_is_refused(wrong: str) -> None:
    with pytest.raises(RequestError) as raised:
        make_connector("ws-client", {"url": wrong})
    assert "hunter2" not in str(raised.value)


def test_tls_options_for_a_plain_url_are_refused() -> None:
    with pytest.raises(RequestError, match="tls is for wss://"):
        make_connector("ws-client", {"url": "ws://h/", "tls": {}})


async def test_an_overlong_path_is_refused() -> None:
    tested, host = server(), RecordingHost()
    async with running(tested, host):
        with pytest.raises(InvalidStatus) as refused:
            await connect(url(tested, "/" + "x" * 2000))
        assert refused.value.response.status_code == 414
        assert host.counts["refused_connections"] == 1
