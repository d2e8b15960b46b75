"""Requests of one shard process to another: they reach whoever serves the shard now."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from penstock.client.shards import HttpShardWire
from penstock.coordinator.shards import ShardAddress
from penstock.core.errors import PenstockError, Unavailable
from penstock.protocol.api.codec import Done, Empty, encode
from penstock.protocol.api.shards import UnsubscribeFrom
from tests.support.waiting import eventually

REPLY = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


class OneProcess:
    """A directory of one shard, and the process that serves it."""

    shard, secret = 0, "secret"

    def __init__(self) -> None:
        self.open: list[asyncio.StreamWriter] = []

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open.append(writer)
        while head := await reader.readuntil(b"\r\n\r\n"):
            await reader.readexactly(int(head.lower().partition(b"content-length:")[2].split()[0]))
            writer.write(REPLY)

    async def find(self, _: int) -> ShardAddress | None:
        return ShardAddress(f"127.0.0.1:{self.port}", "")

    def end(self) -> None:
        self._server.close()
        for one in self.open:
            one.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_connections_to_a_process_that_is_gone_are_closed() -> None:
    process = OneProcess()
    await process.start()
    wire = HttpShardWire(process)  # type: ignore[arg-type]
    await asyncio.gather(*(wire.ask(1, "/shard/x", Empty(), Done) for _ in range(3)))
    assert sum(map(len, wire._idle.values())) == len(process.open) == 3
    process.end()
    await eventually(lambda: all(one.is_closing() for one in process.open))
    with pytest.raises(Unavailable):
        await wire.ask(1, "/shard/x", Empty(), Done)
    assert wire._idle == {}
    await wire.close()


REQUEST = UnsubscribeFrom(home=1, term=1, number=1, source="s")


class Directory:
    shard, secret, http = 1, "secret", ""

    async def shard_of(self, source: str) -> int:
        raise AssertionError(source)

    async def partitions(self, source: str) -> list[int]:
        raise AssertionError(source)

    async def find(self, shard: int) -> ShardAddress | None:
        return ShardAddress(self.http, "") if shard == 3 else None


@asynccontextmanager
async def answering(status: str, body: bytes) -> AsyncIterator[str]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = f"{status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode() + body)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize("status", ["HTTP/1.1 404 Not Found", "nonsense"])
async def test_a_shard_that_has_moved_is_found_again_if_something_else_listens_at_its_address(status: str) -> None:
    directory = Directory()
    wire = HttpShardWire(directory)
    async with answering(status, b"?") as other, answering("HTTP/1.1 200 OK", encode(Done())) as owner:
        directory.http = other
        with pytest.raises(PenstockError):
            await wire.ask(3, "/shard/unsubscribe", REQUEST, Done)
        directory.http = owner
        assert await wire.ask(3, "/shard/unsubscribe", REQUEST, Done) == Done()
    await wire.close()
