"""The worker that is attacked: a process with principals, canaries that none of them may change, and its invariants."""

import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from penstock.access.file import AccessFile, StoredGrant, create_private_directory
from penstock.client.coordinator import CoordinatorClient, InputSpec
from penstock.client.coordinator.client import ApplicationClient
from penstock.client.segments import SegmentClient
from penstock.client.source import Source
from penstock.core.errors import PenstockError
from penstock.protocol.api.deployment import ConnectorSpec, Deployment
from tests.support import http
from tests.support.tokens import TOKEN
from tests.support.waiting import until
from tests.support.worker_nursery import Forked, nursery
from tests.support.worker_process import WorkerProcess

MIB = 1 << 20

COOKIE = "a-cookie-that-only-good-programs-know"
CANARY = "canary"
"""The canary source and pipeline have this name, and the names of their segments contain it."""
FORGED = "0000-forged"
"""Hostile texts contain line breaks followed by this: no line of the log may start with it."""

GROWTH_BYTES_MAX = 768 * MIB
"""Of the worker's resident memory over what it has when the attacks begin: its budgets for events of sources in flight
(256 MiB), for appends that are not durable (128 MiB) and for HTTP bodies (128 MiB), which a slow disk can fill all at
once, and half as much again for connections and for what bodies are decoded to.
"""
LOG_BYTES_MAX = MIB
LOG_BYTES_PER_SECOND_MAX = 64 << 10
"""What may be logged at once, and for as long as the worker is attacked."""

_CONNECTOR = "deployed-canary"
_GRANTS = {
    "reader": StoredGrant("reader", "read"),
    "tenant": StoredGrant("tenant", "deploy", ["fuzz"], quota_bytes=16 * MIB),
    "good": StoredGrant("good", "write", ["good"]),
}
_RESET_PEAK = "5"
_TRACEBACK = b"Traceback (most recent call last)"
_SECONDS_MAX = 60.0


class Process(WorkerProcess):
    """Its log goes into a file, and relative paths lead into its directory."""

    def __init__(self, directory: Path, *options: str) -> None:
        super().__init__(directory / "data", *options)
        self.log = directory / "worker.log"

    def _command(self) -> Forked:
        with self.log.open("ab") as log:
            return nursery().start(self._arguments(), stderr=log.fileno(), cwd=self.log.parent)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid


@dataclass(frozen=True, slots=True)
class Ports:
    http: int
    segment: int
    connector: int


class Target:
    """`tokens`: of each principal by its name; `nobody` has none."""

    def __init__(self, worker: Process, tokens: dict[str, str]) -> None:
        self.tokens = tokens
        self.ports = Ports(worker.http_port, worker.segment_port, worker.connector_port)
        self._worker = worker
        self._good_events = 0
        self._checked_bytes = 0
        self._checked_at = time.monotonic()
        self._make_canaries()
        self.append_and_read()
        self._resident_bytes = self._peak_bytes()
        self._canaries = self.canaries()

    def good_client(self) -> SegmentClient:
        return SegmentClient(self._worker.address, token=self.tokens["good"], timeout_seconds=_SECONDS_MAX / 4)

    def good_source(self, name: str) -> Source:
        return Source(f"127.0.0.1:{self.ports.connector}", source=name, cookie=self.tokens["good"].encode())

    # Canaries.

    def _make_canaries(self) -> None:
        source = Source(f"127.0.0.1:{self.ports.connector}", source=CANARY, cookie=COOKIE.encode())
        source.stream("stream", lambda after: iter([(n, b"event %d" % n) for n in range(1, 11) if n > (after or 0)]))
        source.run()
        with self._owner() as client, client.appender(f"{CANARY}/segment", create=True) as appender:
            appender.append_many(b"event %d" % n for n in range(10))
        with CoordinatorClient(f"127.0.0.1:{self.ports.http}") as coordinator:
            started = coordinator.start(CANARY, {"in": InputSpec([CANARY])}, ["out"])
            coordinator.heartbeat(CANARY, started.generation, stopped=True)
        self.deploy_canary()

    def deploy_canary(self) -> None:
        """The owner may deploy something else: after attacks in its name, the canary is deployed again."""
        connector = ConnectorSpec(name=_CONNECTOR, id=_CONNECTOR, instance="01", type="null")
        with ApplicationClient(f"127.0.0.1:{self.ports.http}") as client:
            client.apply(Deployment(connectors={_CONNECTOR: connector}), _CONNECTOR)

    def canaries(self) -> dict[str, object]:
        """All that nobody but the owner may change, byte for byte."""
        found: dict[str, object] = {}
        for prefix in (CANARY, f"connector/{CANARY}", f"pipeline/{CANARY}", f"staging/{CANARY}"):
            for info in http.get(self.ports.http, f"/segments?prefix={quote(prefix)}")["segments"]:
                found[info["name"]] = (info, self._bytes(info["name"], info["start"], info["length"]))
        found["pipeline"] = [_lasting(one) for one in self._get("/pipelines")["pipelines"] if one["name"] == CANARY]
        found["pipeline's input"] = self._get(f"/pipelines/{CANARY}/input")
        found["application"] = self._get("/application")["deployment"]
        return found

    def _bytes(self, name: str, start: int, end: int) -> bytes:
        data = bytearray()
        with self._owner() as client:
            while start + len(data) < end:
                data += client.read(name, start + len(data), end - start - len(data), wait=False).data
        return bytes(data)

    def _owner(self) -> SegmentClient:
        return SegmentClient(self._worker.address, token=TOKEN, timeout_seconds=_SECONDS_MAX / 4)

    def _get(self, path: str) -> Any:
        return http.get(self.ports.http, path)

    # Invariants.

    def check(self) -> None:
        """Fails with a sentence about what does not hold."""
        self.check_alive()
        self.append_and_read()
        peak = self._peak_bytes() - self._resident_bytes
        assert peak <= GROWTH_BYTES_MAX, f"the worker's memory grew by {peak / MIB:.0f} MiB"
        self.check_log()
        now = self.canaries()
        changed = [name for name in now.keys() | self._canaries if now.get(name) != self._canaries.get(name)]
        shown = [f"{name}: {self._canaries.get(name)!r} is now {now.get(name)!r}"[:2000] for name in changed]
        assert not changed, "\n".join(["a canary has changed", *shown])

    def check_alive(self) -> None:
        assert self._worker.is_running, f"the worker has ended:\n{self._log()[-3000:].decode(errors='replace')}"
        seen: list[object] = []

        def is_healthy() -> bool:
            seen[:] = [self._health()]
            return seen == [(200, b'{"ok":true,"problems":[]}\n')]

        until(is_healthy, lambda: f"/health answers {seen}", _SECONDS_MAX)

    def _health(self) -> object:
        try:
            return http.ask(self.ports.http, "GET", "/health", token=None)
        except OSError as error:
            return error

    def check_log(self) -> None:
        """What was logged since the last time."""
        text, seconds = self._log()[self._checked_bytes :], time.monotonic() - self._checked_at
        self._checked_bytes, self._checked_at = self._checked_bytes + len(text), self._checked_at + seconds
        for name, secret in {**self.tokens, "cookie": COOKIE}.items():
            assert not secret or secret.encode() not in text, f"the log contains a secret: {name}"
        forged = re.findall(rb"^.*\n" + FORGED.encode() + rb".*$", text, re.MULTILINE)
        assert not forged, f"the log has a line that a client has written: {forged[0][-500:]!r}"
        traceback = text.find(_TRACEBACK)
        assert traceback < 0, f"the log has a traceback: {text[max(traceback - 1000, 0) :][:6000].decode()}"
        most = LOG_BYTES_MAX + seconds * LOG_BYTES_PER_SECOND_MAX
        assert len(text) <= most, f"{len(text):,} bytes were logged in {seconds:.0f} s, of which the last are:\n" + (
            text[-2000:].decode(errors="replace")
        )

    def stalls(self) -> str:
        """Of the event loop, as the worker reports them. The machine can be their cause as well as the worker."""
        loop = self._get("/status")["loop"]
        lines = [line for line in self._log().decode(errors="replace").splitlines() if "event loop" in line]
        counted = f"{loop['stalls']} stalls of the event loop, the longest {loop['longest_stall_seconds']:.2f} s"
        return "\n".join([counted, *lines])

    def _log(self) -> bytes:
        return self._worker.log.read_bytes()

    def append_and_read(self) -> None:
        """As a client that knows its manners."""
        self._good_events += 1
        event = b"good event %d" % self._good_events
        try:
            with self.good_client() as client:
                with client.appender("good/events", create=True) as appender:
                    start = client.info("good/events").length
                    appender.append(event)
                    appender.flush()
                found = [one.data for one in client.events("good/events", start)]
        except PenstockError as error:
            raise AssertionError(f"a good client cannot append and read: {error}") from error
        assert found == [event], f"a good client reads {found!r} and not {event!r}"

    def _peak_bytes(self) -> int:
        """The most resident memory that it had since the last time."""
        process = Path(f"/proc/{self._worker.pid}")
        status = (process / "status").read_text()
        (process / "clear_refs").write_text(_RESET_PEAK)
        found = re.search(r"VmHWM:\s+(\d+) kB", status)
        assert found is not None, status
        return int(found[1]) << 10


def _lasting(pipeline: dict[str, Any]) -> dict[str, Any]:
    """What is stored of it, without what passes by itself."""
    stored = ("name", "incarnation", "generation", "planned", "merged", "complete", "inputs", "outputs", "is_reset")
    return {key: pipeline[key] for key in stored}


@contextmanager
def running_target(directory: Path) -> Iterator[Target]:
    """Whoever reads its canaries, the data must still be there: they are kept."""
    worker = Process(directory, "--cookie", COOKIE, "--retention", "keep")
    create_private_directory(worker.data)
    access = AccessFile(worker.data)
    tokens = {"nobody": "", **{name: access.add(grant) for name, grant in _GRANTS.items()}, "owner": TOKEN}
    with worker:
        yield Target(worker, tokens)


def as_json(target: Target) -> str:
    """For another process."""
    ports = target.ports
    return json.dumps({"ports": [ports.http, ports.segment, ports.connector], "tokens": target.tokens})
