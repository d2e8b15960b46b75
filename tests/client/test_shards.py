"""Connections from one shard process to another."""

import asyncio

import pytest

from penstock.client.shards import HttpShardWire
from penstock.coordinator.shards import ShardAddress
from penstock.core.errors import Unavailable
from penstock.protocol.api.codec import Done, Empty
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
