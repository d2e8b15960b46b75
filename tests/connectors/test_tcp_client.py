"""tcp-client: one connection for everything, or one for each stream."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from penstock.connectors.api import Lost, Outgoing, StreamGone, StreamLost, StreamRef
from penstock.connectors.tcp_client import TcpClient, TcpClientOptions
from tests.connectors.recording_host import RecordingHost, running
from tests.support.waiting import eventually


class RealServer:
    """Keeps what it receives, by connection."""

    def __init__(self) -> None:
        self.received: list[bytearray] = []
        self.writers: list[asyncio.StreamWriter] = []
        self.port = 0
        self.server: asyncio.Server | None = None

    async def start(self) -> None:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self.server.sockets[0].getsockname()[1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        kept = bytearray()
        self.received.append(kept)
        self.writers.append(writer)
        try:
            while data := await reader.read(65536):
                kept += data
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def stop(self) -> None:
        assert self.server is not None
        self.server.close()
        for writer in self.writers:
            writer.transport.abort()
        await self.server.wait_closed()
        await eventually(lambda: all(writer.transport.is_closing() for writer in self.writers))
        await asyncio.sleep(0.01)


@pytest.fixture
async def real() -> AsyncIterator[RealServer]:
    made = RealServer()
    await made.start()
    yield made
    await made.stop()


def client(real: RealServer, **options: Any) -> TcpClient:
    return TcpClient(TcpClientOptions.model_validate({"port": real.port, **options}))


def to(stream: StreamRef | None, *values: bytes) -> Outgoing:
    return Outgoing(stream, values, [1] * len(values))


A, B = StreamRef("source", 1), StreamRef("source", 2)


async def test_values_reach_the_server_and_its_bytes_are_events(real: RealServer) -> None:
    tested, host = client(real), RecordingHost()
    async with running(tested, host):
        await tested.deliver(to(A, b"one ", b"two"), host)
        await eventually(lambda: real.received[0] == b"one two")
        real.writers[0].write(b"hello")
        await eventually(lambda: host.streams and host.streams[0].events == [b"hello"])


async def test_a_server_that_disconnects_is_lost_and_nothing_is_sent_without_one(real: RealServer) -> None:
    tested, host = client(real), RecordingHost()
    async with running(tested, host) as run:
        await eventually(lambda: real.writers)
        real.writers[0].close()
        with pytest.raises(Lost, match="closed the connection"):
            await run
        with pytest.raises(Lost, match="no connection"):
            await tested.deliver(to(A, b"x"), host)


async def test_an_unreachable_server_is_lost() -> None:
    with pytest.raises(Lost, match="cannot be reached"):
        await TcpClient(TcpClientOptions(port=1)).run(RecordingHost())


async def test_bytes_from_the_server_are_read_even_without_a_link(real: RealServer) -> None:
    tested, host = client(real), RecordingHost(has_out=False)
    async with running(tested, host):
        await eventually(lambda: real.writers)
        real.writers[0].write(b"x" * (1 << 20))
        await eventually(lambda: host.counts["discarded_bytes"] == 1 << 20)
    assert host.streams == []


async def test_a_server_that_reads_nothing_is_lost() -> None:
    writers: list[asyncio.StreamWriter] = []

    async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        await asyncio.Event().wait()

    server = await asyncio.start_server(deaf, "127.0.0.1", 0, limit=1024)
    port = server.sockets[0].getsockname()[1]
    tested = TcpClient(TcpClientOptions.model_validate({"port": port, "dead_peer_after": "1s"}))
    host = RecordingHost()
    async with running(tested, host):
        with pytest.raises(Lost, match="did not accept data"):
            await tested.deliver(to(A, b"x" * (32 << 20)), host)
    server.close()
    writers[0].transport.abort()


async def test_per_stream_each_stream_is_open_while_its_connection_is(real: RealServer) -> None:
    tested, host = client(real, connections="per-stream"), RecordingHost()
    async with running(tested, host):
        for stream in (A, B):
            await tested.stream_started(stream, host)
            await eventually(partial(host.reported.__contains__, ("opened", stream)))
        await tested.deliver(to(A, b"of a"), host)
        await tested.deliver(to(B, b"of b"), host)
        await eventually(lambda: sorted(map(bytes, real.received)) == [b"of a", b"of b"])
        real.writers[0].close()
        await eventually(lambda: ("closed", A) in host.reported)
        assert ("closed", B) not in host.reported
        await eventually(lambda: host.reported[-1] == ("opened", A))
        await tested.deliver(to(A, b"again"), host)
        await eventually(lambda: real.received[2] == b"again")


async def test_per_stream_a_stream_stays_closed_until_its_server_is_reachable(real: RealServer) -> None:
    tested, host = client(real, connections="per-stream"), RecordingHost()
    await real.stop()
    async with running(tested, host):
        await tested.stream_started(A, host)
        await eventually(lambda: ("closed", A) in host.reported)
        with pytest.raises(StreamLost):
            await tested.deliver(to(A, b"early"), host)
        await real.start()
        await eventually(lambda: host.reported[-1] == ("opened", A))
        await tested.deliver(to(A, b"now"), host)
        await eventually(lambda: real.received[-1] == b"now")


async def test_per_stream_a_connection_ends_with_its_stream_after_its_last_data_is_received(real: RealServer) -> None:
    tested, host = client(real, connections="per-stream"), RecordingHost()
    async with running(tested, host):
        await tested.stream_started(A, host)
        await eventually(lambda: ("opened", A) in host.reported)
        await tested.deliver(to(A, b"all"), host)
        real.writers[0].write(b"last words")
        await tested.stream_closed(A, host)
        await eventually(lambda: host.streams and host.streams[0].is_closed)
        assert host.streams[0].events == [b"last words"]
    assert real.received == [b"all"]
    assert ("closed", A) not in host.reported


async def test_per_stream_values_without_a_stream_have_a_connection_too(real: RealServer) -> None:
    tested, host = client(real, connections="per-stream"), RecordingHost()
    async with running(tested, host):
        await tested.deliver(to(None, b"a window's result"), host)
        await eventually(lambda: real.received and real.received[0] == b"a window's result")


async def test_remaining_values_are_sent_after_a_drain(real: RealServer) -> None:
    tested, host = client(real), RecordingHost()
    async with running(tested, host):
        host.drain()
        await asyncio.sleep(0.01)
        await tested.deliver(to(A, b"the rest"), host)
        await eventually(lambda: real.received[0] == b"the rest")


async def test_per_stream_a_reply_to_a_connection_that_is_gone_is_a_dead_letter(real: RealServer) -> None:
    host = RecordingHost()
    upstream = StreamRef("upstream", 7)
    tested = client(real, connections="per-stream")
    async with running(tested, host):
        await tested.stream_started(upstream, host)
        await eventually(lambda: len(host.streams) == 1)
        said = host.streams[0].ref
        await tested.deliver(Outgoing(said, [b"to you"], [1]), host)
        assert bytes(real.received[0]) == b"to you"
        real.writers[0].transport.abort()
        await eventually(lambda: len(host.streams) == 2)
        with pytest.raises(StreamGone, match="is gone"):
            await tested.deliver(Outgoing(said, [b"to nobody"], [2]), host)


async def test_per_stream_unusable_tls_files_are_reported_and_retried(real: RealServer, tmp_path: Path) -> None:
    host = RecordingHost()
    upstream = StreamRef("upstream", 7)
    tested = client(real, connections="per-stream", tls={"ca": str(tmp_path / "nowhere")})
    async with running(tested, host):
        await tested.stream_started(upstream, host)
        await eventually(lambda: host.reported.count(("closed", upstream)) >= 2)


async def test_a_very_long_timeout_for_a_peer_is_accepted(real: RealServer) -> None:
    host = RecordingHost()
    async with running(client(real, dead_peer_after="30d"), host):
        await eventually(lambda: ("connected", None) in host.reported)


@pytest.mark.parametrize("wrong", [{"port": 0}, {"port": 1, "host": ""}, {"port": True}])
def test_an_invalid_address_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        TcpClientOptions.model_validate(wrong)
