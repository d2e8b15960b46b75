"""What an object store may do to a worker: each failure has its message, at a start and later, and nothing is lost."""

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from penstock.client.coordinator import CoordinatorClient
from penstock.testing.seaweedfs import SeaweedFS
from penstock.worker.membership import ALONE_SECONDS
from tests.spark.sending import send
from tests.support import http
from tests.support.bucket_worker import BucketWorker
from tests.support.open_stream import open_stream
from tests.support.ports import free_port
from tests.support.store_proxy import QUOTA, SLOW_DOWN, StoreProxy, store_proxy
from tests.support.waiting import SECONDS_MAX, until
from tests.worker.bucket_kills import blockage
from tests.worker.bucket_moves import sending, workers

pytestmark = pytest.mark.process

LETTERS = [b"a", b"b", b"c"]


def refused(folder: Path, url: str) -> str:
    """What a worker prints that does not start."""
    with BucketWorker.waiting(folder, url) as worker:
        assert worker.ended() == 1
        assert "Traceback" not in worker.said
        return worker.said


@pytest.fixture
def proxy(s3_url: str, seaweedfs: SeaweedFS, monkeypatch: pytest.MonkeyPatch) -> Iterator[StoreProxy]:
    """Workers that are started from now on use it. The URL is `s3_url`."""
    with store_proxy(seaweedfs.endpoint) as between:
        monkeypatch.setenv("AWS_ENDPOINT_URL", between.endpoint)
        yield between


class Sending:
    """A program that sends while the store does not work."""

    def __init__(self, worker: BucketWorker, payloads: list[bytes]) -> None:
        address = f"127.0.0.1:{worker.connector_port}"
        self._thread = threading.Thread(target=send, args=(address, "letters", "one", payloads))
        self._thread.start()

    @property
    def is_waiting(self) -> bool:
        return self._thread.is_alive()

    def finish(self) -> None:
        self._thread.join(100)
        assert not self._thread.is_alive()


class Throttle:
    """A store that throttles the log, and carries out a request now and then."""

    def __init__(self) -> None:
        self._passes = threading.Semaphore(0)
        self._passed = threading.Event()

    def refuse(self, method: str, path: str) -> tuple[int, str] | None:
        if method != "PUT" or "/log/" not in path:
            return None
        if not self._passes.acquire(blocking=False):
            return SLOW_DOWN
        self._passed.set()
        return None

    def let_one_pass(self) -> None:
        self._passed.clear()
        self._passes.release()
        assert self._passed.wait(SECONDS_MAX)


# At a start.


def test_a_bucket_that_does_not_exist_is_named(tmp_path: Path, s3_url: str) -> None:
    said = refused(tmp_path, "s3://no-such-bucket/prefix")
    assert "error: s3://no-such-bucket/prefix: the bucket does not exist" in said
    assert "hint: Create it, or check its name, region and endpoint." in said


def test_a_wrong_secret_is_reported_and_not_shown(tmp_path: Path, s3_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-the-right-one")
    said = refused(tmp_path, s3_url)
    assert f"error: {s3_url}: the store answered 403" in said
    assert "hint: Check the store's credentials" in said
    assert "not-the-right-one" not in said


def test_an_identity_that_may_not_write_is_reported(
    tmp_path: Path, s3_url: str, seaweedfs: SeaweedFS, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in seaweedfs.environment("reader").items():
        monkeypatch.setenv(name, value)
    assert f"error: {s3_url}: the store answered 403 Forbidden (AccessDenied" in refused(tmp_path, s3_url)


@pytest.mark.parametrize(
    ("header", "what"),
    [
        ("if-none-match", "overwrites an object that was to be created only (If-None-Match is ignored)"),
        ("if-match", "replaces an object that has changed in the meantime (If-Match is ignored)"),
    ],
)
def test_a_store_that_ignores_conditions_is_refused_with_what_it_does(
    tmp_path: Path, s3_url: str, proxy: StoreProxy, header: str, what: str
) -> None:
    proxy.ignores = header
    said = refused(tmp_path, s3_url)
    assert f"error: {s3_url}: the store {what}, so two workers could damage the journal" in said
    assert "hint: Use a store with conditional writes" in said


def test_a_store_in_which_nothing_may_be_deleted_is_refused(tmp_path: Path, s3_url: str, proxy: StoreProxy) -> None:
    denied = 403, "<Error><Code>AccessDenied</Code><Message>Not that.</Message></Error>"
    proxy.refuse = lambda method, path: denied if method == "DELETE" or path.endswith("?delete") else None
    assert f"error: objects must not be deleted: {s3_url}: the store answered 403" in refused(tmp_path, s3_url)


def test_a_worker_waits_for_a_store_that_is_not_up_yet_and_says_so(
    tmp_path: Path, s3_url: str, seaweedfs: SeaweedFS
) -> None:
    seaweedfs.kill()
    try:
        with BucketWorker.waiting(tmp_path, s3_url) as worker:
            until(lambda: f"waiting for the object store: {s3_url}: no connection: " in worker.said)
            seaweedfs.start()
            until(worker.has_ports, lambda: worker.said)
            assert worker.said.count("waiting for") == 1
    finally:
        seaweedfs.kill()
        seaweedfs.start()


def test_a_worker_that_waits_for_a_store_ends_by_a_signal(
    tmp_path: Path, s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    with BucketWorker.waiting(tmp_path, s3_url) as worker:
        until(lambda: "waiting for the object store" in worker.said)
        worker.stop()
        assert "stopped before it has taken over anything" in worker.said


# While it runs.


def test_a_store_that_throttles_delays_acks_and_nothing_fails(tmp_path: Path, s3_url: str, proxy: StoreProxy) -> None:
    with BucketWorker(tmp_path, s3_url) as worker:
        send(f"127.0.0.1:{worker.connector_port}", "letters", "one", LETTERS)
        proxy.refuse = lambda method, _: SLOW_DOWN if method == "PUT" else None
        sending = Sending(worker, [*LETTERS, b"d"])
        until(lambda: "503 Service Unavailable (SlowDown: Please reduce" in blockage(worker))
        assert "Penstock slows down automatically" in blockage(worker)
        assert sending.is_waiting
        proxy.refuse = lambda *_: None
        sending.finish()
        until(lambda: not blockage(worker))
        assert http.get(worker.http_port, "/status")["store"]["bucket"]["failures"]["throttled"] > 0


def test_a_program_gets_fewer_credits_while_the_store_throttles_and_gets_them_back(
    tmp_path: Path, s3_url: str, proxy: StoreProxy
) -> None:
    with BucketWorker(tmp_path, s3_url) as worker, open_stream(worker.connector_port, "letters", "one") as stream:

        def free() -> int:
            (session,) = http.get(worker.http_port, "/status")["sessions"]
            return int(session["credits"])

        begun, throttle = free(), Throttle()
        more = begun // 5
        assert more > 5
        proxy.refuse = throttle.refuse
        stream.send(1, 1)
        until(lambda: "SlowDown" in blockage(worker), lambda: blockage(worker))
        for first in range(2, 2 + 3 * more, more):
            for number in range(first, first + more):
                stream.send(number, number)
            throttle.let_one_pass()  # the group before these
            until(lambda: stream.acked() == first - 1, stream.acked)  # noqa: B023
            until(lambda: free() == begun - more, free)
        proxy.refuse = lambda *_: None
        until(lambda: stream.acked() == 1 + 3 * more)
        until(lambda: free() == begun, free)


def test_a_proxy_without_a_store_ends_no_worker(tmp_path: Path, s3_url: str, proxy: StoreProxy) -> None:
    """It answers 404 to everything, which does not mean that the lease was deleted."""
    with BucketWorker(tmp_path, s3_url) as worker:
        send(f"127.0.0.1:{worker.connector_port}", "letters", "one", LETTERS)
        proxy.refuse = lambda *_: (404, "<html>404 page not found</html>")
        until(lambda: http.get(worker.http_port, "/status")["store"]["bucket"]["lease"] == "late")
        assert "does not say what is missing" in blockage(worker)
        proxy.refuse = lambda *_: None
        until(lambda: not blockage(worker), lambda: blockage(worker))
        send(f"127.0.0.1:{worker.connector_port}", "letters", "one", [*LETTERS, b"d"])
        assert worker.is_running


@pytest.mark.parametrize(
    ("answer", "kind", "says"),
    [
        ((403, "<Error><Code>InvalidAccessKeyId</Code></Error>"), "forbidden", "Check the store's credentials"),
        (QUOTA, "full", "Raise the quota of the bucket"),
        ((404, ""), "forbidden", "Check the bucket's name and the endpoint"),
    ],
    ids=["a revoked key", "a full bucket", "a proxy without a store"],
)
def test_what_an_operator_must_change_is_named_and_everything_continues_afterwards(
    tmp_path: Path, s3_url: str, proxy: StoreProxy, answer: tuple[int, str], kind: str, says: str
) -> None:
    with BucketWorker(tmp_path, s3_url) as worker:
        send(f"127.0.0.1:{worker.connector_port}", "letters", "one", LETTERS)
        proxy.refuse = lambda method, _: answer if method == "PUT" else None
        until(lambda: http.get(worker.http_port, "/status")["store"]["bucket"]["failures"].get(kind))
        sending = Sending(worker, [*LETTERS, b"d"])
        until(lambda: says in blockage(worker), lambda: blockage(worker))
        status, body = http.ask(worker.http_port, "GET", "/health")
        assert status == 503
        assert "because of the object store" in body.decode()
        assert sending.is_waiting
        proxy.refuse = lambda *_: None
        sending.finish()
        until(lambda: not blockage(worker))


def test_credentials_are_in_no_argument_status_or_log(
    tmp_path: Path, s3_url: str, proxy: StoreProxy, seaweedfs: SeaweedFS
) -> None:
    environment = seaweedfs.environment()
    secrets = [environment["AWS_ACCESS_KEY_ID"], environment["AWS_SECRET_ACCESS_KEY"]]
    with BucketWorker(tmp_path, s3_url, "--log-level", "debug") as worker:
        proxy.refuse = lambda method, _: (403, "<Error><Code>SignatureDoesNotMatch</Code></Error>")
        until(lambda: "SignatureDoesNotMatch" in blockage(worker))
        with CoordinatorClient(f"127.0.0.1:{worker.http_port}") as client:
            shown = [json.dumps(http.get(worker.http_port, "/status")), str(client.status()), worker.said]
        shown += [
            http.ask(worker.http_port, "GET", "/metrics")[1].decode(),
            http.ask(worker.http_port, "GET", "/health")[1].decode(),
        ]
        shown.append(Path(f"/proc/{worker.pid}/cmdline").read_text())
        shown += [file.read_text(errors="replace") for file in worker.data.rglob("*") if file.is_file()]
        proxy.refuse = lambda *_: None
        assert [secret for secret in secrets for text in shown if secret in text] == []


def test_sources_find_the_successor_of_a_worker_that_is_cut_off_from_the_store(
    tmp_path: Path, s3_url: str, proxy: StoreProxy, seaweedfs: SeaweedFS
) -> None:
    """The worker itself is well and lets them in again, and cannot know that there is a successor."""
    with workers(tmp_path, s3_url, 2, others={"AWS_ENDPOINT_URL": seaweedfs.endpoint}) as two:
        cut_off, successor = two.all
        with sending(two.seeds, 3) as program:
            proxy.cut()
            until(lambda: "the lease cannot be renewed, so sources are disconnected" in blockage(cut_off))
            until(successor.has_ports, lambda: successor.said)
            program.wait_for_acks()
            assert "background task" not in cut_off.said
            proxy.reconnect()
            assert cut_off.ended() == 1
            assert f"worker {two.names[successor]} has taken over" in cut_off.said
            successor.read_ports()
            program.check(successor)


# What it costs.


def test_an_idle_worker_makes_at_most_one_put_and_one_get_in_two_seconds_as_the_store_counts_them(
    tmp_path: Path, s3_url: str, proxy: StoreProxy
) -> None:
    with BucketWorker(tmp_path, s3_url) as worker:
        send(f"127.0.0.1:{worker.connector_port}", "letters", "one", LETTERS)
        until(lambda: _idle(worker, proxy).seconds > 15)  # orphans and records of dead workers are looked for at first
        until(lambda: _has_idled(worker, proxy))


ALONE_SHARDS = 2


@pytest.mark.slow
def test_a_lone_worker_with_two_shards_costs_what_the_cost_model_says_as_the_store_counts_it(
    tmp_path: Path, s3_url: str, proxy: StoreProxy
) -> None:
    """The default on a machine with two cores: a host, and a process for each shard. Asking it would cost requests."""
    with BucketWorker(tmp_path, s3_url, "--shards", str(ALONE_SHARDS)):
        _wait(ALONE_SECONDS + 10)
        until(lambda: _costs_what_is_documented(proxy), seconds=4 * SECONDS_MAX)


def _wait(seconds: float) -> float:
    """Returns how long it was."""
    began = time.monotonic()
    until(lambda: time.monotonic() - began > seconds, seconds=2 * seconds)
    return time.monotonic() - began


def _costs_what_is_documented(proxy: StoreProxy) -> bool:
    """See docs/bucket.md. False if the machine is too busy: then requests are repeated, or come late."""
    before = Counter(proxy.requests)
    hours = _wait(12) / 3600
    made, n = Counter(proxy.requests) - before, ALONE_SHARDS
    per_hour = {"PUT": 1800 * (n + 1), "GET": 1500 * n + 1920 + 600}  # a list request is a GET, too
    return set(made) == {*per_hour} and all(made[kind] <= per_hour[kind] * hours + n + 2 for kind in per_hour)


class _Idle(NamedTuple):
    seconds: float
    failures: int
    made: Counter[str]


def _idle(worker: BucketWorker, proxy: StoreProxy) -> _Idle:
    status = http.get(worker.http_port, "/status")
    return _Idle(status["uptime_seconds"], sum(status["store"]["bucket"]["failures"].values()), Counter(proxy.requests))


def _has_idled(worker: BucketWorker, proxy: StoreProxy) -> bool:
    """For ten seconds. False if a request has failed meanwhile, and was repeated: the machine is too busy."""
    before = _idle(worker, proxy)
    until(lambda: _idle(worker, proxy).seconds > before.seconds + 10)
    after = _idle(worker, proxy)
    if after.failures > before.failures:
        return False
    made, allowed = after.made - before.made, (after.seconds - before.seconds) / 2 + 2  # both ends
    assert made["PUT"] <= allowed
    assert made["GET"] <= allowed
    assert set(made) <= {"PUT", "GET"}
    return True
