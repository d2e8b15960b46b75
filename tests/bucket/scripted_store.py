"""A store that answers as it is told, and a bucket wrapper that ignores conditions."""

import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from penstock.bucket.objects import Bucket, ListedObject, NoSuchObject, StoredObject
from penstock.core.types import Buffer


@dataclass(slots=True)
class ScriptedStore:
    """Speaks HTTP. `respond` handles each request, which is in `requests` by its method and path."""

    port: int = 0
    respond: Callable[[BaseHTTPRequestHandler], None] = lambda _: None
    requests: list[str] = field(default_factory=list)
    closed: threading.Event = field(default_factory=threading.Event)

    def answer(self, status: int, body: str = "", **headers: str) -> None:
        """From now on, this."""

        def respond(handler: BaseHTTPRequestHandler) -> None:
            handler.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                handler.send_header(name.replace("_", "-"), value)
            handler.end_headers()
            handler.wfile.write(body.encode())

        self.respond = respond

    def hang(self) -> None:
        """Nothing is answered until the test ends."""

        def respond(_: BaseHTTPRequestHandler) -> None:
            self.closed.wait()

        self.respond = respond

    def reset(self) -> None:
        """The connection is reset instead of an answer."""

        def respond(handler: BaseHTTPRequestHandler) -> None:
            handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            handler.close_connection = True
            handler.connection.close()

        self.respond = respond

    def break_off(self) -> None:
        """The answer ends in the middle of its body."""

        def respond(handler: BaseHTTPRequestHandler) -> None:
            handler.send_response(200)
            for name, value in (("ETag", '"1"'), ("Last-Modified", "Wed, 21 Oct 2015 07:28:00 GMT")):
                handler.send_header(name, value)
            handler.send_header("Content-Length", "1000")
            handler.end_headers()
            handler.wfile.write(b"the beginning")
            handler.close_connection = True

        self.respond = respond


@contextmanager
def scripted_store() -> Iterator[ScriptedStore]:
    store = ScriptedStore()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            store.requests.append(f"{self.command} {self.path}")
            store.respond(self)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_any  # noqa: N815

        def finish(self) -> None:
            with suppress(OSError, ValueError):  # we may have reset it ourselves
                super().finish()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    store.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield store
    finally:
        store.closed.set()
        server.shutdown()
        thread.join()
        server.server_close()


class CarelessBucket:
    """Does what the wrapped bucket does, except for what it is told to ignore."""

    def __init__(self, bucket: Bucket, *, ignores: str) -> None:
        """`ignores`: create-only, compare, match, writes or found."""
        self.url = bucket.url
        self._bucket = bucket
        self._ignores = ignores

    def get(self, key: str) -> StoredObject:
        if self._ignores == "found":
            raise NoSuchObject(key)
        return self._bucket.get(key)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self._bucket.get_range(key, start, length)

    def create(self, key: str, buffers: Sequence[Buffer]) -> str:
        if self._ignores == "create-only":
            self._bucket.delete([key])
        return self._bucket.create(key, buffers)

    def replace(self, key: str, data: bytes, version: str) -> str:
        current = self._bucket.get(key).version
        if self._ignores == "writes":
            return "new"
        if self._ignores == "match":
            version = "none"
        return self._bucket.replace(key, data, current if self._ignores == "compare" else version)

    def delete(self, keys: Sequence[str]) -> None:
        self._bucket.delete(keys)

    def list(self, prefix: str) -> Iterator[ListedObject]:
        return self._bucket.list(prefix)
