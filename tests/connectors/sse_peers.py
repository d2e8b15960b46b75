"""A real server of event streams: it keeps all its events, and sends those after `Last-Event-ID`."""

import asyncio
import multiprocessing
from contextlib import suppress
from typing import Any, Self

from tests.support.ports import free_port
from tests.support.waiting import SECONDS_MAX

_FORK = multiprocessing.get_context("fork")
_PAUSE_SECONDS = 0.002
"""Between two events of a process."""


class SseServing:
    def __init__(self, port: int = 0, *, replays: bool = True) -> None:
        self.port = port
        self.events: list[bytes] = []
        """As they are sent: `data` of events with the ids 0, 1, …"""
        self.asked: list[str | None] = []
        """The `Last-Event-ID` of each request."""
        self.status = b"200 OK"
        self.head = b"Content-Type: text/event-stream\r\n"
        self._replays = replays
        self._server: asyncio.Server | None = None
        self._clients: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._news = asyncio.Condition()
        self.sent = 0
        """How many events a client's connection has accepted."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/events"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is None:
            return
        self._server.close()
        self.cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()
        self._server = None

    def cut(self) -> None:
        """All connections, at once."""
        for task in self._tasks:
            task.cancel()

    async def add(self, *events: bytes) -> None:
        """Each as it is on the wire, without its id; returns at once."""
        async with self._news:
            self.events += events
            self._news.notify_all()

    async def taken(self) -> None:
        """Returns when a client's connection has accepted all events."""
        async with self._news:
            await self._news.wait_for(lambda: self.sent >= len(self.events))

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._serve(reader, writer)
        except (asyncio.CancelledError, ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._tasks.discard(task)
            with suppress(ConnectionError):
                writer.transport.abort()
                await writer.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        lines = dict(line.lower().split(": ", 1) for line in head.splitlines()[1:] if line)
        last = lines.get("last-event-id")
        self.asked.append(last)
        writer.write(b"HTTP/1.1 " + self.status + b"\r\n" + self.head + b"\r\n")
        if not self.status.startswith(b"200"):
            await writer.drain()
            return
        known = last is not None and last.isdigit()
        at = (int(last or 0) + 1 if known else 0) if self._replays else len(self.events)
        while True:
            async with self._news:
                self.sent = at
                self._news.notify_all()
                while at >= len(self.events):
                    await self._news.wait()
            some = self.events[at : at + 100]
            writer.write(b"".join(b"id: %d\n%s\n\n" % (at + place, event) for place, event in enumerate(some)))
            at += len(some)
            await writer.drain()


class SseProcess:
    """The same server in a process of its own, which sends `event 0`, `event 1`, … It can be killed."""

    def __init__(self) -> None:
        self._port = free_port()
        self._count = _FORK.Value("q", 0)
        self._start()

    @property
    def url(self) -> str:
        return SseServing(self._port).url

    @property
    def count(self) -> int:
        """How many events there are."""
        return int(self._count.value)

    def kill(self) -> None:
        """And start it again, with all events that there were."""
        self._end()
        self._start()

    def _start(self) -> None:
        self._process = _FORK.Process(target=_serve, args=(self._port, self._count), daemon=True)
        self._process.start()

    def _end(self) -> None:
        self._process.kill()
        self._process.join(SECONDS_MAX)
        self._process.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()


def _serve(port: int, count: Any) -> None:
    asyncio.run(_serve_on(port, count))


async def _serve_on(port: int, count: Any) -> None:
    server = SseServing(port)
    await server.add(*(b"data: event %d" % number for number in range(count.value)))
    await server.start()
    while True:
        count.value += 1  # before any client has it
        await server.add(b"data: event %d" % (count.value - 1))
        await asyncio.sleep(_PAUSE_SECONDS)
