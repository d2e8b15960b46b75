"""Files, programs, datagrams and generators in the real frame, each with a real peer."""

import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from penstock.connectors.api import Port
from penstock.connectors.cron import Cron
from penstock.connectors.directory.connector import Directory
from penstock.connectors.exec import Exec
from penstock.connectors.load_test import Bench
from penstock.connectors.syslog import Syslog
from penstock.connectors.udp import UdpClient, UdpServer
from penstock.connectors.unix_sockets import UnixClient, UnixServer
from penstock.testing.conformance import ConnectorConformance
from penstock.testing.frame import Frame
from penstock.testing.peer import Line, Peer
from tests.connectors.conformance.tcp_peers import TcpConnecting, TcpLine, TcpListening
from tests.connectors.conformance.test_sockets import Reconnecting

RELAY = """
import os, select, socket, sys
peer = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
inputs = [peer, 0]
while True:
    ready = select.select(inputs, [], [])[0]
    if peer in ready:  # first: what comes after the end of the connection stays in the pipe
        data = peer.recv(1 << 16)
        if not data:
            sys.exit(0)
        while data:
            data = data[os.write(1, data):]
    elif data := os.read(0, 1 << 16):
        peer.sendall(data)
    else:
        inputs = [peer]
        peer.shutdown(socket.SHUT_WR)
"""
"""A program between its standard input and output and a connection, which ends with the connection."""


class Relayed(TcpListening):
    def config(self) -> Mapping[str, Any]:
        command = [sys.executable, "-I", "-S", "-c", RELAY, str(self._port)]
        return {"command": command, "restart": "always", "format": "raw", **self.options}


class TestExec(Reconnecting):
    connector = Exec
    lines_max = 1
    is_dialled = True

    def make_peer(self, folder: Path) -> Peer:
        return Relayed()


class UnixConnecting(TcpConnecting):
    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def config(self) -> Mapping[str, Any]:
        return {"path": str(self._path), "slow_after": "200ms"}

    async def line(self, frame: Frame) -> Line:
        await frame.until(lambda: getattr(frame.connector, "addresses", None), "an address")
        self.lines.append(TcpLine(*await asyncio.open_unix_connection(self._path)))
        return self.lines[-1]


class UnixListening(TcpListening):
    def __init__(self, path: Path, **options: Any) -> None:
        super().__init__(**options)
        self._path = path

    def config(self) -> Mapping[str, Any]:
        return {"path": str(self._path), **self.options}

    async def start(self) -> None:
        self._path.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._accept, self._path)


class TestUnixServer(ConnectorConformance):
    connector = UnixServer
    breaks_off = False  # a socket whose program is killed has ended

    def make_peer(self, folder: Path) -> Peer:
        return UnixConnecting(folder / "s")


class TestUnixClient(Reconnecting):
    connector = UnixClient
    lines_max = 1
    breaks_off = False
    is_dialled = True

    def make_peer(self, folder: Path) -> Peer:
        return UnixListening(folder / "s")


class TestUnixClientPerStream(ConnectorConformance):
    connector = UnixClient
    speaks = False
    is_dialled = True

    def make_peer(self, folder: Path) -> Peer:
        return UnixListening(folder / "s", connections="per-stream", connect_timeout="500ms")


class Datagrams(Peer, asyncio.DatagramProtocol):
    """A UDP server that records what it gets."""

    def __init__(self) -> None:
        self._got = bytearray()
        self._transport: asyncio.DatagramTransport | None = None
        self._port = 0

    def config(self) -> Mapping[str, Any]:
        return {"port": self._port}

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_datagram_endpoint(lambda: self, local_addr=("127.0.0.1", self._port))
        self._port = self._transport.get_extra_info("sockname")[1]

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self._got += data

    async def stop(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def received(self) -> bytes:
        return bytes(self._got)


class TestUdpClient(ConnectorConformance):
    connector = UdpClient
    speaks = False  # what does not fit into a buffer is lost: see tests/connectors/test_udp.py

    def make_peer(self, folder: Path) -> Peer:
        return Datagrams()


class Given(Peer):
    """Options for a connector that needs no peer."""

    def __init__(self, **config: Any) -> None:
        self._config = config

    def config(self) -> Mapping[str, Any]:
        return self._config


class TestUdpServer(ConnectorConformance):
    connector = UdpServer
    speaks = False

    def make_peer(self, folder: Path) -> Peer:
        return Given(port=0)


class SyslogSending(TcpConnecting):
    def config(self) -> Mapping[str, Any]:
        return {"port": 0, "transport": "tcp", "framing": "lines"}  # a line of these tests may begin with a digit


class TestSyslog(ConnectorConformance):
    connector = Syslog
    interceptors_in = ()

    def make_peer(self, folder: Path) -> Peer:
        return SyslogSending()

    def test_garbage_is_a_dead_letter_and_ends_only_its_stream(self, tmp_path: Path) -> None:
        async def scenario(frame: Frame, peer: Peer) -> None:
            good, bad = await peer.line(frame), await peer.line(frame)
            await bad.send(b"fine\n" + b"garbage" * 10_000)
            await frame.until(lambda: frame.instance.host.dead_letters.count == 1, "the dead letter")
            (dead_letter,) = await frame.dead_letter_events()
            assert b"garbage" in dead_letter.value
            assert "message_bytes_max" in dead_letter.metadata["reason"]
            await good.send(b"still here\n")
            assert {event.value for event in await frame.until_stored(2)} == {b"fine", b"still here"}

        self.run(tmp_path, scenario, needs=Port.OUT)


class TestCron(ConnectorConformance):
    connector = Cron
    speaks = False

    def make_peer(self, folder: Path) -> Peer:
        return Given(expression="* * * * * *")

    def test_after_a_crash_no_time_is_repeated_or_left_out(self, tmp_path: Path) -> None:
        async def scenario(frame: Frame, peer: Peer) -> None:
            await frame.until_stored(1)
            frame.image(tmp_path / "crashed")
            await frame.stop()
            async with Frame(tmp_path / "crashed", Cron, {**peer.config(), "missed": "catch_up"}) as after:
                events = await after.until_stored(2)
                ids = [event.event_id for event in events]
                assert ids == [*range(ids[0], ids[0] + len(ids))], "each second once"

        self.run(tmp_path, scenario, stops_itself=True)


class TestBench(ConnectorConformance):
    connector = Bench
    speaks = False

    def make_peer(self, folder: Path) -> Peer:
        return Given(count=3000, size=10, rate=10_000)

    def test_values_reach_the_peer_in_order(self, tmp_path: Path) -> None:
        async def scenario(frame: Frame, peer: Peer) -> None:
            epoch = frame.give(None, [b"a", b"b", b"c"])
            await frame.until(lambda: frame.has_left(epoch))
            assert frame.instance.host.counts["arrived_bytes"] == len(b"a\nb\nc\n")

        self.run(tmp_path, scenario)

    def test_buffered_values_are_sent_in_a_drain(self, tmp_path: Path) -> None:
        pytest.skip("nobody sees what leaves")

    def test_after_a_crash_each_event_is_there_once(self, tmp_path: Path) -> None:
        async def scenario(frame: Frame, peer: Peer) -> None:
            await frame.until_stored(500)
            frame.image(tmp_path / "crashed")
            await frame.stop()
            async with Frame(tmp_path / "crashed", Bench, peer.config()) as after:
                await after.until(lambda: after.instance.host.log.has_finished, "the end")
                ids = [event.event_id for event in await after.events()]
                assert ids == [*range(1, 3001)]

        self.run(tmp_path, scenario, stops_itself=True)


class TestDirectory(ConnectorConformance):
    connector = Directory
    speaks = False  # files are complete when they appear: see tests/connectors/directory

    def make_peer(self, folder: Path) -> Peer:
        return Given(path=str(folder))
