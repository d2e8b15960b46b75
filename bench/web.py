"""Connectors of the web for `script/bench connectors`, beside the plain library that does their talking, as its
documentation shows it.

http-server      requests of 100 connections, answered when durable          an echo on uvicorn, without a store
webhook-server   signed requests of 100 connections, verified, answered when durable
                                                                 uvicorn, hmac, a PlainLog with an fsync for each turn
ws-server        messages, one by one                                            websockets, into a PlainLog
ws-client        messages of a server                                            websockets, into a PlainLog
otlp             100 logs in a request, each an event in JSON, of 10 connections, answered when durable
                                                   uvicorn, protobuf, msgspec, a PlainLog with an fsync for each turn
sse-client       events of a server                                              httpx-sse; no store
http-client      stored events, each in a POST                                   httpx
webhook-client   the same, signed                                                httpx, hmac
sse-server       stored events, to a client, with ids                            uvicorn, a streamed response
out ws-server    stored events, to a connection                                  websockets
out ws-client    stored events, to a server                                      websockets
email            stored events, each in a mail                                   aiosmtplib

Peers are other processes, and only the CPU time of this one counts: with a connector that includes the store.
"""

from __future__ import annotations

import asyncio
import hmac
import multiprocessing
import socket
import tempfile
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from email.message import EmailMessage
from functools import cache, partial
from pathlib import Path
from typing import Any, cast

import aiosmtplib
import httpx
import msgspec
import uvicorn
import uvloop
from httpx_sse import aconnect_sse
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve

from bench.formats import Case
from bench.plain_log import PlainLog
from bench.socket_peers import BODY, begin
from bench.stopwatch import STOPWATCH
from penstock.connectors.registry import CONNECTORS
from penstock.connectors.sse_server import SseServer
from penstock.testing.frame import Frame, GivenEpoch, Setup
from tests.connectors.brokers.epochs import epoch
from tests.connectors.http_serving import serving
from tests.connectors.mail_server import MailServer
from tests.connectors.sse_peers import SseServing
from tests.support.ports import free_port

CONNECTIONS = 100
LOGS_PER_REQUEST = 100
EXPORTERS = 10
"""Of logs, each with a connection."""
SECONDS_MAX = 120.0
EPOCH_EVENTS = 40_000
"""An epoch of delivery has blocks of 4 MiB."""
LOOK_SECONDS = 0.05
MESSAGES_PER_EVENT = 10
"""So that a round of WebSocket messages takes a second."""
STORED_AT_ONCE = 1000
"""What a plain client keeps in memory."""
SECRET = "secret"  # noqa: S105  of nothing
PART = 10
"""Requests that wait for their answers one by one are so many times fewer than events of a stream."""

_spawning = multiprocessing.get_context("spawn")

HTTP, WS = "http-server, 100 connections", "ws-server, one by one"


def web_cases(events: int) -> Iterator[Case]:
    """Servers of ours beside bare servers, and clients of ours beside bare clients."""
    requests = max(CONNECTIONS, 2 * events // CONNECTIONS * CONNECTIONS)
    messages = MESSAGES_PER_EVENT * events
    port, size = free_port(), len(BODY)
    yield Case(
        HTTP,
        requests * size,
        lambda: _receive("http-server", {"port": port}, requests, (send_requests, port, requests)),
        lambda: uvloop.run(_bare_http(port, _echo, (send_requests, port, requests))),
        events=requests,
    )
    yield Case(
        WS,
        messages * size,
        lambda: _receive("ws-server", {"port": port}, messages, (send_messages, port, messages)),
        lambda: _keeping(lambda log: _bare_ws(log, port, messages)),
        events=messages,
    )
    otlp = {"port": port, "grpc_port": None, "attributes": "plain"}
    calls = max(EXPORTERS, MESSAGES_PER_EVENT * events // LOGS_PER_REQUEST // EXPORTERS * EXPORTERS)
    yield Case(
        "otlp, logs",
        calls * LOGS_PER_REQUEST * size,
        lambda: _receive("otlp", otlp, calls * LOGS_PER_REQUEST, (send_logs, port, calls)),
        lambda: _keeping(lambda log: _bare_http(port, Logs(log).serve, (send_logs, port, calls))),
        events=calls * LOGS_PER_REQUEST,
    )
    signed = max(CONNECTIONS, events // CONNECTIONS * CONNECTIONS)
    github = {"port": port, "signature": {"style": "github", "secrets": [SECRET]}}
    yield Case(
        "webhook-server, 100 connections",
        signed * size,
        lambda: _receive("webhook-server", github, signed, (send_deliveries, port, signed)),
        lambda: _keeping(lambda log: _bare_http(port, Verified(log).serve, (send_deliveries, port, signed))),
        events=signed,
    )
    few = max(10, events // PART)
    yield from _clients(events, few)
    yield from _to_peers(events)


def _clients(events: int, few: int) -> Iterator[Case]:
    with_url = {"url": f"http://127.0.0.1:{free_port()}/events", "ids": "number"}
    port = int(with_url["url"].rpartition(":")[2].partition("/")[0])
    serving_events = (serve_events, port, events)
    yield Case(
        "sse-client",
        events * len(BODY),
        lambda: _read("sse-client", with_url, events, serving_events),
        lambda: _beside(serving_events, _bare_sse(with_url["url"], events)),
        events=events,
    )
    yield Case(
        "http-client",
        few * len(BODY),
        lambda: _with(_http_peer, lambda port: _send("http-client", {"url": f"http://127.0.0.1:{port}/"}, few)),
        lambda: _with(_http_peer, lambda port: uvloop.run(_bare_posts(port, few))),
        events=few,
    )
    github = {"signature": {"style": "github", "secrets": [SECRET]}}
    yield Case(
        "webhook-client",
        few * len(BODY),
        lambda: _with(
            _http_peer, lambda port: _send("webhook-client", github | {"url": f"http://127.0.0.1:{port}/"}, few)
        ),
        lambda: _with(_http_peer, lambda port: uvloop.run(_bare_posts(port, few, is_signed=True))),
        events=few,
    )
    yield Case(
        "email",
        few * len(BODY),
        lambda: _with(_mail_peer, lambda port: _send("email", _MAIL | {"port": port}, few)),
        lambda: _with(_mail_peer, lambda port: uvloop.run(_bare_mail(port, few))),
        events=few,
    )


def _to_peers(events: int) -> Iterator[Case]:
    """Both directions of connections that stay open."""
    port = free_port()
    url, size = f"ws://127.0.0.1:{port}/", events * len(BODY)
    pouring, taking = (pour_messages, port, events), (take_messages, port, events)
    yield Case(
        "in ws-client",
        size,
        lambda: _read("ws-client", {"url": url}, events, pouring),
        lambda: _keeping_beside(pouring, lambda log: _bare_ws_client(log, url, events)),
        events=events,
    )
    yield Case(
        "out ws-client",
        size,
        lambda: _with_peer(taking, lambda: _send("ws-client", {"url": url, "messages": "binary"}, events)),
        lambda: _with_peer(taking, lambda: uvloop.run(_bare_ws_sender(url, events))),
        events=events,
    )
    yield Case(
        "out ws-server",
        size,
        lambda: _serve("ws-server", {"port": port, "messages": "binary", "broadcast": True}, events, follow_messages),
        lambda: uvloop.run(_bare_ws_serving(port, events)),
        events=events,
    )
    yield Case(
        "sse-server",
        size,
        lambda: _serve(
            "sse-server", {"port": port, "replay_events": 2 * events, "replay_bytes": 1 << 30}, events, follow_events
        ),
        lambda: uvloop.run(_bare_sse_serving(port, events)),
        events=events,
    )


# Ours.


def _serve(name: str, config: dict[str, Any], events: int, follow: Callable[[int, int], None]) -> None:
    """Until the peer has everything."""

    async def run(frame: Frame) -> None:
        port = int(config["port"])
        with process(follow, port, events) as following:
            await frame.until(lambda: _is_followed(frame), "the connection", SECONDS_MAX)
            await send_epochs(frame, events)
            await _sent(following)

    framed(name, config, run)


def _is_followed(frame: Frame) -> bool:
    connector = frame.instance.built.connector
    return bool(connector.clients if isinstance(connector, SseServer) else frame.instance.host.status().streams)


Peer = tuple[Callable[..., None], int, int]
"""What another process does, and its arguments: a port, and how often."""


def _receive(name: str, config: dict[str, Any], events: int, peer: Peer) -> None:
    """Until all events are stored, and the peer has its answers."""

    async def run(frame: Frame) -> None:
        with process(*peer) as sending:
            await _sent(sending)
            await stored(frame, events)

    framed(name, config, run)


def _read(name: str, config: dict[str, Any], events: int, peer: Peer) -> None:
    with process(*peer):
        asyncio.run(listening(peer[1]))
        framed(name, config, lambda frame: stored(frame, events))


async def stored(frame: Frame, events: int) -> None:
    """Looks less often than a test would: that counts as work of ours, also while a peer starts."""
    async with asyncio.timeout(SECONDS_MAX):
        while frame.instance.host.counters.events < events:  # noqa: ASYNC110  nothing says so
            await asyncio.sleep(LOOK_SECONDS)


def framed(
    name: str,
    config: dict[str, Any],
    work: Callable[[Frame], Awaitable[None]],
    setup: Setup = Setup(ack="durable"),  # noqa: B008  frozen
) -> None:
    async def run(folder: Path) -> None:
        async with Frame(folder, CONNECTORS.get(name), config, setup) as frame:
            await frame.until(lambda: frame.instance.host.status().state in ("connected", "ended"), "the connection")
            await work(frame)

    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        uvloop.run(run(Path(folder)))


def _send(name: str, config: dict[str, Any], values: int) -> None:
    framed(name, config, partial(send_epochs, events=values))


async def send_epochs(frame: Frame, events: int) -> None:
    """So many bodies, as delivery passes them to a sink."""
    for one in epochs_of(events):
        last = frame.give_epoch(one)
    await frame.until(lambda: frame.has_left(last), "the last value", SECONDS_MAX)


@cache
def epochs_of(events: int) -> list[GivenEpoch]:
    """Of the size of delivery's blocks. Made once: pipelines make them, elsewhere."""
    sizes = [min(EPOCH_EVENTS, events - start) for start in range(0, events, EPOCH_EVENTS)]
    starts = range(0, events * len(BODY), EPOCH_EVENTS * len(BODY))
    return [epoch(number, [BODY] * size, start=at) for number, (size, at) in enumerate(zip(sizes, starts, strict=True))]


# The plain libraries.


async def _bare_http(port: int, application: Any, peer: Peer) -> None:
    server = uvicorn.Server(
        uvicorn.Config(application, port=port, log_level="warning", access_log=False, lifespan="off", interface="asgi3")
    )
    running = asyncio.create_task(server.serve())
    await listening(port)
    with process(*peer) as sending:
        await _sent(sending)
    server.should_exit = True
    await running


async def _echo(_: Any, receive: Any, send: Any) -> None:
    await _answer(send, await _body(receive))


class Durable:
    """What has arrived in one turn of the event loop is durable together."""

    def __init__(self, log: PlainLog) -> None:
        self.log = log
        self._is_over: asyncio.Event | None = None

    async def wait(self) -> None:
        if self._is_over is None:
            self._is_over = asyncio.Event()
            asyncio.get_running_loop().call_soon(self._sync, self._is_over)
        await self._is_over.wait()

    def _sync(self, is_over: asyncio.Event) -> None:
        self.log.sync()
        self._is_over = None
        is_over.set()


class Logs(Durable):
    """Keeps each log record as JSON, with what it belongs to. A request is answered when they are durable."""

    async def serve(self, _: Any, receive: Any, send: Any) -> None:
        request = ExportLogsServiceRequest.FromString(await _body(receive))
        for resource in request.resource_logs:
            of_resource = _attributes(resource.resource.attributes)
            for scope in resource.scope_logs:
                found = [
                    {
                        "time": one.time_unix_nano,
                        "severity": one.severity_number,
                        "body": _value(one.body),
                        "attributes": _attributes(one.attributes),
                        "resource": of_resource,
                        "scope": scope.scope.name,
                    }
                    for one in scope.log_records
                ]
                times_us = [one.time_unix_nano // 1000 for one in scope.log_records]
                self.log.append([*map(msgspec.json.encode, found)], times_us=times_us)
        await self.wait()
        await _answer(send, ExportLogsServiceResponse().SerializeToString())


def _attributes(given: Any) -> dict[str, Any]:
    return {one.key: _value(one.value) for one in given}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    return getattr(value, kind) if kind else None


def _keeping(work: Callable[[PlainLog], Coroutine[Any, Any, None]]) -> None:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder, PlainLog(Path(folder) / "log") as log:
        uvloop.run(work(log))


async def _body(receive: Any) -> bytes:
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    return body


async def _answer(send: Any, body: bytes) -> None:
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _bare_ws(log: PlainLog, port: int, events: int) -> None:
    """Stores what has arrived when it waits for more: one write for many messages."""
    loop, is_over, received = asyncio.get_running_loop(), asyncio.Event(), list[bytes]()

    def keep() -> None:
        log.append(received)
        received.clear()
        if log.events == events:
            is_over.set()

    async def take(connection: ServerConnection) -> None:
        async for message in connection:
            if not received:
                loop.call_soon(keep)
            received.append(cast("bytes", message))

    async with serve(take, "127.0.0.1", port, compression=None):
        with process(send_messages, port, events):
            await asyncio.wait_for(is_over.wait(), SECONDS_MAX)


async def _bare_sse(url: str, events: int) -> None:
    await listening(int(url.rpartition(":")[2].partition("/")[0]))
    received = 0
    async with httpx.AsyncClient(timeout=SECONDS_MAX) as client, aconnect_sse(client, "GET", url) as source:
        async for event in source.aiter_sse():
            received += len(event.data) > 0
            if received == events:
                break


async def _bare_posts(port: int, values: int, *, is_signed: bool = False) -> None:
    async with httpx.AsyncClient() as client:
        for number in range(values):
            headers = {"X-GitHub-Delivery": str(number), "X-Hub-Signature-256": _signature(BODY)} if is_signed else {}
            (await client.post(f"http://127.0.0.1:{port}/", content=BODY, headers=headers)).raise_for_status()


def _signature(body: bytes) -> str:
    return "sha256=" + hmac.new(SECRET.encode(), body, "sha256").hexdigest()


class Verified(Durable):
    """Keeps signed bodies. A request is answered when it is durable."""

    async def serve(self, scope: Any, receive: Any, send: Any) -> None:
        body, headers = await _body(receive), dict(scope["headers"])
        assert hmac.compare_digest(headers[b"x-hub-signature-256"].decode(), _signature(body))
        self.log.append([body])
        await self.wait()
        await _answer(send, b"")


async def _bare_ws_client(log: PlainLog, url: str, events: int) -> None:
    received: list[bytes] = []
    async with connect(url, compression=None) as connection:
        async for message in connection:
            received.append(cast("bytes", message))
            if len(received) == STORED_AT_ONCE or log.events + len(received) == events:
                log.append(received)
                received.clear()
                if log.events == events:
                    break


async def _bare_ws_sender(url: str, events: int) -> None:
    async with connect(url, compression=None) as connection:
        for _ in range(events):
            await connection.send(BODY)


async def _bare_ws_serving(port: int, events: int) -> None:
    async def send(connection: ServerConnection) -> None:
        for _ in range(events):
            await connection.send(BODY)

    async with serve(send, "127.0.0.1", port, compression=None):
        with process(follow_messages, port, events) as following:
            await _sent(following)


async def _bare_sse_serving(port: int, events: int) -> None:
    async def stream(_: Any, __: Any, send: Any) -> None:
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for number in range(events):
            event = b"id: %d\ndata: %b\n\n" % (number, BODY)
            await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    await _bare_http(port, stream, (follow_events, port, events))


_MAIL = {"host": "127.0.0.1", "encryption": "off", "sender": "a@example.org", "to": ["b@example.org"], "subject": "x"}


async def _bare_mail(port: int, values: int) -> None:
    async with aiosmtplib.SMTP(hostname="127.0.0.1", port=port, start_tls=False) as client:
        for _ in range(values):
            message = EmailMessage()
            message["From"], message["To"], message["Subject"] = "a@example.org", "b@example.org", "x"
            message.set_content(BODY.decode())
            await client.send_message(message)


# Peers, in processes of their own.


@contextmanager
def process(work: Callable[..., None], *given: Any) -> Iterator[Any]:
    """It runs when this is entered."""
    with STOPWATCH.paused():
        started, its_end = _spawning.Pipe(duplex=False)
        process = _spawning.Process(target=begin, args=(its_end, work, *given), daemon=True)
        process.start()
        its_end.close()
        started.poll(SECONDS_MAX)
        started.close()
    try:
        yield process
    finally:
        process.kill()
        process.join()


async def _sent(sending: Any) -> None:
    await asyncio.to_thread(sending.join, SECONDS_MAX)
    if sending.exitcode != 0:
        raise RuntimeError("the peer has not sent everything: see its error above")


def _with_peer(peer: Peer, work: Callable[[], None]) -> None:
    with process(*peer):
        asyncio.run(listening(peer[1]))
        work()


def _keeping_beside(peer: Peer, work: Callable[[PlainLog], Coroutine[Any, Any, None]]) -> None:
    _with_peer(peer, lambda: _keeping(work))


def _beside(peer: Peer, work: Coroutine[Any, Any, None]) -> None:
    with process(*peer):
        uvloop.run(work)


def _with(peer: Callable[[int], None], work: Callable[[int], None]) -> None:
    port = free_port()
    with process(peer, port):
        asyncio.run(listening(port))
        work(port)


async def listening(port: int | str | tuple[str, int]) -> None:
    """At a port, or at the path of a Unix socket."""
    async with asyncio.timeout(SECONDS_MAX):
        while True:
            try:
                if isinstance(port, str):
                    _, writer = await asyncio.open_unix_connection(port)
                else:
                    _, writer = await asyncio.open_connection(
                        *(port if isinstance(port, tuple) else ("127.0.0.1", port))
                    )
            except OSError:
                await asyncio.sleep(0.01)
            else:
                writer.close()
                return


class _Client(asyncio.Protocol):
    """Sends the same request again and again, each after the answer to the one before."""

    def __init__(self, request: bytes, count: int, over: asyncio.Future[None]) -> None:
        self._request = request
        self._left = count
        self._over = over
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # not a subclass with every version of uvloop
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, end, body = self._received.partition(b"\r\n\r\n")
        if not end or len(body) < _length(head):
            return
        if not head.startswith(b"HTTP/1.1 20"):
            self._fail(f"answered with {head!r}")
            return
        self._received, self._left = b"", self._left - 1
        if self._left:
            self._transport.write(self._request)
        else:
            self._over.set_result(None)
            self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(f"closed: {error}")

    def _fail(self, reason: str) -> None:
        if not self._over.done():
            self._over.set_exception(ConnectionError(f"{self._left} requests are left; the connection is {reason}"))


def _length(head: bytes) -> int:
    _, found, rest = head.lower().partition(b"content-length:")
    return int(rest.split(b"\r\n", 1)[0]) if found else 0


def _send_over(port: int, request: bytes, connections: int, each: int) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        over = [loop.create_future() for _ in range(connections)]
        for one in over:
            await loop.create_connection(partial(_Client, request, each, one), "127.0.0.1", port)
        await asyncio.gather(*over)

    uvloop.run(run())


def _request(path: str, kind: str, body: bytes, more: str = "") -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{more}\r\n"
    return head.encode() + body


def send_deliveries(port: int, requests: int) -> None:
    request = _request("/", "application/json", BODY, f"X-Hub-Signature-256: {_signature(BODY)}\r\n")
    _send_over(port, request, CONNECTIONS, requests // CONNECTIONS)


def pour_messages(port: int, events: int) -> None:
    """All at once, in frames that are made once. Keeps the connection open."""

    async def pour(connection: ServerConnection) -> None:
        message = b"\x82" + bytes([len(BODY)]) + BODY
        for start in range(0, events, STORED_AT_ONCE):
            connection.transport.write(message * min(STORED_AT_ONCE, events - start))
            await asyncio.sleep(0)
        await connection.wait_closed()

    asyncio.run(_serving(pour, port))


def take_messages(port: int, _: int) -> None:
    async def take(connection: ServerConnection) -> None:
        async for _ in connection:
            """Only the sender is measured."""

    asyncio.run(_serving(take, port))


async def _serving(handler: Callable[[ServerConnection], Awaitable[None]], port: int) -> None:
    async with serve(handler, "127.0.0.1", port, compression=None):
        await asyncio.Event().wait()


def follow_messages(port: int, events: int) -> None:
    async def follow() -> None:
        async with connect(f"ws://127.0.0.1:{port}/", compression=None) as connection:
            for _ in range(events):
                await connection.recv()

    asyncio.run(listening(port))
    asyncio.run(follow())


def follow_events(port: int, events: int) -> None:
    """Counts the ends of events, across the pieces of the response."""
    asyncio.run(listening(port))
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.sendall(b"GET /events HTTP/1.1\r\nHost: bench\r\nAccept: text/event-stream\r\n\r\n")
        found = 0
        rest = b""
        while found < events:
            data = rest + sock.recv(1 << 16)
            found += data.count(b"data: ")
            rest = data[-5:]


def send_requests(port: int, requests: int) -> None:
    _send_over(port, _request("/", "application/json", BODY), CONNECTIONS, requests // CONNECTIONS)


def send_logs(port: int, requests: int) -> None:
    request = ExportLogsServiceRequest()
    resource = request.resource_logs.add()
    resource.resource.attributes.add(key="service.name").value.string_value = "bench"
    scope = resource.scope_logs.add()
    for number in range(LOGS_PER_REQUEST):
        record = scope.log_records.add(time_unix_nano=1_800_000_000_000_000_000 + number, severity_number=9)
        record.body.string_value = BODY.decode()
        record.attributes.add(key="n").value.int_value = number
    _send_over(
        port,
        _request("/v1/logs", "application/x-protobuf", request.SerializeToString()),
        EXPORTERS,
        requests // EXPORTERS,
    )


def send_messages(port: int, events: int) -> None:
    """One by one, each written alone, and not waiting for anything; as fast as a client can that is no bottleneck. Its
    mask is 0, which leaves the payload as it is.
    """
    head = f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    key = "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    message, close = b"\x82" + bytes([0x80 | len(BODY)]) + bytes(4) + BODY, b"\x88\x82" + bytes(4) + b"\x03\xe8"
    asyncio.run(listening(port))
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.sendall((head + key).encode())
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += sock.recv(1 << 16)
        for _ in range(events):
            sock.sendall(message)
        sock.sendall(close)
        while sock.recv(1 << 16):
            """Until the server has read everything, and closes."""


def serve_events(port: int, events: int) -> None:
    async def run() -> None:
        server = SseServing(port)
        await server.start()
        await server.add(*[b"data: " + BODY] * events)
        await asyncio.Event().wait()

    asyncio.run(run())


def _http_peer(port: int) -> None:
    with serving(port):
        multiprocessing.Event().wait()


def _mail_peer(port: int) -> None:
    with MailServer(port=port):
        multiprocessing.Event().wait()
