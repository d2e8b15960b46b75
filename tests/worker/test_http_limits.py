"""The HTTP port gives a peer limited time for a head and a body, and keeps limited bodies in memory."""

import asyncio
import http.client
import itertools
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock.client.coordinator import CoordinatorClient
from penstock.core.errors import LimitExceeded, Unavailable
from penstock.ingest.settings import ProgramServerSettings
from penstock.protocol.api.codec import decode_request
from penstock.segment_server.settings import ServerSettings
from penstock.worker import routes
from penstock.worker.http_limits import DECODING_REST, Bodies, Decoding, HttpLimits
from penstock.worker.settings import WorkerSettings
from tests.support.running_worker import SMALL_STORE, RunningWorker

HEAD = b"POST /drain HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n"
MIB = 1 << 20
HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
HEALTHY = b'{"ok":true,"problems":[]}\n'

Serve = Callable[[HttpLimits], RunningWorker]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    started: list[RunningWorker] = []

    def start(limits: HttpLimits) -> RunningWorker:
        worker = RunningWorker(
            WorkerSettings(
                data=tmp_path / "data",
                http_port=0,
                store=SMALL_STORE,
                segment=ServerSettings(port=0),
                programs=ProgramServerSettings(port=0),
                http=limits,
            )
        )
        worker.start()
        started.append(worker)
        return worker

    yield start
    for worker in started:
        worker.stop()


@contextmanager
def connected(worker: RunningWorker, *sent: bytes) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", worker.ports["http"]), 60) as one:
        for data in sent:
            one.sendall(data)
        yield one


def until_closed(one: socket.socket) -> bytes:
    received = b""
    try:
        while data := one.recv(65536):
            received += data
    except ConnectionError:
        pass
    return received


def check_healthy(one: socket.socket) -> bytes:
    """Everything up to the reply of /health, which may arrive in pieces."""
    received = b""
    while not received.endswith(HEALTHY):
        data = one.recv(65536)
        assert data, received
        received += data
    return received


def asks(worker: RunningWorker) -> None:
    with CoordinatorClient(f"127.0.0.1:{worker.ports['http']}") as client:
        assert client.status().problems == []


@pytest.mark.parametrize("sent", [b"", HEAD[:20]])
def test_a_head_that_does_not_end_ends_the_connection(serve: Serve, sent: bytes) -> None:
    worker = serve(HttpLimits(head_seconds=0.3))
    with connected(worker, sent) as one:
        assert until_closed(one) == b""
    asks(worker)


def test_the_time_for_a_head_also_counts_on_a_connection_that_was_used(serve: Serve) -> None:
    worker = serve(HttpLimits(head_seconds=0.3))
    with connected(worker, HEALTH) as one:
        assert one.recv(65536).startswith(b"HTTP/1.1 200")
        one.sendall(HEAD[:20])
        assert until_closed(one) in (b"", HEALTHY)


def test_a_body_that_does_not_end_ends_the_connection(serve: Serve) -> None:
    worker = serve(HttpLimits(body_seconds=0.3))
    with connected(worker, HEAD, b"{") as one:
        until_closed(one)
    asks(worker)


def test_a_connection_stays_open_between_requests_until_it_is_idle_for_too_long(serve: Serve) -> None:
    worker = serve(HttpLimits(head_seconds=0.3, idle_seconds=2))
    client = http.client.HTTPConnection("127.0.0.1", worker.ports["http"], timeout=60)
    for _ in range(2):
        client.request("GET", "/health")
        assert client.getresponse().read() == HEALTHY
    assert until_closed(client.sock) == b""
    client.close()


@pytest.mark.parametrize("request_", [b"POST /none", b"POST /drain", b"POST /health", b"HEAD /health"])
def test_a_malformed_body_gets_at_most_one_reply_and_leaves_no_traceback(
    serve: Serve, request_: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where the reply does not wait for the body."""
    head = request_ + b" HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    chunked = b"Transfer-Encoding: chunked\r\n\r\n"
    worker = serve(HttpLimits())
    with connected(worker, head + chunked + b"not a chunk\r\n") as at_once:
        assert until_closed(at_once).count(b"HTTP/1.1") <= 1
    with connected(worker, head + chunked + b"1\r\nx\r\n") as later:
        if request_ != b"POST /drain":
            assert later.recv(65536).startswith(b"HTTP/1.1 ")
        later.sendall(b"not a chunk\r\n")
        until_closed(later)
    asks(worker)
    assert not [record for record in caplog.records if record.exc_info]


def test_a_client_connects_again_after_the_worker_has_closed_its_idle_connection(serve: Serve) -> None:
    worker = serve(HttpLimits(address_connections_max=1))
    with CoordinatorClient(f"127.0.0.1:{worker.ports['http']}") as client:
        client.status()
        with connected(worker, HEALTH) as other:
            assert other.recv(65536).startswith(b"HTTP/1.1 200")
        client.status()


def test_bodies_are_limited_each_and_together() -> None:
    bodies = Bodies(20)
    with bodies.one(8, "a") as first:
        first.add(b"12345")
        first.add(b"678")
        with pytest.raises(LimitExceeded, match="longer than 8 bytes"):
            first.add(b"9")
        with bodies.one(20, "b") as second:
            second.add(b"1234567890")
        with bodies.one(20, "b") as second, bodies.one(20, "c") as third:
            second.add(b"1234567890")
            third.add(b"12")
            with pytest.raises(Unavailable):
                third.add(b"3")
        assert bodies.bytes == 8
        assert first.joined() == b"12345678"
    assert bodies.bytes == 0


def test_one_principal_has_at_most_half_of_the_memory_for_bodies() -> None:
    bodies = Bodies(10)
    with bodies.one(8, "a") as first, bodies.one(8, "a") as second, bodies.one(8, "b") as third:
        first.add(b"1234")
        with pytest.raises(Unavailable):
            second.add(b"12")
        third.add(b"12345")


def test_a_body_is_refused_by_its_announced_length() -> None:
    bodies = Bodies(10)
    with bodies.one(4, "a") as body:
        with pytest.raises(LimitExceeded):
            body.announce(5)
        body.announce(4)
        with bodies.one(4, "a") as other:
            other.add(b"1234")
            with pytest.raises(Unavailable):
                body.announce(4)
    assert bodies.bytes == 0


def test_a_principal_has_large_bodies_decoded_for_an_eighth_of_the_time() -> None:
    """And others do not wait for it."""
    seconds = 0.05
    started: list[tuple[str, float]] = []

    def decode(owner: str) -> None:
        start = time.thread_time()
        started.append((owner, time.monotonic()))
        while time.thread_time() - start < seconds:
            pass
        raise LimitExceeded("the rest is for failures, too", "")

    async def all_decoded() -> None:
        decoding = Decoding()
        owners = ["a", "a", "b", "a"]
        await asyncio.gather(*(decoding.run(owner, partial(decode, owner)) for owner in owners), return_exceptions=True)

    asyncio.run(all_decoded())
    times = [at for owner, at in started if owner == "a"]
    assert min(later - earlier for earlier, later in itertools.pairwise(times)) >= (1 + DECODING_REST) * seconds
    assert [owner for owner, _ in started].index("b") < 2


def send_mebibytes(one: socket.socket, count: int) -> None:
    for _ in range(count):
        one.sendall(bytes(MIB))


def post(length: int) -> bytes:
    return b"POST /starting HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" + (
        b"Content-Length: %d\r\n\r\n" % length
    )


def test_a_body_that_is_announced_too_long_is_refused_before_it_is_sent(serve: Serve) -> None:
    with connected(serve(HttpLimits()), post(2 * MIB)) as one:
        assert one.recv(65536).startswith(b"HTTP/1.1 400")


def test_a_client_that_keeps_sending_after_a_refusal_is_cut_off(serve: Serve) -> None:
    """And not read to the end, which may be far away."""
    with connected(serve(HttpLimits()), post(1000 * MIB)) as one, pytest.raises(ConnectionError):
        send_mebibytes(one, 1000)


def test_a_client_that_sends_a_little_too_much_keeps_its_connection(serve: Serve) -> None:
    with connected(serve(HttpLimits()), post(3 * MIB // 2), bytes(3 * MIB // 2), HEALTH) as one:
        assert check_healthy(one).count(b"HTTP/1.1 400") == 1


def test_a_client_gets_the_reason_although_it_is_cut_off(serve: Serve) -> None:
    worker = serve(HttpLimits())
    with CoordinatorClient(f"127.0.0.1:{worker.ports['http']}") as client:
        for _ in range(5):
            with pytest.raises(LimitExceeded, match="longer than 1048576 bytes"):
                client._ask("POST", "/starting", bytes(30 * MIB))
        client.status()


@pytest.mark.parametrize(("padding", "is_in_loop"), [(1000, True), (100_000, False)])
def test_a_large_body_is_decoded_outside_the_event_loop(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, padding: int, is_in_loop: bool
) -> None:
    threads: list[str] = []

    def decode(data: bytes, kind: type[Any]) -> Any:
        threads.append(threading.current_thread().name)
        return decode_request(data, kind)

    monkeypatch.setattr(routes, "decode_request", decode)
    worker = serve(HttpLimits())
    body = b" " * padding + b'{"pipelines": {}}'
    with connected(worker, post(len(body)), body) as one:
        assert one.recv(65536).startswith(b"HTTP/1.1 200 ")
    assert [name == "worker" for name in threads] == [is_in_loop]


def test_a_connection_beyond_the_limit_replaces_an_idle_one(serve: Serve) -> None:
    worker = serve(HttpLimits(connections_max=2, address_connections_max=2, head_seconds=100_000))
    with connected(worker) as first, connected(worker) as second, connected(worker, HEALTH) as third:
        assert until_closed(first) == b""
        check_healthy(third)
        second.sendall(HEALTH)
        check_healthy(second)
