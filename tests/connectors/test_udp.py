"""`udp-server` and `udp-client`: real datagrams."""

import asyncio
import socket
from pathlib import Path

import pytest

from penstock.connectors.api import Outgoing, StreamGone
from penstock.connectors.permissions import NotPermitted, Permissions
from penstock.connectors.registry import make_connector
from penstock.connectors.udp import UdpClient, UdpClientOptions, UdpServer, UdpServerOptions
from penstock.connectors.urls import parse_sink
from penstock.protocol.api.deployment import InterceptorSpec
from tests.connectors.real_host import Hosted, hosting
from tests.connectors.recording_host import RecordingHost, running
from tests.support.waiting import SECONDS_MAX, eventually


def sending(hosted: Hosted) -> socket.socket:
    assert isinstance(hosted.connector, UdpServer)
    host, _, port = hosted.connector.addresses[0].rpartition(":")
    found = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    found.connect((host, int(port)))
    return found


async def test_each_datagram_is_an_event_in_order_with_the_address_of_its_sender(tmp_path: Path) -> None:
    async with hosting(tmp_path, "udp-server", {"port": 0}) as hosted:
        await hosted.connected()
        with sending(hosted) as one:
            values = [b"%d" % number for number in range(500)] + [b"", b"x" * 60_000]
            for value in values:
                one.send(value)
            await eventually(lambda: len(hosted.values()) == len(values))
            assert hosted.values() == values
            (peer,) = {event.metadata["peer"] for event in hosted.events()}
            assert peer == f"127.0.0.1:{one.getsockname()[1]}"
            await hosted.host.drain()
            assert hosted.host.streams == {}


async def test_each_datagram_passes_the_interceptors_alone_and_bad_ones_end_only_their_stream(tmp_path: Path) -> None:
    chain = (InterceptorSpec(type="length-prefixed", config={"record_bytes_max": 100}),)
    async with hosting(tmp_path, "udp-server", {"port": 0}, interceptors_in=chain) as hosted:
        await hosted.connected()
        with sending(hosted) as one:
            one.send(b"\0\0\0\1a\0\0\0\1b")
            one.send(b"\xff" * 4)
            await eventually(lambda: len(hosted.dead_letters()) == 1)
            one.send(b"\0\0\0\1c")
            await eventually(lambda: sorted(hosted.values()) == [b"a", b"b", b"c"])


async def test_chunks_of_gelf_are_a_dead_letter_in_time_although_nothing_else_arrives(tmp_path: Path) -> None:
    chain = (InterceptorSpec(type="gelf-chunking", config={"timeout": "50ms"}),)
    async with hosting(tmp_path, "udp-server", {"port": 0}, interceptors_in=chain) as hosted:
        await hosted.connected()
        with sending(hosted) as one:
            for number in range(2):
                one.send(b"\x1e\x0f%08d\0\2part" % number)
                await eventually(lambda number=number: len(hosted.dead_letters()) == number + 1)  # type: ignore[misc]
            one.send(b"\x1e\x0f%08d\0\1whole" % 3)
            await eventually(lambda: hosted.values() == [b"whole"])
            assert len(hosted.host.streams) == 1


async def test_what_the_kernel_has_no_room_for_is_lost_and_counted_although_nothing_follows() -> None:
    tested, host = UdpServer(UdpServerOptions(port=0, receive_buffer=4096)), RecordingHost()
    host.gate.clear()
    async with running(tested, host):
        await eventually(lambda: host.streams)
        where, _, port = tested.addresses[0].rpartition(":")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
            for _ in range(100):
                one.sendto(b"x" * 1000, (where, int(port)))
            host.gate.set()
            await eventually(lambda: len(host.streams[0].events) + host.counts["dropped_datagrams"] == 100)
    assert host.counts["dropped_datagrams"] > 0


def test_a_server_beyond_this_machine_needs_an_insecure_worker() -> None:
    with pytest.raises(NotPermitted, match="reachable from other machines"):
        make_connector("udp-server", {"host": "0.0.0.0", "port": 0}, Permissions(exposed=False))


async def test_a_client_sends_each_value_as_a_datagram_and_receives_answers() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.setblocking(False)
        tested, host = UdpClient(UdpClientOptions(port=server.getsockname()[1])), RecordingHost()
        loop = asyncio.get_running_loop()
        async with running(tested, host):
            await tested.deliver(Outgoing(None, [b"one", b"two"], [0, 0]), host)
            data, peer = await asyncio.wait_for(loop.sock_recvfrom(server, 100), SECONDS_MAX)
            assert data == b"one"
            assert await asyncio.wait_for(loop.sock_recv(server, 100), SECONDS_MAX) == b"two"
            await loop.sock_sendto(server, b"answer", peer)
            await eventually(lambda: host.streams and host.streams[0].events == [b"answer"])


async def test_a_value_too_long_for_a_datagram_is_a_dead_letter_and_the_others_leave() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        tested, host = UdpClient(UdpClientOptions(port=server.getsockname()[1])), RecordingHost(has_out=False)
        async with running(tested, host):
            with pytest.raises(StreamGone) as gone:
                await tested.deliver(Outgoing(None, [b"a", b"x" * 65_508, b"b"], [0, 0, 0]), host)
        assert gone.value.places == [1]
        server.settimeout(10)
        assert [server.recv(10), server.recv(10)] == [b"a", b"b"]


async def test_a_server_that_is_not_there_stops_nothing() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as nobody:
        nobody.bind(("127.0.0.1", 0))
        port = nobody.getsockname()[1]
    tested, host = UdpClient(UdpClientOptions(port=port)), RecordingHost(has_out=False)
    async with running(tested, host):
        for _ in range(20):
            await tested.deliver(Outgoing(None, [b"lost"], [0]), host)
            await asyncio.sleep(0)
    assert host.counts["refused_datagrams"] > 0


def test_a_url_names_a_server() -> None:
    assert isinstance(parse_sink("udp://127.0.0.1:8125").connector, UdpClient)
