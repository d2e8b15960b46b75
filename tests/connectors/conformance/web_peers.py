"""Real peers of webhooks, event streams and mail."""

import asyncio
import base64
import time
from collections.abc import Mapping
from typing import Any

import httpx
from httpx_sse import aconnect_sse

from penstock.connectors.webhook.signatures import Signature, sign, verify
from penstock.testing.frame import Frame
from penstock.testing.peer import Line, Peer
from tests.connectors.conformance.http_peers import HttpClients, HttpLine, HttpServing
from tests.connectors.mail_server import MailServer
from tests.connectors.sse_peers import SseServing
from tests.support.ports import free_port

_SIGNATURE = {"style": "standard", "secrets": [base64.b64encode(b"between you and me").decode()]}


class SigningLine(HttpLine):
    def headers(self, data: bytes) -> Mapping[str, str]:
        self._number = getattr(self, "_number", 0) + 1
        return sign(Signature.model_validate(_SIGNATURE), f"{id(self)}-{self._number}", data, time.time())


class WebhookSenders(HttpClients):
    line_type = SigningLine

    def __init__(self) -> None:
        super().__init__("durable")

    def config(self) -> Mapping[str, Any]:
        return {"port": 0, "admission": "50ms", "signature": _SIGNATURE}


class WebhookReceiving(HttpServing):
    """Keeps what is signed."""

    def config(self) -> Mapping[str, Any]:
        return {**super().config(), "signature": _SIGNATURE}

    def check(self, headers: Mapping[str, str], body: bytes) -> None:
        verify(Signature.model_validate(_SIGNATURE), headers, body, time.time())


class SseLine:
    """Each line of text is an event."""

    def __init__(self, server: SseServing) -> None:
        self._server = server
        self._rest = b""

    async def send(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        await self._server.add(*[b"data: " + line for line in lines])
        await self._server.taken()

    async def end(self) -> None: ...

    async def break_off(self) -> None:
        self._server.cut()

    def received(self) -> bytes:
        return b""

    def stop_reading(self) -> None: ...

    def continue_reading(self) -> None: ...


class SseServers(Peer):
    def __init__(self) -> None:
        self._server = SseServing()

    def config(self) -> Mapping[str, Any]:
        return {"url": self._server.url, "ids": "number"}

    async def start(self) -> None:
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop()

    async def line(self, frame: Frame) -> Line:
        await frame.connected()
        return SseLine(self._server)


class SseClients(Peer):
    """A client that comes as soon as it can, and asks for everything that is retained."""

    def __init__(self) -> None:
        self._port = free_port()
        self._got = bytearray()
        self._task: asyncio.Task[None] | None = None

    def config(self) -> Mapping[str, Any]:
        return {"port": self._port}

    async def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        last = "none"
        while True:
            try:
                async with (
                    httpx.AsyncClient(timeout=None) as client,
                    aconnect_sse(
                        client, "GET", f"http://127.0.0.1:{self._port}/events", headers={"Last-Event-ID": last}
                    ) as source,
                ):
                    async for event in source.aiter_sse():
                        self._got += event.data.encode()
                        last = event.id or last
            except httpx.HTTPError:
                await asyncio.sleep(0.01)

    def received(self) -> bytes:
        return bytes(self._got)


class Mailbox(Peer):
    """Keeps what it receives, each message once by its id."""

    def __init__(self) -> None:
        self._port = free_port()
        self._server: MailServer | None = None
        self._before: list[Any] = []

    def config(self) -> Mapping[str, Any]:
        sender = {"sender": "a@example.org", "to": ["b@example.org"]}
        return {"host": "127.0.0.1", "port": self._port, "encryption": "off", "subject": "x", "timeout": "5s", **sender}

    async def start(self) -> None:
        self._server = MailServer(port=self._port)
        await asyncio.to_thread(self._server.__enter__)

    async def stop(self) -> None:
        if self._server is not None:
            await asyncio.to_thread(self._server.__exit__)
            self._before += self._server.messages
            self._server = None

    def received(self) -> bytes:
        messages = [*self._before, *([] if self._server is None else self._server.messages)]
        by_id = {message["Message-ID"]: message.get_content() for message in messages}
        return "".join(by_id.values()).encode()
