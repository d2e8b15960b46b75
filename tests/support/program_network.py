"""The network between programs and workers: every connection passes through it, and it can be cut."""

import asyncio
import threading
from collections import Counter
from collections.abc import Coroutine, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

from penstock.core.address import Address
from penstock.protocol.connector import Decoder, Hello, Migrate, Restart, Use, encode
from penstock.protocol.connector.codec import HEADER, decode
from tests.support.waiting import SECONDS_MAX

HERE = "127.0.0.2"
"""Where programs find what is at 127.0.0.1, at the same port."""

_THERE = "127.0.0.1"
_CHUNK = 65536
_ACCEPT_TURNS = 4
"""Turns of the event loop until a connection that was just accepted is a link. A task that is cancelled before its
first turn leaves its socket open."""


class ProgramNetwork:
    """An address that a worker sends to a program (MIGRATE, RESTART) is one of this network, too."""

    def __init__(self) -> None:
        self.resets = 0
        """Connections that ended with a cut."""
        self.cuts: Counter[str] = Counter()
        """How often a connection was cut, by the name in its HELLO: a source's, or that of a sink's pipeline."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._servers: dict[int, asyncio.Server] = {}
        self._cut: dict[int, asyncio.Event] = {}
        self._links: set[_Link] = set()
        self._listening = asyncio.Lock()

    def address(self, port: int) -> str:
        self._do(self._listen(port))
        return f"{HERE}:{port}"

    @property
    def ports(self) -> list[int]:
        return sorted(self._servers)

    @property
    def connected(self) -> set[str]:
        """The names in the HELLOs of the connections that there are."""
        return {one.instance for one in [*self._links] if one.instance}

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
        for link in [one for one in self._links if one.port in cut]:
            if link.instance:
                self.cuts[link.instance] += 1
            if resets:
                self.resets += 1
                link.abort()
        for is_back in cut.values():
            is_back.set()

    async def _listen(self, port: int) -> None:
        async with self._listening:
            if port not in self._servers:
                self._servers[port] = await asyncio.start_server(lambda *ends: self._serve(port, *ends), HERE, port)

    async def _serve(self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = _Link(port, writer)
        self._links.add(link)
        with suppress(OSError, asyncio.CancelledError):
            hello = await link.read_hello(reader)
            await self._until_connected(link)
            far_reader, far_writer = await asyncio.open_connection(_THERE, port)
            link.writers.append(far_writer)
            far_writer.write(hello)
            await asyncio.gather(self._pass(link, reader, far_writer), self._reply(link, far_reader, writer))
        self._links.discard(link)
        link.abort()

    async def _pass(self, link: "_Link", reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Raises ConnectionAbortedError at the end, which ends the other direction as well."""
        while data := await reader.read(_CHUNK):
            await self._until_connected(link)
            writer.write(data)
            await writer.drain()
        raise ConnectionAbortedError

    async def _reply(self, link: "_Link", reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """The same frame by frame: those with an address are replaced."""
        frames = _Frames()
        while data := await reader.read(_CHUNK):
            await self._until_connected(link)
            for frame in frames.feed(data):
                writer.write(await self._replaced(frame))
            await writer.drain()
        raise ConnectionAbortedError

    async def _replaced(self, frame: bytes) -> bytes:
        _, tag = HEADER.unpack_from(frame)
        if tag not in (Migrate.tag, Restart.tag):
            return frame
        match decode(tag, frame[HEADER.size :]):
            case Migrate() as found if found.host == _THERE and await self._is_here(found.port):
                return encode(replace(found, host=HERE))
            case Restart() as found if found.address:
                address = Address.parse(found.address)
                if address.host == _THERE and await self._is_here(address.port):
                    return encode(replace(found, address=f"{HERE}:{address.port}"))
        return frame

    async def _is_here(self, port: int) -> bool:
        try:
            await self._listen(port)
        except OSError:  # somebody else's network has it
            return False
        return True

    async def _until_connected(self, link: "_Link") -> None:
        if (is_back := self._cut.get(link.port)) is not None:
            await is_back.wait()
        if link.is_aborted:
            raise ConnectionAbortedError

    async def _close(self) -> None:
        await self._join(resets=True)
        for server in self._servers.values():
            server.close()
        for _ in range(_ACCEPT_TURNS):
            await asyncio.sleep(0)
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
        self.instance = ""
        """As its HELLO says; empty until that has arrived."""
        self.writers = [writer]
        self.is_aborted = False

    async def read_hello(self, reader: asyncio.StreamReader) -> bytes:
        """Returns all that was read for it."""
        decoder, read = Decoder(Use.SOURCE), b""
        while not self.instance:
            if not (data := await reader.read(_CHUNK)):
                raise ConnectionAbortedError
            read += data
            for frame in decoder.feed(data):
                assert isinstance(frame, Hello), frame
                self.instance = frame.instance
                break
        return read

    def abort(self) -> None:
        self.is_aborted = True
        for writer in self.writers:
            writer.transport.abort()


class _Frames:
    """Whole frames out of pieces of any size."""

    def __init__(self) -> None:
        self._data = b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        self._data += data
        while len(self._data) >= HEADER.size:
            size, _ = HEADER.unpack_from(self._data)
            end = HEADER.size - 1 + size
            if len(self._data) < end:
                return
            frame, self._data = self._data[:end], self._data[end:]
            yield frame
