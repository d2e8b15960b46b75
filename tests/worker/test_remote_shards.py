"""A pipeline reads sources of two shards, in processes of their own that are killed and move."""

import json
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from penstock.client.coordinator import CoordinatorClient, Cut, InputOffset, InputSpec, Limits, Staged
from penstock.client.segments import SegmentClient
from penstock.core.errors import PenstockError, Unavailable
from penstock.protocol.stored import parse_event
from tests.spark.sending import send
from tests.support.shard_process import ShardProcess, ShardProcesses
from tests.support.waiting import SECONDS_MAX

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

PLACES = {"a": 0, "b": 1, "pipeline:copy/out": 0, "pipeline:copy/err": 0, "pipeline:copy/late": 0}
COUNT = 300


class Driver:
    """Copies the payloads of all events to the output; survives its worker's restarts, as Spark's does by its own."""

    def __init__(self, home: ShardProcess, sources: list[str]) -> None:
        self._home = home
        self._sources = sources
        self._offsets: list[tuple[InputOffset, Cut]] = []
        self._generation = 0
        self.watermark: int | None = None
        self.is_over = threading.Event()

    def run(self) -> None:
        """Until `is_over`; an epoch that has failed is run again, with the same offsets."""
        while not self.is_over.is_set():
            try:
                self._session()
            except (PenstockError, OSError):
                time.sleep(0.05)

    def _session(self) -> None:
        with closing(CoordinatorClient(self._home.http, 5)) as coordinator:
            if not self._generation:
                inputs = {"in": InputSpec(self._sources)}
                self._generation = coordinator.start("copy", inputs, ["out"], request="the only one").generation
            while not self.is_over.is_set():
                self._epoch(coordinator)

    def _epoch(self, coordinator: CoordinatorClient) -> None:
        number = len(self._offsets)
        start = self._offsets[-1][1].offset if self._offsets else coordinator.initial("copy", self._generation, "in")
        limits = Limits(bytes=2000)
        found = coordinator.cut("copy", self._generation, "in", start, wait_ms=200, limits=limits)
        if found.offset == start:
            return
        staged = self._stage(coordinator, number, start, found)
        coordinator.merge("copy", number, [staged], generation=self._generation)
        self._offsets.append((start, found))
        self.watermark = found.offset.watermark

    def _stage(self, coordinator: CoordinatorClient, number: int, start: InputOffset, found: Cut) -> Staged:
        name = f"staging/copy/{self._generation}/{number}/0-{time.monotonic_ns()}/out"
        with SegmentClient(self._home.segment, retry_seconds=5) as own:
            with own.appender(name, create=True) as appender:
                for segment, end in found.offset.segments.items():
                    at = start.segments.get(segment, 0)
                    for payload in self._read(coordinator, segment, at, end):
                        appender.append(payload)
            return Staged("out", name, own.info(name).length)

    def _read(self, coordinator: CoordinatorClient, segment: str, start: int, end: int) -> list[bytes]:
        if start >= end:
            return []
        address = self._home.segment
        if segment in (workers := coordinator.places([segment])):
            with closing(CoordinatorClient(workers[segment], 0)) as other:
                address = f"127.0.0.1:{other.status().ports['segment']}"
        found = []
        with SegmentClient(address, retry_seconds=0) as client:
            for event in client.events(segment, start):
                if event.offset >= end:
                    break
                parsed = parse_event(event.data)
                if parsed is not None and parsed.payload:
                    found.append(bytes(parsed.payload))
        return found


def output(home: ShardProcess) -> list[bytes]:
    with SegmentClient(home.segment) as client:
        return [bytes(event.data) for event in client.events("pipeline/copy/out")]


def payloads(source: str) -> list[bytes]:
    return [b"%s %d" % (source.encode(), number) for number in range(COUNT)]


def test_every_event_of_both_shards_is_read_once_although_both_are_killed_and_move(tmp_path: Path) -> None:
    with ShardProcesses(tmp_path, PLACES) as (home, other):
        driver = Driver(home, ["a", "b"])
        copying = threading.Thread(target=driver.run)
        copying.start()
        try:
            _wait(lambda: _is_running(home))
            sending = [
                threading.Thread(target=send, args=(one.connector, source, "s", payloads(source)))
                for one, source in ((home, "a"), (other, "b"))
            ]
            for one in sending:
                one.start()
            for killed in (other, home, other):
                before = len(output(home))
                _wait(lambda before=before: len(output(home)) > before or not sending[1].is_alive())
                killed.kill()
                killed.start()
            for one in sending:  # they return when all is acknowledged, by the pipeline
                one.join(SECONDS_MAX)
                assert not one.is_alive()
            found = output(home)
            _wait(lambda: driver.watermark is not None)
        finally:
            driver.is_over.set()
            copying.join()
    assert Counter(found) == Counter(payloads("a") + payloads("b")), "acknowledged, so all of it is in the output"
    for source in ("a", "b"):
        assert [one for one in found if one.startswith(source.encode())] == payloads(source), "in order"


def test_other_shards_authenticate_with_the_clusters_secret(tmp_path: Path) -> None:
    with ShardProcesses(tmp_path, {"a": 0}) as (only,):
        body = json.dumps({"home": 1, "source": "a", "after": {}, "bytes_max": 1000}).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"http://{only.http}/shard/follow", body, headers)
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request)
        with refused.value as reply:
            assert reply.code == 403
        headers["Authorization"] = "Bearer the secret of the cluster"
        request = urllib.request.Request(f"http://{only.http}/shard/follow", body, headers)
        with urllib.request.urlopen(request) as answer:
            assert json.load(answer)["segments"] == {}


def _is_running(home: ShardProcess) -> bool:
    try:
        with closing(CoordinatorClient(home.http, 0)) as coordinator:
            return bool(coordinator.pipelines())
    except Unavailable:
        return False


def _wait(condition: object) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.02)
