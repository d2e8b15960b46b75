"""A real HTTP server that replies as scripted, and records its requests."""

import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, NamedTuple


class Asked(NamedTuple):
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class Says(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


@dataclass
class Server:
    port: int = 0
    asked: list[Asked] = field(default_factory=list)
    answer: Callable[[Asked], Says] = lambda asked: Says(200, {}, b"")

    @property
    def bodies(self) -> list[bytes]:
        return [one.body for one in self.asked]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/take?a=b"


@contextmanager
def serving(port: int = 0, tls: ssl.SSLContext | None = None) -> Iterator[Server]:
    server = Server()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # else a body waits for the client's acknowledgement of its head

        def do_POST(self) -> None:
            size = int(self.headers["content-length"])
            body = self.rfile.read(size)
            if len(body) < size:  # the client was killed
                self.close_connection = True
                return
            headers = {name.lower(): value for name, value in self.headers.items()}
            server.asked.append(Asked(self.command, self.path, headers, body))
            says = server.answer(server.asked[-1])
            self.send_response(says.status)
            for name, value in says.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(says.body)))
            self.end_headers()
            self.wfile.write(says.body)

        do_PUT = do_PATCH = do_POST  # noqa: N815  their names

        def log_message(self, *_: Any) -> None:
            pass

    connections: list[socket.socket] = []

    class Listening(ThreadingHTTPServer):
        daemon_threads = True

        def get_request(self) -> tuple[socket.socket, Any]:
            found = super().get_request()
            connections.append(found[0])
            return found

    listening = Listening(("127.0.0.1", port), Handler)
    if tls is not None:
        listening.socket = tls.wrap_socket(listening.socket, server_side=True)
    server.port = listening.server_address[1]
    thread = Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        listening.shutdown()
        listening.server_close()
        thread.join()
        for connection in connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
