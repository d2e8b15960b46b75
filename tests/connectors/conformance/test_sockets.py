"""Connectors with a socket, in the real frame, each with a real peer."""

import asyncio
import ssl
from pathlib import Path

import trustme

from penstock.connectors.api import Port, StreamRef
from penstock.connectors.tcp_client import TcpClient
from penstock.connectors.tcp_server import TcpServer
from penstock.connectors.ws_client import WsClient
from penstock.connectors.ws_server import WsServer
from penstock.testing.conformance import LONG_SECONDS, PAUSE_SECONDS, ConnectorConformance
from penstock.testing.frame import Frame
from penstock.testing.peer import Peer
from tests.connectors.conformance.tcp_peers import TcpConnecting, TcpListening
from tests.connectors.conformance.ws_peers import WsConnecting, WsListening


class Reconnecting(ConnectorConformance):
    """A client with one connection, which it reopens."""

    def test_a_connection_that_breaks_while_its_stream_is_blocked_is_reopened(self, tmp_path: Path) -> None:
        async def scenario(frame: Frame, peer: Peer) -> None:
            line = await peer.line(frame)
            frame.give(None, [b"before"])
            await frame.until(lambda: peer.received() == b"before\n", "the first value")
            (stream,) = frame.streams()
            frame.other.close(stream)
            await line.send(b"this is read, and then nothing more\n")
            await asyncio.sleep(PAUSE_SECONDS)
            await peer.stop()
            last = frame.give(None, [b"after"])
            await peer.start()
            await frame.until(lambda: frame.has_left(last), "the last epoch", LONG_SECONDS)
            await frame.until(lambda: peer.received().endswith(b"after\n"), "the last value")

        self.run(tmp_path, scenario, needs=Port.IN)


class TestTcpServer(ConnectorConformance):
    connector = TcpServer

    def make_peer(self, folder: Path) -> Peer:
        return TcpConnecting()


class TestTcpClient(Reconnecting):
    connector = TcpClient
    lines_max = 1
    is_dialled = True

    def make_peer(self, folder: Path) -> Peer:
        return TcpListening()


class TestTcpServerWithTls(ConnectorConformance):
    connector = TcpServer

    def make_peer(self, folder: Path) -> Peer:
        authority = trustme.CA()
        authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(folder / "server.pem")
        context = ssl.create_default_context()
        authority.configure_trust(context)
        return TcpConnecting(ssl=context, tls={"cert": folder / "server.pem"})


class TestTcpClientPerStream(ConnectorConformance):
    """Its connections are opened for the streams of other connectors."""

    connector = TcpClient
    speaks = False
    is_dialled = True

    def make_peer(self, folder: Path) -> Peer:
        return TcpListening(connections="per-stream", connect_timeout="500ms")

    def test_each_stream_has_its_own_connection_and_waits_only_for_that(self, tmp_path: Path) -> None:
        async def scenario(frame: Frame, peer: Peer) -> None:
            assert isinstance(peer, TcpListening)
            one, two = StreamRef("elsewhere", 1), StreamRef("elsewhere", 2)
            for stream in (one, two):
                frame.signals.started(stream)
            for number in range(10):
                frame.give(one, [b"one %d" % number])
                last = frame.give(two, [b"two %d" % number])
                if number == 4:
                    await frame.until(lambda last=last: frame.has_left(last))  # type: ignore[misc]
                    broken = next(line for line in peer.lines if line.received().startswith(b"one"))
                    await broken.break_off()
            await frame.until(lambda: peer.received().count(b"\n") >= 20, "all values")
            for name in (b"one", b"two"):
                lines = [line.received() for line in peer.lines if line.received().startswith(name)]
                came = b"".join(lines).splitlines()
                assert list(dict.fromkeys(came)) == [b"%s %d" % (name, number) for number in range(10)]
                assert len(lines) == (2 if name == b"one" else 1)

        self.run(tmp_path, scenario)


class TestWsServer(ConnectorConformance):
    connector = WsServer

    def make_peer(self, folder: Path) -> Peer:
        return WsConnecting()


class TestWsClient(Reconnecting):
    connector = WsClient
    lines_max = 1
    is_dialled = True

    def make_peer(self, folder: Path) -> Peer:
        return WsListening()


class TestWsClientPerStream(ConnectorConformance):
    connector = WsClient
    speaks = False
    is_dialled = True

    def make_peer(self, folder: Path) -> Peer:
        return WsListening(connections="per-stream", connect_timeout="500ms")
