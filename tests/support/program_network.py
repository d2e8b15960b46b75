"""The network between programs and workers: every connection passes through it, and it can be cut."""

import asyncio
import re
import threading
from collections.abc import Coroutine, Iterable
from contextlib import suppress
from typing import Any

from tests.support.waiting import SECONDS_MAX

HERE = "127.0.0.2"
"""Where programs find what is at 127.0.0.1, at the same port. As long as that, so an address in a frame can be replaced
without decoding it.
"""

_ADDRESS = re.compile(rb"127\.0\.0\.1:(\d{4,5})")
_CHUNK = 65536


class ProgramNetwork:
    """An address that a worker sends to a program (MIGRATE, RESTART) is one of this network, too."""

    def __init__(self) -> None:
        self.resets = 0
        """Connections that ended with a cut."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._servers: dict[int, asyncio.Server] = {}
        self._cut: dict[int, asyncio.Event] = {}
        self._links: set[_Link] = set()

    def address(self, port: int) -> str:
        self._do(self._listen(port))
        return f"{HERE}:{port}"

    @property
    def ports(self) -> list[int]:
        return sorted(self._servers)

    def cut(self, ports: Iterable[int]) -> None:
        """Nothing that is sent to these ports arrives from now on, and no reply either."""
        self._do(self._cut_off([*ports]))

    def reconnect(self, *, resets: bool) -> None:
        """What was sent arrives now; or it is lost, and the connections end. What has been received by one side and was
        not answered yet is known to this side alone.
        """
        self._do(self._join(resets))

    def _do(self, what: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(what, self._loop).result(SECONDS_MAX)

    async def _cut_off(self, ports: list[int]) -> None:
        for port in ports:
            self._cut.setdefault(port, asyncio.Event())

    async def _join(self, resets: bool) -> None:
        cut, self._cut = self._cut, {}
        for link in [*self._links] if resets else ():
            if link.port in cut:
                self.resets += 1
                link.abort()
        for is_back in cut.values():
            is_back.set()

    async def _listen(self, port: int) -> None:
        if port not in self._servers:
            self._servers[port] = await asyncio.start_server(lambda *ends: self._serve(port, *ends), HERE, port)

    async def _serve(self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = _Link(port, writer)
        self._links.add(link)
        with suppress(OSError, asyncio.CancelledError):
            await self._until_connected(link)
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
            link.writers.append(far_writer)
            ways = self._pass(link, reader, far_writer), self._pass(link, far_reader, writer, is_reply=True)
            await asyncio.gather(*ways)
        self._links.discard(link)
        link.abort()

    async def _pass(
        self, link: "_Link", reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_reply: bool = False
    ) -> None:
        """Raises ConnectionAbortedError at the end, which ends the other direction as well."""
        while data := await reader.read(_CHUNK):
            await self._until_connected(link)
            writer.write(await self._replaced(data) if is_reply else data)
            await writer.drain()
        raise ConnectionAbortedError

    async def _replaced(self, data: bytes) -> bytes:
        for port in {int(found) for found in _ADDRESS.findall(data)}:
            try:
                await self._listen(port)
            except OSError:  # somebody else's network has it
                return data
        return _ADDRESS.sub(HERE.encode() + rb":\1", data)

    async def _until_connected(self, link: "_Link") -> None:
        if (is_back := self._cut.get(link.port)) is not None:
            await is_back.wait()
        if link.is_aborted:
            raise ConnectionAbortedError

    async def _close(self) -> None:
        await self._join(resets=True)
        for server in self._servers.values():
            server.close()
        for link in [*self._links]:
            link.abort()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def __enter__(self) -> "ProgramNetwork":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._do(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class _Link:
    """A connection of a program."""

    def __init__(self, port: int, writer: asyncio.StreamWriter) -> None:
        self.port = port
        self.writers = [writer]
        self.is_aborted = False

    def abort(self) -> None:
        self.is_aborted = True
        for writer in self.writers:
            writer.transport.abort()
