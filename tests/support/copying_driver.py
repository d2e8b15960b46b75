"""A pipeline's driver without Spark: it copies what it reads, epoch by epoch, to the pipeline's output."""

import threading
import time
from contextlib import closing
from typing import Protocol

from penstock.client.coordinator import CoordinatorClient, Cut, InputOffset, InputSpec, Limits, Staged
from penstock.client.segments import SegmentClient
from penstock.core.errors import PenstockError
from penstock.protocol.stored import parse_event


class Home(Protocol):
    """The process that serves the pipeline's shard. Its ports change when it is killed."""

    @property
    def http(self) -> str: ...

    @property
    def segment(self) -> str: ...


class Driver:
    """Copies the payloads of all events to the output; survives its worker's restarts, as Spark's does by its own."""

    def __init__(self, home: Home, sources: list[str]) -> None:
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
