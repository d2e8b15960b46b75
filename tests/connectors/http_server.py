"""A real HTTP server for tests, which replies as scripted."""

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def _plain(_: ThreadingHTTPServer) -> None:
    """Without TLS."""


@dataclass
class Answer:
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    seconds: float = 0.0
    closes: bool = False


@dataclass
class Server:
    """Answers with `answers`, one after the other, then with 200."""

    answers: list[Answer] = field(default_factory=list)
    posts: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)
    connections: int = 0
    closed: int = 0
    """Of them."""
    port: int = 0


class serving:  # noqa: N801
    def __init__(self, prepare: Callable[[ThreadingHTTPServer], None] = _plain) -> None:
        state = self._state = Server()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                state.connections += 1
                super().setup()

            def finish(self) -> None:
                super().finish()
                with suppress(OSError):
                    self.connection.shutdown(socket.SHUT_RDWR)
                state.closed += 1

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                state.posts.append((self.path, dict(self.headers), body))
                answer = state.answers.pop(0) if state.answers else Answer()
                time.sleep(answer.seconds)
                self.send_response(answer.status)
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(answer.body)))
                self.end_headers()
                self.wfile.write(answer.body)
                self.close_connection = answer.closes

            def log_message(self, *_: object) -> None:
                pass

        self._httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._httpd.daemon_threads = True
        prepare(self._httpd)
        state.port = self._httpd.server_address[1]
        self._thread = threading.Thread(target=self._httpd.serve_forever, kwargs={"poll_interval": 0.02})

    def __enter__(self) -> Server:
        self._thread.start()
        return self._state

    def __exit__(self, *_: object) -> None:
        self._httpd.shutdown()
        self._thread.join()
        self._httpd.server_close()
