"""One HTTP/1.1 connection: requests in, and their answers out, in order. httptools parses; the limits are here.

The application gets one request at a time, as soon as its head is complete. Requests that are pipelined behind it wait,
and nothing more is read meanwhile.
"""

import asyncio
import logging
import re
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from email.utils import formatdate
from functools import cached_property
from http import HTTPMethod, HTTPStatus
from typing import Any, NamedTuple, Protocol, cast
from urllib.parse import unquote

import httptools
from starlette.datastructures import Headers

from penstock.connectors.sockets import address_of
from penstock.core.connection_limits import find_dead_peers
from penstock.core.tls_handshakes import close_once

log = logging.getLogger(__name__)

_STEP_BYTES = 16 << 10
"""Bytes parsed at a time: a bound for the pipelined requests in memory."""

_BODY_BYTES = 64 << 10
"""Bytes of a body that may wait for the application. No more is read until it has taken them."""

_STATUS_LINES = {one.value: f"HTTP/1.1 {one.value} {one.phrase}\r\n".encode() for one in HTTPStatus}
_WITHOUT_BODY = frozenset({HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED})
_OF_SIZE = (b"content-length", b"transfer-encoding")
_LINE_END = re.compile(r"[\r\n\0]")

Head = Sequence[tuple[str, str]]
"""The headers of an answer."""


class Disconnected(Exception):
    """The client has gone before all of its request arrived."""


class BadRequest(Exception):
    """The input is not HTTP, or exceeds a limit. The text is for the client."""


class Application(Protocol):
    """Serves the requests of one connection."""

    async def __call__(self, request: "Request") -> None: ...

    def takes(self, request: "Request") -> bool:
        """Whether it serves this request, which has arrived completely, without a task of its own."""
        ...


class Served(Protocol):
    """Notified of connections."""

    def connected(self, protocol: "HttpProtocol", peer: str) -> Application | None:
        """The application for a new connection; None: there are too many, and it is closed."""

    def disconnected(self, protocol: "HttpProtocol") -> None: ...

    def bad_request(self) -> None:
        """The input is not HTTP."""


class Limits(NamedTuple):
    head_bytes_max: int
    idle_seconds: float
    """How long a client may take to start a request and to finish its head."""
    dead_peer_seconds: float


class Request:
    """A request, and its answer: `answer`, or `begin_answer`, `send`, and `end_answer`."""

    def __init__(self, protocol: "HttpProtocol") -> None:
        self._protocol = protocol
        self.method = self.path = self.version = ""
        self.query = b""
        self.raw_headers: list[tuple[bytes, bytes]] = []
        """Names are in lower case."""
        self.length: int | None = None
        """The length of its body, as announced."""
        self.is_whole = False
        """Whether all of it has arrived."""
        self.waits_to_continue = False
        """Whether the client sends the body only when it is asked to (`Expect: 100-continue`)."""
        self.is_answered = self.is_gone = False
        self._pieces: list[bytes] = []
        self._pieces_bytes = 0
        self._arrival: asyncio.Future[None] | None = None
        self._has_begun = self._is_chunked = False

    @cached_property
    def headers(self) -> Headers:
        return Headers(raw=self.raw_headers)

    # Its body.

    async def read(self) -> bytes:
        """The part of the body that has arrived since the last call; b"" at its end. Raises Disconnected."""
        while not self._pieces and not self.is_whole and not self.is_gone:
            self._protocol.wants_more(self)
            self._arrival = asyncio.get_running_loop().create_future()
            await self._arrival
        if self.is_gone:
            raise Disconnected
        pieces, self._pieces, self._pieces_bytes = self._pieces, [], 0
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    @property
    def whole_body(self) -> bytes:
        """Of a request that has arrived completely, and of which nothing was read."""
        if len(self._pieces) != 1:
            self._pieces = [b"".join(self._pieces)]
        return self._pieces[0]

    def add(self, piece: bytes) -> bool:
        """Add a part of the body. Returns whether more may be read now."""
        if not self.is_answered:
            self._pieces.append(piece)
            self._pieces_bytes += len(piece)
            self.wake()
        return self._pieces_bytes < _BODY_BYTES

    def wake(self) -> None:
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    def gone(self) -> None:
        """Its connection is lost."""
        self.is_gone = True
        self.wake()

    # Its answer.

    async def answer(self, status: int, headers: Head, body: bytes, *, closes: bool = False) -> None:
        """Send the whole answer, unless the client has gone. Raises ValueError for an invalid header."""
        await self._protocol.writable()
        self.answer_now(status, headers, body, closes=closes)

    @property
    def can_answer_now(self) -> bool:
        """Whether the client reads its answers: one more needs no wait."""
        return self._protocol.is_writable

    def answer_now(self, status: int, headers: Head, body: bytes, *, closes: bool = False) -> None:
        """Like `answer`, however much the client has not read yet."""
        if self.is_gone:
            return
        head = self._protocol.head(status, headers, closes=closes)
        if status not in _WITHOUT_BODY:
            head += b"content-length: %d\r\n" % len(body)
        self._protocol.write(head + b"\r\n" + (b"" if self.method == HTTPMethod.HEAD else body))
        self._answered()

    def begin_answer(self, status: int, headers: Head) -> None:
        """Send the head. A body of unknown length follows, and the connection ends with it."""
        self._has_begun, self._is_chunked = True, self.version == "1.1"
        head = self._protocol.head(status, headers, closes=True)
        self._protocol.write(head + (b"transfer-encoding: chunked\r\n\r\n" if self._is_chunked else b"\r\n"))

    async def send(self, data: bytes) -> None:
        """Send a part of that body. Returns when the client has received most of it."""
        if data and not self.is_gone:
            self._protocol.write(b"%x\r\n%b\r\n" % (len(data), data) if self._is_chunked else data)
        await self._protocol.writable()

    def end_answer(self) -> None:
        if not self.is_gone:
            if self._is_chunked:
                self._protocol.write(b"0\r\n\r\n")
            self._answered()

    def serve_alone(self) -> None:
        """In a task of its own, after all."""
        self._protocol.serve(self)

    async def abandon(self) -> None:
        """The application has failed."""
        if self._has_begun:
            self._protocol.close()
        elif not self.is_answered:
            await self.answer(HTTPStatus.INTERNAL_SERVER_ERROR, (), b"", closes=True)

    def _answered(self) -> None:
        self.is_answered = True
        self._pieces.clear()
        self._pieces_bytes = 0
        self._protocol.answered(self)


class KnownHead(NamedTuple):
    """The head of a request that arrived at once, with its body: clients repeat themselves, and a request with the
    same head needs no parser.
    """

    head: bytes
    request: Request

    def fits(self, data: bytes) -> bool:
        """Whether the data are another such request, and nothing else."""
        return len(data) == len(self.head) + (self.request.length or 0) and data.startswith(self.head)

    def again(self, data: bytes, protocol: "HttpProtocol") -> Request:
        request, known = Request(protocol), self.request
        request.method, request.path, request.query = known.method, known.path, known.query
        request.version, request.raw_headers, request.length = known.version, known.raw_headers, known.length
        request.add(data[len(self.head) :])
        request.is_whole = True
        return request


class HttpProtocol(asyncio.Protocol):
    """One connection. The parser calls the methods `on_…`."""

    def __init__(self, served: Served, limits: Limits) -> None:
        self._served = served
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._requests: deque[Request] = deque()
        """The request that is being answered, and those behind it. The last one may not have arrived completely."""
        self._arriving = Request(self)
        self._is_between = True
        """Whether everything that the parser got is whole requests."""
        self._begun = 0
        """Requests that have begun in the data that are being parsed."""
        self._known: KnownHead | None = None
        self._starting: Request | None = None
        """The request whose head was completed by the data that are being parsed."""
        self._in_head = True
        self._is_at_body = False
        """Whether the parser gets a head that we wrote ourselves, followed by the client's body."""
        self._url = b""
        self._head_bytes = self._idle_bytes = 0
        """Bytes of the current head, and bytes parsed without effect: extensions of chunks, and trailers."""
        self._unread = b""
        self._is_last = False
        """Whether to read no further requests: the connection ends when those that have arrived are answered."""
        self._ends_now = False
        """Whether the connection ends with the answer that is being written."""
        self._is_paused = False
        self._refused = ""
        self._application: Application | None = None
        self._idle_at: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._writable: asyncio.Future[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    # The connection.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        find_dead_peers(self._transport, max(1, round(self._limits.dead_peer_seconds)))
        self._application = self._served.connected(self, address_of(transport.get_extra_info("peername")))
        if self._application is None:
            self._transport.abort()
        else:
            self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._idle_at = None
        if self._timer is not None:
            self._timer.cancel()
        for request in self._requests:
            request.gone()
        self.resume_writing()
        self._unread, self._is_last = b"", True
        if self._application is not None:
            self._served.disconnected(self)

    @property
    def certificate(self) -> Mapping[str, Any] | None:
        """The client's, if it has one that was verified."""
        found: Mapping[str, Any] | None = self._transport.get_extra_info("peercert")
        return found

    def shutdown(self) -> None:
        """The request that is being answered is the last one."""
        self._is_last = True
        if not self._requests:
            close_once(self._transport)

    def abort(self) -> None:
        self._transport.abort()

    def close(self) -> None:
        close_once(self._transport)

    # Clients that start no request, or never finish its head.

    def _await_head(self) -> None:
        self._idle_at = self._loop.time() + self._limits.idle_seconds
        if self._timer is None:
            self._timer = self._loop.call_at(self._idle_at, self._look)

    def _look(self) -> None:
        """One timer serves many requests: when it fires, it checks whether the limit is really over."""
        self._timer = None
        if self._idle_at is None:
            return
        if self._idle_at > self._loop.time():
            self._timer = self._loop.call_at(self._idle_at, self._look)
        elif self._writable is None:
            close_once(self._transport)
        else:
            self._transport.abort()  # it does not read its answer

    # Reading.

    def data_received(self, data: bytes) -> None:
        known = self._known
        if self._unread or len(self._requests) > 1:
            self._unread += data
        elif known is not None and self._is_between and not (self._requests or self._is_last) and known.fits(data):
            request = self._arriving = known.again(data, self)
            self._requests.append(request)
            self._start(request)
        else:
            self._feed(data)

    def _feed(self, data: bytes) -> None:
        for start in range(0, len(data), _STEP_BYTES):
            if len(self._requests) > 1:
                self._unread = data[start:]
                break
            if self._is_last and (not self._requests or self._requests[-1].is_whole):
                return
            try:
                self._parse(data[start : start + _STEP_BYTES])
            except BadRequest as bad:
                self._refuse(str(bad))
                return
        if len(self._requests) > 1:
            self._pause_reading()

    def _parse(self, data: bytes) -> None:
        """Raises BadRequest."""
        begins_in_head, before, is_start = self._in_head, self._arriving, self._is_between
        self._idle_bytes += len(data)
        self._begun, self._is_between = 0, False
        try:
            self._feed_parser(data)
            if is_start and self._is_between and self._begun == 1:
                self._remember(data)
        except httptools.HttpParserCallbackError as error:
            raise (error.__context__ if isinstance(error.__context__, BadRequest) else BadRequest()) from None
        except httptools.HttpParserError:
            if not (self._is_last and self._requests and self._requests[-1].is_whole):
                raise BadRequest("invalid HTTP request") from None
        finally:
            if (starting := self._starting) is not None:
                self._starting = None
                self._start(starting)
        if self._in_head and begins_in_head and before is self._arriving:
            self._head_bytes += len(data)
        if max(self._head_bytes, 0 if self._in_head else self._idle_bytes) > self._limits.head_bytes_max:
            raise BadRequest(_TOO_LONG)

    def _remember(self, data: bytes) -> None:
        """These data are one request."""
        request, size = self._arriving, self._arriving.length or 0
        head = data[: len(data) - size]
        is_plain = 0 < size < _BODY_BYTES and not (request.waits_to_continue or self._is_last or self._is_at_body)
        if is_plain and head.endswith(b"\r\n\r\n"):
            self._known = KnownHead(head, request)

    def _feed_parser(self, data: bytes) -> None:
        """A request to upgrade is served like any other. This parser does not read its body, so a new one does."""
        while True:
            try:
                self._parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                sizes = (b"%b: %b" % one for one in self._arriving.raw_headers if one[0] in _OF_SIZE)
                head = b"POST / HTTP/1.1\r\n%b\r\n\r\n" % next(sizes, b"content-length: 0")
                data = head + data[upgrade.args[0] :]
                self._parser, self._is_at_body = httptools.HttpRequestParser(self), True

    def on_message_begin(self) -> None:
        if self._is_at_body:
            return
        self._arriving, self._in_head, self._url, self._head_bytes = Request(self), True, b"", 0
        self._begun, self._is_between = self._begun + 1, False

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # trailers are not read
            self._arriving.raw_headers.append((name.lower(), value.strip()))

    def on_headers_complete(self) -> None:
        if self._is_at_body:
            self._is_at_body = False
            return
        request, self._in_head, self._head_bytes = self._arriving, False, 0
        self._complete(request)
        self._is_last = self._is_last or request.version == "1.0" or not self._parser.should_keep_alive()
        self._requests.append(request)
        if len(self._requests) == 1:
            self._starting = request  # its body may follow in the same data

    def _complete(self, request: Request) -> None:
        """Fill in what the head says. Raises BadRequest."""
        request.version = self._parser.get_http_version()
        request.method = self._parser.get_method().decode()
        size, hosts = len(self._url), 0
        for name, value in request.raw_headers:
            size += len(name) + len(value) + len(b": \r\n")
            if name == b"host":
                hosts += 1
            elif name == b"content-length":
                request.length = int(value)
            elif name == b"expect" and value.lower() == b"100-continue":
                request.waits_to_continue = True
        if size > self._limits.head_bytes_max:
            raise BadRequest(_TOO_LONG)
        if hosts > 1 or (not hosts and request.version == "1.1") or request.version not in ("1.0", "1.1"):
            raise BadRequest("invalid HTTP request")
        path, _, request.query = self._url.partition(b"?")
        if not path.isascii():
            raise BadRequest("invalid HTTP request")
        request.path = unquote(path.decode()) if b"%" in path else path.decode()

    def on_body(self, body: bytes) -> None:
        self._idle_bytes = 0
        if not self._arriving.add(body):
            self._pause_reading()

    def on_message_complete(self) -> None:
        if self._parser.should_upgrade():
            return
        self._idle_bytes, self._in_head, self._is_between = 0, True, True
        self._arriving.is_whole = True
        self._arriving.wake()

    def wants_more(self, request: Request) -> None:
        """The application waits for the body."""
        if request.waits_to_continue:
            request.waits_to_continue = False
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._resume_reading()

    def _pause_reading(self) -> None:
        if not self._is_paused and not self._transport.is_closing():
            self._is_paused = True
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if self._is_paused and not self._transport.is_closing():
            self._is_paused = False
            self._transport.resume_reading()

    def _refuse(self, reason: str) -> None:
        """Refuse the input, after the answers to the requests before it."""
        self._served.bad_request()
        self._is_last, self._unread, self._refused = True, b"", reason
        if self._requests and not self._requests[-1].is_whole:
            self._requests[-1].gone()
            self._requests.pop()
        if not self._requests:
            self._answer_refused()

    def _answer_refused(self) -> None:
        body = f"{self._refused}\n".encode()
        head = self.head(HTTPStatus.BAD_REQUEST, (("content-type", "text/plain; charset=utf-8"),), closes=True)
        self._transport.write(head + b"content-length: %d\r\n\r\n%b" % (len(body), body))
        close_once(self._transport)

    # Serving, and writing.

    def _start(self, request: Request) -> None:
        self._idle_at = None
        assert self._application is not None
        if request.is_whole and self._application.takes(request):
            return
        self.serve(request)

    def serve(self, request: Request) -> None:
        """In a task."""
        task = self._loop.create_task(self._serve(request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, request: Request) -> None:
        assert self._application is not None
        try:
            await self._application(request)
        except Exception:
            log.exception("a request failed")
            await request.abandon()

    def head(self, status: int, headers: Head, *, closes: bool) -> bytes:
        """The head of the answer to the first request, without its last line end. Raises ValueError.

        A client that was not asked for its body may still send it or not, so the connection ends.
        """
        first = self._requests[0] if self._requests else None
        is_unclear = first is not None and first.waits_to_continue and not first.is_whole
        is_last = self._is_last and len(self._requests) <= 1 and not self._refused
        self._ends_now = closes or is_unclear or is_last
        lines = [_STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status, b"date: ", _date(), b"\r\n"]
        for name, value in headers:
            if _LINE_END.search(value) or _LINE_END.search(name):
                raise ValueError(f"the header {name!r} has a line end")
            lines.append(f"{name}: {value}\r\n".encode("latin-1"))
        if self._ends_now:
            lines.append(b"connection: close\r\n")
        return b"".join(lines)

    def write(self, data: bytes) -> None:
        self._transport.write(data)

    def pause_writing(self) -> None:
        self._writable = self._loop.create_future()

    def resume_writing(self) -> None:
        if self._writable is not None:
            self._writable.set_result(None)
            self._writable = None

    @property
    def is_writable(self) -> bool:
        return self._writable is None

    async def writable(self) -> None:
        """Wait until the client has received most of what was written, or has gone."""
        if self._writable is not None:
            await asyncio.shield(self._writable)

    def answered(self, request: Request) -> None:
        """The request is answered: serve the next one."""
        if not self._requests or self._requests[0] is not request:
            return  # the input was refused meanwhile
        self._requests.popleft()
        if self._ends_now:
            self._end()
            return
        if self._requests:
            self._start(self._requests[0])
        elif self._refused:
            self._answer_refused()
        else:
            self._await_head()
        if self._unread and len(self._requests) < 2:
            unread, self._unread = self._unread, b""
            self._feed(unread)
        if len(self._requests) < 2:
            self._resume_reading()

    def _end(self) -> None:
        """Close the connection. Requests behind this one get no answer."""
        self._is_last, self._unread = True, b""
        self._requests.clear()
        close_once(self._transport)


_TOO_LONG = "the head is too long (head_bytes_max)"

_dates = (0, b"")
"""The second for which the header was made, and that header."""


def _date() -> bytes:
    """The `Date` header, which changes once a second."""
    global _dates  # noqa: PLW0603  a cache of one
    now = int(time.time())
    if _dates[0] != now:
        _dates = (now, formatdate(now, usegmt=True).encode())
    return _dates[1]


def protocol_factory(served: Served, limits: Limits) -> Callable[[], HttpProtocol]:
    """For `loop.create_server`."""
    return lambda: HttpProtocol(served, limits)
