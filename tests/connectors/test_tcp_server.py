"""tcp-server: a connection is a stream, and gets its replies."""

import asyncio
import socket
import ssl
import struct
from pathlib import Path
from typing import Any

import pytest
import trustme

from penstock.connectors.api import Lost, Outgoing, StreamGone, StreamLost, StreamRef
from penstock.connectors.registry import make_chains, make_connector
from penstock.connectors.tcp_server import TcpServer, TcpServerOptions
from penstock.protocol.api.deployment import InterceptorSpec
from tests.connectors.recording_host import RecordingHost, running
from tests.support.waiting import SECONDS_MAX, eventually


def server(**options: Any) -> TcpServer:
    return TcpServer(TcpServerOptions.model_validate({"port": 0, **options}))


def in_lines(**more: Any) -> RecordingHost:
    host = RecordingHost(**more)
    host.chains = make_chains([InterceptorSpec(type="split")], [])
    return host


async def connect(tested: TcpServer, **more: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    name, _, port = tested.addresses[0].rpartition(":")
    return await asyncio.open_connection(name, int(port), **more)


def reset(writer: asyncio.StreamWriter) -> None:
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def write_all(writer: asyncio.StreamWriter, line: bytes, times: int) -> None:
    for _ in range(times):
        writer.write(line)
        await writer.drain()


async def one_byte(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        await reader.readexactly(1)
    finally:
        writer.transport.abort()


def to(stream: StreamRef | None, *values: bytes) -> Outgoing:
    return Outgoing(stream, values, [1] * len(values))


async def test_each_connection_is_a_stream_with_its_peer_in_the_metadata() -> None:
    tested, host = server(), in_lines(has_in=False)
    async with running(tested, host):
        for words in (b"a\nb\n", b"c\n"):
            _, writer = await connect(tested)
            writer.write(words)
            writer.close()
            await writer.wait_closed()
        await eventually(lambda: len(host.streams) == 2 and all(stream.is_closed for stream in host.streams))
    assert sorted(stream.events for stream in host.streams) == [[b"a", b"b"], [b"c"]]
    assert host.streams[0].metadata["peer"] == host.streams[0].name


async def test_a_reply_goes_to_the_connection_it_belongs_to() -> None:
    tested, host = server(), in_lines()
    async with running(tested, host):
        first, first_writer = await connect(tested)
        await eventually(lambda: len(host.streams) == 1)
        second, second_writer = await connect(tested)
        await eventually(lambda: len(host.streams) == 2)
        await tested.deliver(to(host.streams[1].ref, b"for ", b"two\n"), host)
        await tested.deliver(to(host.streams[0].ref, b"for one\n"), host)
        assert await first.readline() == b"for one\n"
        assert await second.readline() == b"for two\n"
        first_writer.close()
        second_writer.close()


async def test_a_half_closed_peer_gets_its_replies_before_the_connection_closes() -> None:
    tested, host = server(), in_lines()
    async with running(tested, host):
        reader, writer = await connect(tested)
        writer.write(b"question")
        writer.write_eof()
        await eventually(lambda: host.streams and host.streams[0].is_closed)
        assert host.streams[0].events == [b"question"]
        await tested.deliver(to(host.streams[0].ref, b"answer"), host)
        await tested.stream_closed(host.streams[0].ref, host)
        assert await reader.read() == b"answer"
        writer.close()


async def test_a_reply_to_a_closed_connection_is_an_error() -> None:
    tested, host = server(), in_lines()
    async with running(tested, host):
        _, writer = await connect(tested)
        await eventually(lambda: host.streams)
        writer.transport.abort()
        await eventually(lambda: host.streams[0].is_closed)
        await asyncio.sleep(0.01)
        with pytest.raises(StreamGone, match="gone"):
            await tested.deliver(to(host.streams[0].ref, b"late"), host)
        reset((await connect(tested))[1])
        await eventually(lambda: len(host.streams) == 2 and host.streams[1].is_closed)
        with pytest.raises(StreamGone, match="gone"):
            await tested.deliver(to(host.streams[1].ref, b"late"), host)
        with pytest.raises(StreamGone, match="no connection of tested"):
            await tested.deliver(to(StreamRef("another", 1), b"whose"), host)


async def test_a_reset_in_the_middle_of_a_record_cuts_off_its_stream() -> None:
    tested, host = server(), in_lines()
    async with running(tested, host):
        _, writer = await connect(tested)
        writer.write(b"whole\nhal")
        await eventually(lambda: host.streams and host.streams[0].events)
        reset(writer)
        await eventually(lambda: host.streams[0].cut_off_because is not None)
    assert host.streams[0].events == [b"whole"]


async def test_nothing_is_read_while_the_stream_may_not_send() -> None:
    tested, host = server(), in_lines()
    host.gate.clear()
    async with running(tested, host):
        _, writer = await connect(tested)
        line = b"x" * 1023 + b"\n"
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(write_all(writer, line, 64 << 10), 0.5)
        assert host.streams[0].events == []
        host.gate.set()
        await eventually(lambda: len(host.streams[0].events) > 1000)
        writer.transport.abort()


async def test_the_stream_of_a_slow_peer_is_closed_until_the_peer_has_received_everything() -> None:
    tested, host = server(slow_after="100ms"), in_lines()
    async with running(tested, host):
        reader, writer = await connect(tested)
        await eventually(lambda: host.streams)
        ref, much = host.streams[0].ref, b"x" * (16 << 20)
        await tested.deliver(to(ref, much), host)
        assert host.reported[-1] == ("closed", ref)
        with pytest.raises(StreamLost):
            await tested.deliver(to(ref, b"more"), host)
        assert await reader.readexactly(len(much)) == much
        await eventually(lambda: host.reported[-1] == ("opened", ref))
        await tested.deliver(to(ref, b"more"), host)
        assert await reader.readexactly(4) == b"more"
        writer.close()
    assert host.counts["slow_peers"] == 1


async def test_a_slow_half_closed_peer_gets_the_rest_before_the_connection_closes() -> None:
    tested, host = server(slow_after="100ms"), in_lines()
    async with running(tested, host):
        reader, writer = await connect(tested)
        writer.write(b"question")
        writer.write_eof()
        await eventually(lambda: host.streams and host.streams[0].is_closed)
        much = b"x" * (16 << 20)
        await tested.deliver(to(host.streams[0].ref, much), host)
        await tested.stream_closed(host.streams[0].ref, host)
        await asyncio.sleep(2.5)
        assert await reader.read(-1) == much
        writer.close()


async def test_a_drain_stops_reading_keeps_what_was_read_and_waits_for_the_replies() -> None:
    tested, host = server(), in_lines()
    async with running(tested, host) as run:
        reader, writer = await connect(tested)
        writer.write(b"one\nhal")
        await eventually(lambda: host.streams and host.streams[0].events)
        host.drain()
        await eventually(lambda: host.streams[0].is_closed)
        assert host.streams[0].cut_off_because is not None
        await tested.deliver(to(host.streams[0].ref, b"answer"), host)
        await tested.stream_closed(host.streams[0].ref, host)
        assert await reader.read() == b"answer"
        writer.close()
        await asyncio.wait_for(run, SECONDS_MAX)


async def test_connections_beyond_the_limit_are_refused_and_counted() -> None:
    tested, host = server(connections_max=1), in_lines()
    async with running(tested, host):
        _, writer = await connect(tested)
        await eventually(lambda: host.streams)
        refused, second = await connect(tested)
        assert await refused.read() == b""
        assert host.counts["refused_connections"] == 1
        for one in (writer, second):
            one.close()


async def test_broadcast_reaches_all_connections() -> None:
    tested, host = server(broadcast=True), in_lines()
    async with running(tested, host):
        pairs = [await connect(tested) for _ in range(3)]
        await eventually(lambda: len(host.streams) == 3)
        await tested.deliver(to(StreamRef("another", 7), b"news\n"), host)
        assert [await reader.readline() for reader, _ in pairs] == [b"news\n"] * 3
        for _, writer in pairs:
            writer.close()
        await eventually(lambda: all(stream.is_closed for stream in host.streams))
        await asyncio.sleep(0.01)
        await tested.deliver(to(None, b"to nobody"), host)
    assert host.counts["sent_to_nobody"] == 1


@pytest.fixture
def tls_files(tmp_path: Path) -> dict[str, Path]:
    authority = trustme.CA()
    paths = {name: tmp_path / f"{name}.pem" for name in ("ca", "server", "client")}
    authority.cert_pem.write_to_path(paths["ca"])
    authority.issue_cert("localhost", "127.0.0.1").private_key_and_cert_chain_pem.write_to_path(paths["server"])
    authority.issue_cert("client.example").private_key_and_cert_chain_pem.write_to_path(paths["client"])
    return paths


async def test_with_mutual_tls_only_known_clients_are_accepted(tls_files: dict[str, Path]) -> None:
    tested = server(tls={"cert": tls_files["server"], "client_ca": tls_files["ca"]})
    host = in_lines(has_in=False)
    known = ssl.create_default_context(cafile=tls_files["ca"])
    known.load_cert_chain(tls_files["client"])
    unknown = ssl.create_default_context(cafile=tls_files["ca"])
    async with running(tested, host):
        _, writer = await connect(tested, ssl=known)
        writer.write(b"hello\n")
        await eventually(lambda: host.streams and host.streams[0].events == [b"hello"])
        writer.close()
        await writer.wait_closed()
        with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
            await one_byte(*await connect(tested, ssl=unknown))
        assert len(host.streams) == 1


@pytest.mark.parametrize("kind", ["tcp-server", "ws-server", "http-server"])
async def test_a_server_that_cannot_listen_names_its_address(kind: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Lost, match=rf"cannot listen on 127\.0\.0\.1:{port}: address already in use"):
            await make_connector(kind, {"port": port}).run(RecordingHost())
    with pytest.raises(Lost, match=r"cannot listen on no\.such\.host\.invalid:0: "):
        await make_connector(kind, {"port": 0, "host": "no.such.host.invalid"}).run(RecordingHost())


async def test_input_without_a_link_is_dropped_and_counted() -> None:
    tested, host = server(broadcast=True), in_lines(has_out=False)
    async with running(tested, host):
        _, writer = await asyncio.open_connection(*tested.addresses[0].split(":"))
        writer.write(b"for nobody\n")
        await eventually(lambda: host.counts["discarded_bytes"] == 11)
        await tested.deliver(Outgoing(None, [b"to all\n"], [0]), host)
        assert host.streams[0].events == []
        writer.close()
