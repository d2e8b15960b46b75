"""Stands between a client and a worker, and cuts connections after so many bytes."""

import asyncio
import random
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress

HELLO_BYTES = 16


class CuttingProxy:
    """Cuts `cuts` connections, each after a random number of bytes in one direction; then it lets everything through.

    Bytes up to the cut are passed on, so half a block arrives, or half an acknowledgement.
    With `after_hello` the worker's Hello is all that it gets to say: requests arrive, their replies are lost.
    """

    def __init__(
        self, target_port: int, *, cuts: int, bytes_max: int = 1, seed: int = 0, after_hello: bool = False
    ) -> None:
        self.cuts_left = cuts
        self.is_cutting = True
        """False: nothing is cut any more, also of the connections that are there."""
        self.port = 0
        self._target_port = target_port
        self._bytes_max = bytes_max
        self._after_hello = after_hello
        self._random = random.Random(seed)
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @asynccontextmanager
    async def run(self) -> AsyncIterator["CuttingProxy"]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)  # the same when it runs again
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await asyncio.sleep(0.01)  # the loop closes the sockets

    def _budgets(self) -> list[int | None]:
        budgets: list[int | None] = [None, None]
        if self.cuts_left and self.is_cutting:
            self.cuts_left -= 1
            if self._after_hello:
                return [None, HELLO_BYTES]
            direction = self._random.randrange(2)
            most = self._bytes_max if direction == 0 else min(self._bytes_max, 2000)  # replies are small
            budgets[direction] = self._random.randrange(most)
        return budgets

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        ends = [writer]
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
            ends.append(far_writer)
            up, down = self._budgets()
            await _first_of(self._pass(reader, far_writer, up), self._pass(far_reader, writer, down))
        finally:
            for end in ends:
                end.transport.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, budget: int | None) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                if budget is not None and self.is_cutting:
                    data, budget = data[:budget], budget - len(data)
                writer.write(data)
                await writer.drain()
                if budget is not None and budget < 0:
                    return


async def _first_of(*ways: Coroutine[None, None, None]) -> None:
    tasks = [asyncio.create_task(way) for way in ways]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
