"""Watermarks, idle streams and ends are what they were when the worker is killed."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.client.coordinator import CoordinatorClient, InputOffset, InputSpec, Limits, LoadState
from penstock.client.segments import SegmentClient
from penstock.core.types import NO_EPOCH
from penstock.protocol.stored.event import END_OF_TIME, parse_event
from tests.support.open_stream import open_stream
from tests.support.waiting import SECONDS_MAX
from tests.support.worker_process import WorkerProcess

pytestmark = pytest.mark.process

TIMEOUT_SECONDS = 2.0
SECOND = 1_000_000


@pytest.fixture
def process(tmp_path: Path) -> Iterator[WorkerProcess]:
    options = ("--max-disorder=2s", f"--idle-timeout=s={TIMEOUT_SECONDS}s", "--retention=keep")
    with WorkerProcess(tmp_path, *options) as running:
        yield running


class Reader:
    """A pipeline over source `s`, as Spark's driver drives it."""

    def __init__(
        self,
        process: WorkerProcess,
        name: str,
        limits: Limits | None = None,
        *,
        source: str = "s",
        state: LoadState | None = None,
    ) -> None:
        self._process = process
        self._name = name
        self._limits = limits
        self._state = state
        with self._client() as client:
            self.generation = client.start(name, {"in": InputSpec([source])}, []).generation
            self.at = client.initial(name, self.generation, "in")

    def _client(self) -> CoordinatorClient:
        return CoordinatorClient(f"127.0.0.1:{self._process.http_port}", 20)

    def cut(self, start: InputOffset | None = None) -> InputOffset:
        with self._client() as client:
            asked = self.at if start is None else start
            cut = client.cut(self._name, self.generation, "in", asked, limits=self._limits, state=self._state)
            return cut.offset

    def read(self) -> int | None:
        """Up to the end of what is there now; the watermark there."""
        while (found := self.cut()) != self.at:
            self.before, self.at = self.at, found
        return self.at.watermark

    def wait_for(self, watermark: int) -> None:
        deadline = time.monotonic() + SECONDS_MAX
        while self.read() != watermark:
            assert time.monotonic() < deadline, self.at
            time.sleep(0.05)


def killed(process: WorkerProcess) -> None:
    process.kill()
    process.start()


def declared(process: WorkerProcess, time_us: int, stream: str, after: int | None = None) -> None:
    with CoordinatorClient(f"127.0.0.1:{process.http_port}", 20) as client:
        client.declare_watermark("s", time_us, stream, after=after)


def test_a_killed_worker_continues_with_the_same_watermarks(process: WorkerProcess) -> None:
    first = Reader(process, "first")
    with (
        open_stream(process.connector_port, "s", "a") as a,
        open_stream(process.connector_port, "s", "b") as b,
    ):
        a.send(1, 10_000)
        b.send(1, 4_000)
        first.wait_for(2 * SECOND)
        start = first.at
        killed(process)
    began = time.monotonic()
    assert first.cut() == start, "nothing has happened"
    first.wait_for(8 * SECOND)
    assert time.monotonic() - began > TIMEOUT_SECONDS * 0.9, "the clock has started again: nobody is idle before"
    killed(process)
    assert first.cut() == first.at
    with open_stream(process.connector_port, "s", "b") as b:
        b.send(2, 11_000)
        first.wait_for(9 * SECOND)
        declared(process, 20 * SECOND, "b", after=2)
        killed(process)
    assert first.read() == 20 * SECOND, "what was declared is durable when it is answered"
    with CoordinatorClient(f"127.0.0.1:{process.http_port}", 20) as client:
        client.end_source("s")
    killed(process)
    assert first.read() == END_OF_TIME
    _check_from_the_beginning(process)


def _check_from_the_beginning(process: WorkerProcess) -> None:
    assert _read_again(process, "s") == [2 * SECOND, 8 * SECOND, 9 * SECOND, 20 * SECOND, END_OF_TIME]


def _read_again(process: WorkerProcess, source: str) -> list[int]:
    """One that reads all of it, a record at a time, sees the watermark of its own place, also when it asks again. Gives
    those that it has seen.
    """
    late = Reader(process, f"late-{source}", Limits(bytes=1), source=source)
    offsets = [late.at]
    while (found := late.cut()) != late.at:
        late.at = found
        offsets.append(found)
        if len(offsets) == 4:
            killed(process)
    again = [late.cut(offset) for offset in offsets[:-1]]
    assert again == offsets[1:]
    return [*dict.fromkeys(offset.watermark for offset in offsets if offset.watermark is not None)]


def test_the_clock_of_a_killed_worker_continues_and_no_event_comes_that_is_behind_it(tmp_path: Path) -> None:
    options = ("--event-time-ingest", "--retention=keep")
    with WorkerProcess(tmp_path, *options) as process:
        reader = Reader(process, "windows", source="t", state="unreported")
        with (
            open_stream(process.connector_port, "t", "silent"),
            open_stream(process.connector_port, "t", "a") as a,
        ):
            assert reader.read() is None
            a.send(1, 0)
            first, start = _next_watermark(reader, process, None), reader.before
            killed(process)
        assert reader.cut(start) == reader.at, "the same cut has the same watermark"
        second = _next_watermark(reader, process, first)
        with open_stream(process.connector_port, "t", "b") as b:
            b.send(1, 0)
            third = _next_watermark(reader, process, second)
            killed(process)
        reader.read()
        assert _event_times(process, "t")[-1] >= second, "it came behind that mark"
        seen = _read_again(process, "t")
        assert seen == sorted(seen)
        assert {first, second, third} <= {*seen}


def _next_watermark(reader: Reader, process: WorkerProcess, before: int | None) -> int:
    """As a pipeline whose operators hold something has it when it completes its epochs."""
    deadline = time.monotonic() + 60
    while (found := reader.read()) in (None, before):
        assert time.monotonic() < deadline, reader.at
        if reader.at.epoch is not None and reader.at.epoch > NO_EPOCH:
            with CoordinatorClient(f"127.0.0.1:{process.http_port}", 20) as client:
                client.complete("windows", reader.generation, reader.at.epoch)
        time.sleep(0.05)
    assert found is not None
    return found


def _event_times(process: WorkerProcess, source: str) -> list[int]:
    """In order."""
    with SegmentClient(process.address) as client:
        data = [bytes(event.data) for route in range(2) for event in client.events(f"connector/{source}/{route}")]
    events = [event for each in data if (event := parse_event(each)) is not None]
    return sorted(event.event_time or 0 for event in events)
