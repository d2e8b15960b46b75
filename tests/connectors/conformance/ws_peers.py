"""Real peers over WebSocket: one that connects to us, one that we connect to."""

import asyncio
from collections.abc import Mapping
from typing import Any

from websockets.asyncio.client import connect
from websockets.asyncio.connection import Connection
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from penstock.testing.frame import Frame
from penstock.testing.peer import Line
from tests.connectors.conformance.tcp_peers import Lines, address_of
from tests.support.waiting import SECONDS_MAX

_LIMITS: dict[str, Any] = {"max_size": None, "max_queue": 2, "ping_interval": None, "compression": None}


class WsLine:
    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._got = bytearray()
        self._reads = asyncio.Event()
        self._reads.set()
        self._task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        try:
            while True:
                await self._reads.wait()
                self._got += await self.connection.recv(decode=False)
        except ConnectionClosed:
            return

    async def send(self, data: bytes) -> None:
        try:
            await self.connection.send(data)
        except ConnectionClosed as error:
            raise ConnectionResetError from error

    async def end(self) -> None:
        await self.connection.close()
        await self._let_go()

    async def break_off(self) -> None:
        self.connection.transport.abort()
        await self._let_go()

    async def _let_go(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def received(self) -> bytes:
        return bytes(self._got)

    def stop_reading(self) -> None:
        self._reads.clear()

    def continue_reading(self) -> None:
        self._reads.set()


class WsConnecting(Lines[WsLine]):
    def __init__(self) -> None:
        self.lines = []

    def config(self) -> Mapping[str, Any]:
        return {"port": 0, "slow_after": "200ms"}

    async def line(self, frame: Frame) -> Line:
        self.lines.append(WsLine(await connect(f"ws://{await address_of(frame)}/", **_LIMITS)))
        return self.lines[-1]

    async def stop(self) -> None:
        await self.break_off()


class WsListening(Lines[WsLine]):
    def __init__(self, **options: Any) -> None:
        self.options = options
        self.lines = []
        self._new: asyncio.Queue[WsLine] = asyncio.Queue()
        self._server: Server | None = None
        self._port = 0

    def config(self) -> Mapping[str, Any]:
        return {"url": f"ws://127.0.0.1:{self._port}/", **self.options}

    async def start(self) -> None:
        self._server = await serve(self._accept, "127.0.0.1", self._port, **_LIMITS)
        self._port = next(iter(self._server.sockets)).getsockname()[1]

    async def _accept(self, connection: ServerConnection) -> None:
        line = WsLine(connection)
        self.lines.append(line)
        self._new.put_nowait(line)
        await connection.wait_closed()

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close(close_connections=False)
            await self.break_off()
            await self._server.wait_closed()

    async def line(self, frame: Frame) -> Line:
        while True:
            line = await asyncio.wait_for(self._new.get(), SECONDS_MAX)
            if line.connection.close_code is None:
                return line
