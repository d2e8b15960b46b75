"""The coordinator's client keeps its connection, retries while the worker is unavailable, and raises its errors."""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from penstock.client.coordinator import AtTime, CoordinatorClient, InputOffset, InputSpec, Limits, Range, Staged
from penstock.client.coordinator.connection import Connection
from penstock.client.shards import _refusal
from penstock.core.address import Address
from penstock.core.errors import (
    DataLoss,
    DiskFull,
    Fenced,
    PenstockError,
    PipelineError,
    ProtocolError,
    RequestError,
    Unavailable,
)

Answer = tuple[int, Any]


class ScriptedWorker(ThreadingHTTPServer):
    """Replies as scripted; records the requests, and their connections."""

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.answers: list[Answer | Callable[[_Handler], None]] = []
        self.asked: list[tuple[str, str, Any]] = []
        self.connections: set[int] = set()
        self.sockets: list[socket.socket] = []
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01})

    def __enter__(self) -> "ScriptedWorker":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """As when a process ends: its connections end, too."""
        self.shutdown()
        self._thread.join()
        self.server_close()
        for open_one in self.sockets:
            with suppress(OSError):
                open_one.shutdown(socket.SHUT_RDWR)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: ScriptedWorker

    def do_POST(self) -> None:
        length = int(self.headers.get("content-length", 0))
        body = json.loads(self.rfile.read(length)) if length else None
        kind = self.headers.get("content-type", "")
        assert kind == ("application/json" if body is not None else "")
        self.server.asked.append((self.command, self.path, body))
        self.server.connections.add(self.client_address[1])
        self.server.sockets.append(self.connection)
        answer = self.server.answers.pop(0) if self.server.answers else (200, {})
        if callable(answer):
            answer(self)
        else:
            self.reply(*answer)

    do_GET = do_POST  # noqa: N815

    def reply(self, status: int, body: Any) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


def hang_up(handler: _Handler) -> None:
    handler.close_connection = True
    handler.connection.shutdown(socket.SHUT_RDWR)


def error(kind: str, status: int = 400) -> Answer:
    return status, {"error": "it is so", "hint": "do this", "kind": kind}


@pytest.fixture
def worker() -> Iterator[ScriptedWorker]:
    with ScriptedWorker() as running:
        yield running


@pytest.fixture
def client(worker: ScriptedWorker) -> Iterator[CoordinatorClient]:
    with CoordinatorClient(worker.address, 5) as made:
        yield made


START = InputOffset({"b": 2, "a": 1}, 3, 1, None)


def test_every_route_is_requested_as_it_is_documented(worker: ScriptedWorker, client: CoordinatorClient) -> None:
    worker.answers = [
        (200, {"generation": 3, "incarnation": 1, "epoch": 7, "segment_port": 7101, "tls": False}),
        (200, START.as_json()),
        (200, {"offset": START.as_json(), "blocked": "why"}),
        (200, {"segments": {}}),
        (200, {"merged": True, "epoch": 4}),
        *[(200, {})] * 6,
        (200, {"segments": {"a": 1}}),
        (200, {"segments": {"a": 2}}),
        (200, {"splits": [["a", 0, 5]], "lost": [["a", 5, 6]]}),
        (200, {"names": ["one", ""]}),
        (200, {"pipelines": []}),
    ]
    started = client.start("p", {"in": InputSpec(["s"], AtTime(5))}, ["out"], Limits(rows=7), fresh=True, request="r")
    assert (started.generation, started.epoch) == (3, 7)
    assert client.initial("p", 3, "in") == START
    cut = client.cut("p", 3, "in", START, load="l1", upto={"a": 9}, limits=Limits(bytes=5), wait_ms=10)
    assert (cut.offset, cut.blocked) == (START, "why")
    client.reading("p", 3, "in", START, START)
    assert client.merge("p", 4, [Staged("out", "staging/x", 9)], generation=3).merged
    client.abort("p", 4)
    client.complete("p", 3, 8)
    client.heartbeat("p", 3, stopped=True)
    client.reset("p")
    client.drop("p")
    client.attach("p", 3, "in", "l1", ["s"], upto={"a": 9})
    assert client.resolve(["s"], "latest") == {"a": 1}
    assert client.cut_sources(["s"], {"a": 1}) == {"a": 2}
    splits = client.splits([Range("a", 0, 6)], 4, bytes_min=2, skip_lost=True)
    assert (splits.splits, splits.lost) == ([Range("a", 0, 5)], [Range("a", 5, 6)])
    assert client.stream_names("s ü", [1, 2**64 - 1]) == ["one", ""]
    assert client.pipelines() == []
    offset = {"epoch": 3, "incarnation": 1, "segments": {"a": 1, "b": 2}, "watermark": None}
    limits = {"bytes": None, "rows": 7, "undelivered_bytes": None}
    inputs = {"in": {"sources": ["s"], "starting": {"timestamp_us": 5}}}
    start = {"inputs": inputs, "outputs": ["out"], "limits": limits, "fresh": True, "request": "r"}
    attached = {"generation": 3, "input": "in", "load": "l1", "upto": {"a": 9}}
    cutting = attached | {"start": offset, "limits": {"bytes": 5, "rows": None, "undelivered_bytes": None}}
    staged = [{"port": "out", "segment": "staging/x", "length": 9, "rows": None, "target": ""}]
    heartbeat = {"generation": 3, "stopped": True, "failed": False, "failure": None, "query": None}
    assert worker.asked == [
        ("POST", "/pipelines/p/start", start),
        ("POST", "/pipelines/p/initial", {"generation": 3, "input": "in"}),
        ("POST", "/pipelines/p/cut", cutting | {"wait_ms": 10, "state": None}),
        ("POST", "/pipelines/p/reading", {"generation": 3, "input": "in", "start": offset, "end": offset}),
        ("POST", "/pipelines/p/merge", {"generation": 3, "batch": 4, "staged": staged, "manifest": ""}),
        ("POST", "/pipelines/p/abort", {"generation": None, "batch": 4}),
        ("POST", "/pipelines/p/complete", {"generation": 3, "epoch": 8}),
        ("POST", "/pipelines/p/heartbeat", heartbeat),
        ("POST", "/pipelines/p/reset", {"accept_partial": False}),
        ("POST", "/pipelines/p/drop", {"outputs": False}),
        ("POST", "/pipelines/p/attach", attached | {"sources": ["s"]}),
        ("POST", "/sources/resolve", {"sources": ["s"], "position": "latest"}),
        ("POST", "/sources/cut", {"sources": ["s"], "start": {"a": 1}, "upto": None, "limits": None, "wait_ms": 0}),
        ("POST", "/splits", {"ranges": [["a", 0, 6]], "parts": 4, "bytes_min": 2, "skip_lost": True}),
        ("POST", "/sources/s%20%C3%BC/streams", {"ids": [1, 2**64 - 1]}),
        ("GET", "/pipelines", None),
    ]
    assert len(worker.connections) == 1, "one connection serves them all"


def test_an_offset_is_compact_json_with_sorted_keys_and_survives_a_round_trip() -> None:
    text = START.text()
    assert text == '{"epoch":3,"incarnation":1,"segments":{"a":1,"b":2},"watermark":null}'
    assert InputOffset.from_json(json.loads(text)) == START
    assert InputOffset({"b": 2, "a": 1}).text() == '{"segments":{"a":1,"b":2}}'
    for wrong in ("{}", "[]", '{"segments": {"a": -1}}', '{"segments": {"a": true}}', '{"segments": {}, "epoch": 1}'):
        with pytest.raises(RequestError):
            InputOffset.from_json(json.loads(wrong))


@pytest.mark.parametrize(
    ("kind", "status", "raised"),
    [
        ("Fenced", 409, Fenced),
        ("PipelineError", 400, PipelineError),
        ("DataLoss", 400, DataLoss),
        ("DiskFull", 503, DiskFull),
        ("WhatIsThis", 400, RequestError),
        ("Exception", 400, RequestError),
    ],
)
def test_what_the_worker_refuses_is_raised_at_once(
    worker: ScriptedWorker, client: CoordinatorClient, kind: str, status: int, raised: type[Exception]
) -> None:
    worker.answers = [error(kind, status)]
    with pytest.raises(raised, match="it is so") as caught:
        client.reset("p")
    assert type(caught.value) is raised
    assert caught.value.hint == "do this"  # type: ignore[attr-defined]
    assert len(worker.asked) == 1


@pytest.mark.parametrize("away", [hang_up, error("Unavailable", 503)])
def test_an_unavailable_worker_is_retried(worker: ScriptedWorker, client: CoordinatorClient, away: Any) -> None:
    worker.answers = [away, away, (200, {})]
    client.reset("p")
    assert len(worker.asked) == 3


def test_a_worker_that_comes_back_on_the_same_port_is_found_by_the_same_client() -> None:
    with ScriptedWorker() as first:
        port = first.server_address[1]
        client = CoordinatorClient(f"http://127.0.0.1:{port}/", 10)
        client.reset("p")
    later = threading.Timer(0.2, lambda: running.__enter__())
    running = ScriptedWorker(port)
    try:
        later.start()
        client.reset("p")
        assert running.asked == [("POST", "/pipelines/p/reset", {"accept_partial": False})]
    finally:
        later.join()
        running.__exit__()
        client.close()


def test_of_several_workers_another_one_is_asked_when_one_is_away() -> None:
    with ScriptedWorker() as second:
        with ScriptedWorker() as first:
            client = CoordinatorClient(f"{first.address}, {second.address}", 5.0)
            client.reset("p")
            assert (len(first.asked), len(second.asked)) == (1, 0)
        client.reset("p")
        client.reset("p")
        client.close()
        assert (len(first.asked), len(second.asked)) == (1, 2)


def test_a_start_that_is_repeated_is_the_same_request(worker: ScriptedWorker, client: CoordinatorClient) -> None:
    started = {"generation": 3, "incarnation": 1, "epoch": 7, "segment_port": 7101, "tls": False}
    worker.answers = [hang_up, (200, started), (200, started)]
    client.start("p", {})
    client.start("p", {})
    requests = [body["request"] for _, _, body in worker.asked]
    assert requests[0] == requests[1] != requests[2]


def test_a_worker_that_stays_unreachable_is_reported_as_unavailable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    began = time.monotonic()
    with CoordinatorClient(f"127.0.0.1:{port}", 0.3) as client, pytest.raises(Unavailable, match="cannot be reached"):
        client.reset("p")
    assert time.monotonic() - began < 30


def test_a_worker_that_does_not_answer_in_time_is_retried(worker: ScriptedWorker) -> None:
    answered = threading.Event()

    def hesitate(_: _Handler) -> None:
        answered.wait(60)

    worker.answers = [hesitate, (200, {})]
    with CoordinatorClient(worker.address, 30, timeout_seconds=0.5) as client:
        client.reset("p")
    answered.set()
    assert len(worker.asked) == 2


@pytest.mark.parametrize("said", [b"", b'{"generation": 3, '])
def test_a_truncated_reply_is_not_accepted(worker: ScriptedWorker, client: CoordinatorClient, said: bytes) -> None:
    def die(handler: _Handler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "100")
        handler.end_headers()
        handler.wfile.write(said)
        hang_up(handler)

    worker.answers = [die, (200, {})]
    client.reset("p")
    assert len(worker.asked) == 2


def test_a_server_that_is_not_a_worker_is_recognized(worker: ScriptedWorker, client: CoordinatorClient) -> None:
    for answer in [(200, b"<html>"), (404, b"Not Found"), (404, {"what": 1})]:
        worker.answers = [answer]
        with pytest.raises(ProtocolError):
            client.reset("p")
    assert CoordinatorClient("host").address.port == 7102
    with pytest.raises(RequestError, match="is not an address"):
        CoordinatorClient("host:x")


def test_an_invalid_pipeline_name_is_refused_before_any_request() -> None:
    with CoordinatorClient("127.0.0.1:1", 0) as client, pytest.raises(RequestError, match="'a/b' is not a valid"):
        client.drop("a/b")


@pytest.mark.parametrize(("status", "kind"), [(500, Unavailable), (502, Unavailable), (404, ProtocolError)])
def test_a_failure_without_json_is_worth_another_try_and_another_server_is_not(
    status: int, kind: type[PenstockError]
) -> None:
    """A worker that is stopped gives the requests up that it still has, with a reply of its HTTP server."""
    reply = b"Internal Server Error"
    with closing(Connection(Address("127.0.0.1", 1), 1.0)) as connection:
        assert type(connection._refusal(status, reply)) is kind
    assert type(_refusal("127.0.0.1:1", status, reply)) is kind
