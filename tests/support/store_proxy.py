"""Stands between a worker and its object store: passes requests on, counts them, or answers them itself."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from tests.support.waiting import SECONDS_MAX

SLOW_DOWN = (503, "<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>")
QUOTA = (507, "<Error><Code>QuotaExceeded</Code><Message>The bucket is full.</Message></Error>")

_CONDITION_FAILED = 412
_NOT_PASSED = ("connection", "transfer-encoding", "content-length", "keep-alive")


@dataclass(slots=True)
class StoreProxy:
    """`refuse` decides about each request, by its method and path: None passes it on. Signatures stay valid, since the
    Host header is passed on as well.
    """

    target: int
    port: int = 0
    refuse: Callable[[str, str], tuple[int, str] | None] = lambda *_: None
    ignores: str = ""
    """A condition, as the header's name in lower case: a write that it forbids is answered as if it had been carried
    out. (The header itself is signed, and cannot be left out.)
    """
    requests: Counter[str] = field(default_factory=Counter)
    """By method."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _is_connected: threading.Event = field(default_factory=threading.Event)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __post_init__(self) -> None:
        self._is_connected.set()

    def cut(self) -> None:
        """From now on nothing is answered: a request, or the reply to one that was passed on, is lost."""
        self._is_connected.clear()

    def reconnect(self) -> None:
        self._is_connected.set()

    def _pass(self) -> None:
        """Raises ConnectionResetError, when the network is back."""
        if not self._is_connected.is_set():
            self._is_connected.wait(SECONDS_MAX)
            raise ConnectionResetError

    def answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
        with self._lock:
            self.requests[method] += 1
        self._pass()
        if (refused := self.refuse(method, path)) is not None:
            return refused[0], {"Content-Type": "application/xml"}, refused[1].encode()
        connection = HTTPConnection("127.0.0.1", self.target, timeout=SECONDS_MAX)
        try:
            connection.request(method, path, body, headers)
            reply = connection.getresponse()
            kept = {name: value for name, value in reply.getheaders() if name.lower() not in _NOT_PASSED}
            data = reply.read()
            self._pass()
            if reply.status == _CONDITION_FAILED and self.ignores in map(str.lower, headers):
                return 200, {"ETag": '"ignored"'}, b""
            return reply.status, kept, data
        finally:
            connection.close()


@contextmanager
def store_proxy(endpoint: str) -> Iterator[StoreProxy]:
    proxy = StoreProxy(urlsplit(endpoint).port or 80)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            with suppress(OSError, HTTPException):  # of the store, or of a worker that was killed
                status, headers, data = proxy.answer(self.command, self.path, dict(self.headers), body)
                self.send_response_only(status)
                for name, value in {**headers, "Content-Length": str(len(data))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)
                return
            self.close_connection = True

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_any  # noqa: N815

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    proxy.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield proxy
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
