"""`sse-server`: serves what pipelines emit to browsers, as an event stream (Server-Sent Events)."""

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from http import HTTPStatus as Status
from typing import Annotated, NamedTuple

from pydantic import Field

from penstock.connectors.api import About, Capabilities, Host, Outgoing, ShownBy, StreamGone
from penstock.connectors.http_server.exchange import RefusedRequest, authorize, route
from penstock.connectors.http_server.listener import HttpListener, send_answer
from penstock.connectors.http_server.options import ListenerOptions
from penstock.connectors.http_server.protocol import Request
from penstock.connectors.values import Size, SomeSeconds
from penstock.core.types import Guarantee

_CHUNK_BYTES = 64 << 10
"""What is sent to a client at once, unless a single event is larger: it waits for the client after each."""

_KEEP_ALIVE = b":\n\n"
"""A comment: proxies close connections that are silent for long."""


class SseServerOptions(ListenerOptions):
    """A client that sends a GET request receives every value from then on, as the data of an event with an id. A client
    that comes back with the `Last-Event-ID` of the last event that it received, as browsers do on their own, continues
    after it, if that value is still retained, and otherwise with the oldest retained value. `event` in a value's
    metadata is the type of its event.

    Clients never block pipelines: a client that falls behind the retained values is disconnected, and may come back. A
    value that is not UTF-8 is a dead letter.
    """

    path: str = "/events"
    """The path that is served; with `*` at the end, all paths that begin with it. Other paths get 404."""
    origins: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Web pages of other servers that may read the events, such as `https://example.org`. By default a browser lets
    only pages of this server read them."""
    replay_events: Annotated[int, Field(ge=1, le=10_000_000)] = 10_000
    """How many of the latest values are retained in memory, for clients that come back."""
    replay_bytes: Size = 16 << 20
    """How many bytes of values are retained at most. The latest value always is."""
    keep_alive: SomeSeconds = 15.0
    """Send a client a comment when there has been no event for this long."""


class Retained(NamedTuple):
    id: str
    data: bytes
    """As it is sent."""


class Replay:
    """The latest events, numbered from 0 in the order in which they came. Pure."""

    def __init__(self, events_max: int, bytes_max: int) -> None:
        self._events_max = events_max
        self._bytes_max = bytes_max
        self._events: deque[Retained] = deque()
        self._numbers: dict[str, int] = {}
        self._bytes = 0
        self.end = 0
        """The number of the next event."""

    @property
    def start(self) -> int:
        """The number of the oldest event that is retained."""
        return self.end - len(self._events)

    def add(self, event_id: str, data: bytes) -> None:
        """An event that is retained already was delivered again, and is not added."""
        if event_id in self._numbers:
            return
        self._numbers[event_id] = self.end
        self._events.append(Retained(event_id, data))
        self._bytes, self.end = self._bytes + len(data), self.end + 1
        while len(self._events) > self._events_max or (self._bytes > self._bytes_max and len(self._events) > 1):
            oldest = self._events.popleft()
            del self._numbers[oldest.id]
            self._bytes -= len(oldest.data)

    def after(self, last_id: str) -> int:
        """Where a client that has this one continues; "" if it has none."""
        if not last_id:
            return self.end
        found = self._numbers.get(last_id)
        return self.start if found is None else found + 1

    def chunk(self, number: int) -> tuple[bytes, int]:
        """Some events from this one on, and the number of the one after them."""
        parts, size = list[bytes](), 0
        for at in range(number - self.start, len(self._events)):
            data = self._events[at].data
            if parts and size + len(data) > _CHUNK_BYTES:
                break
            parts.append(data)
            size += len(data)
        return b"".join(parts), number + len(parts)


def encoded(event_id: str, value: str, kind: object) -> bytes:
    """An event, as the specification has it: the lines of a value are lines of data."""
    lines = [f"id: {event_id}", *([f"event: {kind}"] if isinstance(kind, str) and kind.isprintable() and kind else [])]
    lines += [f"data: {line}" for line in value.replace("\r\n", "\n").replace("\r", "\n").split("\n")]
    return ("\n".join(lines) + "\n\n").encode()


class _Client:
    """A connection."""

    def __init__(self, server: "SseServer", host: Host) -> None:
        self._server = server
        self._host = host
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._is_gone = False
        self.news = asyncio.Event()

    def begin(self) -> None: ...

    def leave(self) -> None:
        self._is_gone = True
        self.news.set()

    async def end(self) -> None:
        await self._is_idle.wait()

    def takes(self, request: Request) -> bool:  # noqa: ARG002  each has a task of its own
        return False

    async def __call__(self, request: Request) -> None:
        self._is_idle.clear()
        options = self._server.options
        try:
            authorize(request, options.auth)
            route(request, options.path, ("GET",))
            await self._serve(request)
        except RefusedRequest as refused:
            self._host.count(f"answers_{refused.answer.status}")
            await send_answer(refused.answer, request)
        finally:
            self._server.clients.discard(self)
            self._is_idle.set()

    async def _serve(self, request: Request) -> None:
        """Until the client is gone, or too slow."""
        headers = [
            ("content-type", "text/event-stream; charset=utf-8"),
            ("cache-control", "no-store"),
        ]
        origin = request.headers.get("origin", "")
        if origin in self._server.options.origins:
            headers += [("access-control-allow-origin", origin), ("vary", "origin")]
        replay = self._server.replay
        number = replay.after(request.headers.get("last-event-id", ""))
        self._server.clients.add(self)
        request.begin_answer(Status.OK, headers)
        await request.send(_KEEP_ALIVE)
        while not self._is_gone:
            if number < replay.start:
                self._host.count("slow_clients")
                request.end_answer()
                return
            if number < replay.end:
                data, number = replay.chunk(number)
                await request.send(data)
            else:
                await self._wait(request)

    async def _wait(self, request: Request) -> None:
        self.news.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._server.options.keep_alive):
                await self.news.wait()
                return
        await request.send(_KEEP_ALIVE)


class SseServer(HttpListener[SseServerOptions]):
    """At most once: a client gets what comes while it is connected, and what is retained when it comes back. What is
    retained is lost when the worker restarts.
    """

    about = About(
        "sse-server",
        "Serves values to browsers and other clients as an event stream (Server-Sent Events).",
        SseServerOptions,
        Capabilities(sink=Guarantee.AT_MOST_ONCE, on_stream_started="Opens every stream, even without clients."),
        example={"port": 8080, "path": "/events", "origins": ["https://example.org"]},
        shown_by=ShownBy(
            sink="tests/connectors/test_sse.py::test_a_client_that_comes_back_continues_after_its_last_event",
        ),
    )

    def __init__(self, options: SseServerOptions) -> None:
        super().__init__(options)
        self.replay = Replay(options.replay_events, options.replay_bytes)
        self.clients: set[_Client] = set()

    @property
    def reached_at(self) -> str:
        path = self.options.path.removesuffix("*") or "/"
        return f"GET {self.scheme}://{self.addresses[0]}{path}" if self.addresses else ""

    def connection(self, peer: str, host: Host) -> _Client:  # noqa: ARG002  clients are not distinguished
        return _Client(self, host)

    def refuses(self, host: Host) -> bool:  # noqa: ARG002
        """Never: there may be values for it after a drain."""
        return False

    async def serve(self, host: Host) -> None:
        host.connected()
        await asyncio.Event().wait()  # accepted events leave after a drain: until it is cancelled

    async def deliver(self, outgoing: Outgoing, host: Host) -> None:  # noqa: ARG002
        invalid = [place for place, event in enumerate(_events(outgoing)) if not self._add(event)]
        for client in self.clients:
            client.news.set()
        if invalid:
            raise StreamGone("a value is not UTF-8, which server-sent events must be", places=invalid)

    def _add(self, event: Retained | None) -> bool:
        if event is not None:
            self.replay.add(event.id, event.data)
        return event is not None


def _events(outgoing: Outgoing) -> Iterator[Retained | None]:
    """None for a value that is not UTF-8. An id is the same when a value is delivered again."""
    for place, value in enumerate(outgoing.values):
        event_id = f"{outgoing.name}-{len(outgoing.values) - 1 - place}"
        kind = outgoing.metadata[place].get("event") if outgoing.metadata else None
        try:
            yield Retained(event_id, encoded(event_id, value.decode(), kind))
        except UnicodeDecodeError:
            yield None
