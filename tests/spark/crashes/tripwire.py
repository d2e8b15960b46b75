"""A proxy in front of the worker's HTTP port: it stops a request, or its answer, so that a part can be killed there."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from tests.support.threaded_proxy import ThreadedProxy


class Wire(NamedTuple):
    """Where to trip: at a call (the last part of its path) of a pipeline, or at the answer to it."""

    pipeline: str
    call: str
    answered: bool
    tells: bytes = b""
    """What the request (or the answer) must contain."""
    passes: bool = False
    """It is passed on all the same, and then somebody is killed."""


class Tripwire(ThreadedProxy):
    """`arm` it with a wire: the next message that matches is never forwarded, and `pulled` is called."""

    def __init__(self, port_of_worker: Callable[[], int]) -> None:
        self._port_of_worker = port_of_worker
        self._wire: Wire | None = None
        self._pulled: Callable[[], None] = lambda: None
        self.start()

    def arm(self, wire: Wire, pulled: Callable[[], None]) -> None:
        self._pulled = pulled
        self._wire = wire

    def disarm(self) -> None:
        self._wire = None

    async def relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(OSError, asyncio.IncompleteReadError):
                await self._requests(reader, writer)
        finally:
            await _close(writer)

    async def _requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        theirs, ours = await asyncio.open_connection("127.0.0.1", self._port_of_worker())
        try:
            while True:
                request = await _message(reader)
                path = request.split(b" ", 2)[1].decode()
                if self._trips(path, request, answered=False) is not None:
                    self._pulled()
                    return
                ours.write(request)
                answer = await _message(theirs)
                wire = self._trips(path, answer, answered=True)
                if wire is None or wire.passes:
                    writer.write(answer)
                    await writer.drain()
                if wire is not None:
                    self._pulled()
                    return
        finally:
            await _close(ours)

    def _trips(self, path: str, message: bytes, *, answered: bool) -> Wire | None:
        wire = self._wire
        if wire is None or wire.answered is not answered or wire.tells not in message:
            return None
        if path.partition("?")[0] != f"/pipelines/{wire.pipeline}/{wire.call}":
            return None
        self._wire = None
        return wire


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


async def _message(reader: asyncio.StreamReader) -> bytes:
    """One complete HTTP message; both sides send its length."""
    head = await reader.readuntil(b"\r\n\r\n")
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return head + await reader.readexactly(int(line.split(b":")[1]))
    return head
