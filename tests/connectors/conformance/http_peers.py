"""Real peers over HTTP: clients of a server, and a server for a client."""

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any

import httpx

from penstock.testing.frame import NAME, Frame
from penstock.testing.peer import Line, Peer
from tests.connectors.http_serving import Asked, Says, Server, serving


class HttpLine:
    """A connection: one request after the other. A request that is answered 503 is repeated, as clients do. If it
    `completes`, it also acts as the pipelines: without them no request is answered.
    """

    def __init__(self, frame: Frame, completes: bool) -> None:
        self._frame = frame
        self._completes = completes
        limits = httpx.Limits(max_connections=1)
        self._client = httpx.AsyncClient(limits=limits, timeout=60)
        self._waiting: asyncio.Queue[bytes] = asyncio.Queue(maxsize=1)
        self._got = bytearray()
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            data = await self._waiting.get()
            status = 503
            while status == 503:
                status = await self._ask(data)

    async def _ask(self, data: bytes) -> int:
        address = self._frame.connector.addresses[0]  # type: ignore[attr-defined]
        headers = dict(self.headers(data))
        asked = asyncio.create_task(self._client.post(f"http://{address}/", content=data, headers=headers))
        try:
            while not asked.done():
                if self._completes:
                    complete(self._frame)
                await asyncio.wait([asked], timeout=0.005)
        finally:
            asked.cancel()
            with contextlib.suppress(asyncio.CancelledError, httpx.HTTPError):
                await asked
        response = asked.result()
        if response.status_code == 200:
            self._got += response.content
        return response.status_code

    def headers(self, data: bytes) -> Mapping[str, str]:
        """Of a request."""
        return {}

    async def send(self, data: bytes) -> None:
        await self._waiting.put(data)

    async def end(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._client.aclose()

    async def break_off(self) -> None:
        await self.end()

    def received(self) -> bytes:
        return bytes(self._got)

    def stop_reading(self) -> None: ...

    def continue_reading(self) -> None: ...


def complete(frame: Frame) -> None:
    """Every pipeline has completed what is stored."""
    ends = {f"connector/{NAME}/{route}": 0 for route in range(2)}
    ends = {name: int(frame.store.length(name)) for name in ends if frame.store.exists(name)}
    frame.sources.completion(NAME).advance(ends)


class HttpClients(Peer):
    line_type = HttpLine

    def __init__(self, answer: str) -> None:
        self._answer = answer
        self.lines: list[HttpLine] = []

    def config(self) -> Mapping[str, Any]:
        return {"port": 0, "admission": "50ms", "answer": self._answer}

    async def line(self, frame: Frame) -> Line:
        await frame.connected()
        self.lines.append(self.line_type(frame, completes=self._answer == "epoch" and frame.setup.ack == "checkpoint"))
        return self.lines[-1]

    async def stop(self) -> None:
        for line in self.lines:
            await line.end()

    def received(self) -> bytes:
        return b"".join(line.received() for line in self.lines)


class HttpServing(Peer):
    """Keeps what it receives, each request once by its Idempotency-Key."""

    def __init__(self) -> None:
        self._port = 0
        self._taken: dict[str, bytes] = {}
        self._stack = contextlib.ExitStack()

    def config(self) -> Mapping[str, Any]:
        return {"url": f"http://127.0.0.1:{self._port}/take", "timeout": "1s"}

    async def start(self) -> None:
        server: Server = self._stack.enter_context(serving(self._port))
        self._port = server.port
        server.answer = self._take

    def _take(self, asked: Asked) -> Says:
        self.check(asked.headers, asked.body)
        self._taken.setdefault(asked.headers["idempotency-key"], asked.body)
        return Says(200, {}, b"")

    def check(self, headers: Mapping[str, str], body: bytes) -> None:
        """Raises if a request is not as it should be."""

    async def stop(self) -> None:
        await asyncio.to_thread(self._stack.close)

    def received(self) -> bytes:
        return b"".join([*self._taken.values()])
