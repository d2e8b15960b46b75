"""Real peers over TCP: one that connects to us, one that we connect to."""

import asyncio
import socket
import struct
from collections.abc import Mapping
from ssl import SSLContext
from typing import Any, Generic, TypeVar

from penstock.testing.frame import Frame
from penstock.testing.peer import Line, Peer
from tests.support.waiting import SECONDS_MAX


class TcpLine:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._got = bytearray()
        self._reads = asyncio.Event()
        self._reads.set()
        self._task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        try:
            while True:
                await self._reads.wait()
                data = await self._reader.read(1 << 16)
                if not data:
                    self._writer.close()
                    return
                self._got += data
        except ConnectionError:
            return

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def end(self) -> None:
        self._writer.close()
        await self._let_go()

    async def break_off(self) -> None:
        if not self.is_gone:
            sock = self._writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()
        await self._let_go()

    async def _let_go(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await asyncio.sleep(0.01)

    def received(self) -> bytes:
        return bytes(self._got)

    def stop_reading(self) -> None:
        self._reads.clear()

    def continue_reading(self) -> None:
        self._reads.set()

    @property
    def is_gone(self) -> bool:
        return self._writer.transport.is_closing()


L = TypeVar("L", bound=Line)


class Lines(Peer, Generic[L]):
    """A peer with any number of connections."""

    lines: list[L]

    async def break_off(self) -> None:
        for line in self.lines:
            await line.break_off()

    def received(self) -> bytes:
        return b"".join(line.received() for line in self.lines)


async def address_of(frame: Frame) -> str:
    """Where the connector listens."""
    await frame.until(lambda: getattr(frame.connector, "addresses", None), "an address")
    found: str = frame.connector.addresses[0]  # type: ignore[attr-defined]
    return found


class TcpConnecting(Lines[TcpLine]):
    def __init__(self, ssl: SSLContext | None = None, **options: Any) -> None:
        self.lines = []
        self._ssl = ssl
        self._options = options

    def config(self) -> Mapping[str, Any]:
        return {"port": 0, "slow_after": "200ms", **self._options}

    async def line(self, frame: Frame) -> Line:
        host, _, port = (await address_of(frame)).rpartition(":")
        self.lines.append(TcpLine(*await asyncio.open_connection(host, int(port), ssl=self._ssl)))
        return self.lines[-1]

    async def stop(self) -> None:
        await self.break_off()


class TcpListening(Lines[TcpLine]):
    def __init__(self, **options: Any) -> None:
        self.options = options
        self.lines = []
        self._new: asyncio.Queue[TcpLine] = asyncio.Queue()
        self._server: asyncio.Server | None = None
        self._port = 0

    def config(self) -> Mapping[str, Any]:
        return {"port": self._port, **self.options}

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.lines.append(TcpLine(reader, writer))
        self._new.put_nowait(self.lines[-1])

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            await self.break_off()

    async def line(self, frame: Frame) -> Line:
        while True:
            line = await asyncio.wait_for(self._new.get(), SECONDS_MAX)
            if not line.is_gone:
                return line
