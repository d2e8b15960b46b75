"""A TCP proxy that cuts each connection after a random number of bytes in one of its directions."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

BYTES_MAX = 3_000
"""Of a connection to which nothing happens before: a handshake and some epochs of a test."""


class CuttingProxy:
    def __init__(self, host: str, port: int, seed: int) -> None:
        self.cuts = 0
        self.is_cutting = True
        self.port = 0
        self._target = (host, port)
        self._random = random.Random(seed)
        self._tasks: set[asyncio.Task[None]] = set()

    def welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(*self._target)
        limits = [self._random.randrange(BYTES_MAX), self._random.randrange(BYTES_MAX // 3)]
        ways = [(reader, back), (there, writer)]
        with suppress(OSError):
            await asyncio.wait(
                [asyncio.create_task(self._pass(*way, limit)) for way, limit in zip(ways, limits, strict=True)],
                return_when=asyncio.FIRST_COMPLETED,
            )
        writer.transport.abort()
        back.transport.abort()

    async def _pass(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, limit: int) -> None:
        passed = 0
        with suppress(OSError):
            while data := await source.read(65536):
                passed += len(data)
                if self.is_cutting and passed > limit:
                    target.write(data[: len(data) - (passed - limit)])
                    self.cuts += 1
                    await asyncio.sleep(0.005)  # what was passed on may arrive, or not
                    return
                target.write(data)
                await target.drain()

    async def close(self) -> None:
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def cutting_proxy(host: str, port: int, seed: int) -> AsyncIterator[CuttingProxy]:
    proxy = CuttingProxy(host, port, seed)
    server = await asyncio.start_server(proxy.welcome, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        await proxy.close()
