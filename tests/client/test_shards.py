"""Requests to another shard reach whoever serves it now."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from penstock.client.shards import HttpShardWire
from penstock.coordinator.shards import ShardAddress
from penstock.core.errors import PenstockError
from penstock.protocol.api.codec import Done, encode
from penstock.protocol.api.shards import UnsubscribeFrom

REQUEST = UnsubscribeFrom(home=1, term=1, number=1, source="s")


class Directory:
    shard, secret, http = 1, "secret", ""

    async def shard_of(self, source: str) -> int:
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
