"""A coordinator with scripted answers, over real HTTP, that records its requests."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = Callable[[Any], Any]


class ScriptedCoordinator:
    """`answers`: path → the JSON of the answer, or a function of the request's."""

    def __init__(self, answers: dict[str, Any]) -> None:
        self.answers = answers
        self.asked: list[tuple[str, Any]] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._server.server_port}"

    def bodies(self, path: str) -> list[Any]:
        return [body for asked, body in self.asked if asked == path]

    @contextmanager
    def run(self) -> Iterator["ScriptedCoordinator"]:
        thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), name="scripted coordinator")
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        scripted = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._answer(None)

            def do_POST(self) -> None:
                assert self.headers["Content-Type"] == "application/json"
                self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

            def _answer(self, body: Any) -> None:
                scripted.asked.append((self.path, body))
                answer = scripted.answers[self.path]
                answer = answer(body) if callable(answer) else answer
                data = json.dumps(answer).encode()
                self.send_response(400 if "error" in answer else 200)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None:
                pass

        return Handler
