"""Attacks on a worker's limits, from the address of a good client, which keeps working all the while.

The worker may have far fewer files than it would need for all the connections of an attack.
"""

import os
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from penstock.access.refusals import REFUSALS_AT_ONCE, REFUSALS_PER_SECOND
from penstock.client.coordinator import CoordinatorClient
from penstock.client.segments import SegmentClient
from penstock.core.errors import LimitExceeded, RequestError
from penstock.protocol.api.codec import encode
from penstock.protocol.connector import Hello
from penstock.protocol.connector import encode as encode_frame
from penstock.protocol.segment import VERSIONED, AuthTokenCheckFailed, Decoder, GetSegmentInfo, Role
from penstock.protocol.segment import Hello as SegmentHello
from tests.support.waiting import until
from tests.support.worker_process import WorkerProcess

pytestmark = pytest.mark.process

FILES = 700
MIB = 1 << 20
HALF_A_REQUEST = b"POST /pipelines/p/merge HTTP/1.1\r\nHost: localhost\r\nContent-Le"
HELLO = encode_frame(Hello("0.0.1", b"", "good", "good"))
ATTACKERS = 1000
PAUSE_SECONDS = 0.02
"""Between two rounds of a good client."""


class FewFiles(WorkerProcess):
    """May open only so many files."""

    def _command(self) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "penstock", *self._arguments()]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, preexec_fn=self._limit)

    @staticmethod
    def _limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, FILES))


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4 * ATTACKERS), hard))
    with FewFiles(tmp_path_factory.mktemp("limits") / "data") as running:
        yield running
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class GoodClient(threading.Thread):
    """Connects to all three ports again and again, and does a little work on each."""

    def __init__(self, worker: WorkerProcess) -> None:
        super().__init__()
        self.rounds = 0
        self.error: BaseException | None = None
        self._worker = worker
        self._done = threading.Event()

    def run(self) -> None:
        try:
            while not self._done.wait(PAUSE_SECONDS):
                self._round()
                self.rounds += 1
        except BaseException as error:
            self.error = error

    def _round(self) -> None:
        with SegmentClient(self._worker.address) as client, client.appender("good", create=True) as appender:
            appender.append(b"good")
        with CoordinatorClient(f"127.0.0.1:{self._worker.http_port}") as coordinator:
            assert coordinator.status().problems == []
        with closing(socket.create_connection(("127.0.0.1", self._worker.connector_port), 60)) as source:
            source.sendall(HELLO)
            assert source.recv(5)[4] == 1, "OK"

    def stop(self) -> None:
        self._done.set()
        self.join()
        if self.error is not None:
            raise self.error


@contextmanager
def a_good_client(worker: WorkerProcess) -> Iterator[GoodClient]:
    """Fails unless it has worked before, during and after what happens meanwhile."""
    client = GoodClient(worker)
    client.start()
    try:
        until(lambda: client.rounds > 0 or client.error)
        yield client
        seen = client.rounds
        until(lambda: client.rounds > seen + 1 or client.error)
    finally:
        client.stop()


@contextmanager
def connections(port: int, sent: bytes, count: int = ATTACKERS) -> Iterator[list[socket.socket]]:
    """All of one address; those that the worker closes stay here."""
    opened: list[socket.socket] = []
    try:
        for _ in range(count):
            one = socket.create_connection(("127.0.0.1", port), 60)
            opened.append(one)
            with suppress(OSError):
                one.sendall(sent)
        yield opened
    finally:
        for one in opened:
            one.close()


def is_closed(one: socket.socket) -> bool:
    one.settimeout(0)
    try:
        while one.recv(65536):
            pass
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def test_half_sent_requests_do_not_take_all_files(worker: WorkerProcess) -> None:
    with a_good_client(worker) as good, connections(worker.http_port, HALF_A_REQUEST) as opened:
        rounds = good.rounds
        until(lambda: good.rounds > rounds + 2 or good.error)
        assert sum(map(is_closed, opened)) > ATTACKERS - FILES


def test_idle_connections_do_not_lock_the_segment_port(worker: WorkerProcess) -> None:
    hello = VERSIONED.encode(SegmentHello(17, 5))
    with a_good_client(worker) as good, connections(worker.segment_port, hello):
        rounds = good.rounds
        until(lambda: good.rounds > rounds + 2 or good.error)


def test_connections_without_hello_do_not_lock_the_connector_port(worker: WorkerProcess) -> None:
    with a_good_client(worker) as good, connections(worker.connector_port, HELLO[:10]):
        rounds = good.rounds
        until(lambda: good.rounds > rounds + 2 or good.error)


def test_sessions_that_do_nothing_do_not_lock_the_connector_port(worker: WorkerProcess) -> None:
    with a_good_client(worker) as good, connections(worker.connector_port, HELLO) as opened:
        rounds = good.rounds
        until(lambda: good.rounds > rounds + 2 or good.error)
        assert sum(map(is_closed, opened)) > ATTACKERS - FILES


def test_who_sends_no_request_is_closed_on_every_port(worker: WorkerProcess) -> None:
    """Also who sends a byte now and then: the time is for all of it."""
    ports = {worker.http_port: HALF_A_REQUEST, worker.segment_port: b"\0\0\0\0", worker.connector_port: HELLO[:4]}
    with a_good_client(worker):
        opened = [socket.create_connection(("127.0.0.1", port), 60) for port in ports]
        begun = dict(zip(opened, ports.values(), strict=True))
        for one, data in begun.items():
            one.sendall(data[:2])
        until(lambda: all(map(is_closed, opened)))
        for one in opened:
            one.close()


def test_a_body_is_at_most_a_mebibyte(worker: WorkerProcess) -> None:
    with a_good_client(worker), CoordinatorClient(f"127.0.0.1:{worker.http_port}") as client:
        body = encode({"pipelines": {f"p{number}": ["source"] for number in range(130_000)}})
        assert len(body) > 2 * MIB
        with pytest.raises(LimitExceeded, match="longer than 1048576 bytes"):
            client._ask("POST", "/starting", body)


def test_a_merge_may_be_larger(worker: WorkerProcess) -> None:
    staged = [{"port": "out", "segment": f"staging/none/{number}", "length": 1} for number in range(40_000)]
    with a_good_client(worker), CoordinatorClient(f"127.0.0.1:{worker.http_port}") as client:
        body = encode({"batch": 0, "staged": staged})
        assert len(body) > 2 * MIB
        with pytest.raises(RequestError, match="none"):
            client._ask("POST", "/pipelines/none/merge", body)


@pytest.mark.parametrize(
    ("path", "body", "reason"),
    [
        ("/starting", {"pipelines": {f"p{n}": ["source"] for n in range(40_000)}}, "length <= 1000"),
        (
            "/pipelines/p/bind",
            {"sinks": {f"s{n}": {"port": "out", "url": f"file:/x?z{n}=1"} for n in range(18_000)}},
            "length <= 100",
        ),
        (
            "/pipelines/p/start",
            {"inputs": {f"i{n}": {"sources": ["x"], "starting": "earliest"} for n in range(15_000)}, "request": "r"},
            "length <= 100",
        ),
        ("/sources/resolve", {"sources": [f"x{n}" for n in range(90_000)], "position": "earliest"}, "length <= 1000"),
        (
            "/sources/cut",
            {"sources": [f"x{n}" for n in range(90_000)], "start": {}},
            "length <= 1000",
        ),
    ],
)
def test_a_request_names_no_more_than_the_worker_can_look_up_at_once(
    worker: WorkerProcess, path: str, body: object, reason: str
) -> None:
    """Each of them took between a second and minutes in the event loop."""
    data = encode(body)
    assert MIB // 2 < len(data) < MIB
    with (
        a_good_client(worker),
        CoordinatorClient(f"127.0.0.1:{worker.http_port}") as client,
        pytest.raises(RequestError, match=reason),
    ):
        client._ask("POST", path, data)


def test_a_deployment_has_a_limited_number_of_artefacts(worker: WorkerProcess) -> None:
    one = {"instance": "01", "type": "metronome", "config": {"interval": "1s"}}
    connectors = {f"c{n}": {"name": f"c{n}", "id": f"c{n}", **one} for n in range(5000)}
    body = encode({"deployment": {"connectors": connectors, "pipelines": {}, "links": []}})
    assert len(body) < MIB
    with (
        a_good_client(worker),
        CoordinatorClient(f"127.0.0.1:{worker.http_port}") as client,
        pytest.raises(RequestError, match="5000 connectors; the limit is 1000"),
    ):
        client._ask("PUT", "/application", body)


REFUSED = 2 * REFUSALS_AT_ONCE
REFUSED_SECONDS_MIN = (REFUSED - 1 - REFUSALS_AT_ONCE) / REFUSALS_PER_SECOND


def test_strangers_ask_the_http_port_no_faster_than_they_are_refused(worker: WorkerProcess) -> None:
    request = b"GET /status HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with a_good_client(worker), closing(socket.create_connection(("127.0.0.1", worker.http_port), 60)) as stranger:
        start, refused = time.monotonic(), 0
        while refused < REFUSED:
            stranger.sendall(request)
            refused += stranger.recv(65536).count(b"HTTP/1.1 401")
    assert time.monotonic() - start > REFUSED_SECONDS_MIN


def test_strangers_ask_the_segment_port_no_faster_than_they_are_refused(worker: WorkerProcess) -> None:
    requests = VERSIONED.encode(SegmentHello(17, 5)) + VERSIONED.encode(GetSegmentInfo("good", "wrong")) * REFUSED
    with a_good_client(worker), closing(socket.create_connection(("127.0.0.1", worker.segment_port), 60)) as stranger:
        start, decoder, refused = time.monotonic(), Decoder(Role.CLIENT), 0
        stranger.sendall(requests)
        while refused < REFUSED:
            refused += sum(isinstance(one, AuthTokenCheckFailed) for one in decoder.feed(stranger.recv(65536)))
    assert time.monotonic() - start > REFUSED_SECONDS_MIN


def test_unfinished_bodies_occupy_bounded_memory(worker: WorkerProcess) -> None:
    """Twenty of a merge's size, which never end."""
    before, attackers = _resident_bytes(worker), []
    head = (
        b"POST /pipelines/p/merge HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" + _authorization()
    )
    head += b"Content-Length: %d\r\n\r\n" % (60 * MIB)
    with a_good_client(worker):
        for _ in range(20):
            one = socket.create_connection(("127.0.0.1", worker.http_port), 60)
            attackers.append(one)
            with suppress(OSError):  # refused: too many are being received
                one.sendall(head)
                for _ in range(30):
                    one.sendall(bytes(MIB))
        assert _resident_bytes(worker) - before < 300 * MIB, "600 MiB were sent"
        for one in attackers:
            one.close()


def _authorization() -> bytes:
    file = os.environ.get("PENSTOCK_TOKEN_FILE")
    return b"Authorization: Bearer %s\r\n" % Path(file).read_bytes().strip() if file else b""


def _resident_bytes(worker: WorkerProcess) -> int:
    with CoordinatorClient(f"127.0.0.1:{worker.http_port}") as client:
        status = Path(f"/proc/{client.status().pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) * 1024
