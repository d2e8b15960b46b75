"""A pipeline without Spark: what the driver and the tasks of a passthrough would do, in a thread."""

import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import msgpack

from penstock.client.coordinator import CoordinatorClient, InputOffset, InputSpec, SinkSpec, Staged, Started
from penstock.client.segments import SegmentClient
from penstock.core.errors import Fenced, Unavailable
from penstock.protocol.api.deployment import Deployment
from penstock.protocol.stored import StoredEvent, parse_event
from penstock.protocol.stored.event import NO_TIME

WAIT_MS = 50
AWAY_SECONDS = 60


class StandIn:
    """Passes what comes from connectors on to the port `out`, with its origin. It outlives its worker. `offset` is what
    Spark's checkpoint would know.
    """

    def __init__(self, http: str, segments: str, name: str, deployment: Deployment) -> None:
        self._coordinator = CoordinatorClient(http, AWAY_SECONDS)
        self._segments = SegmentClient(segments, retry_seconds=AWAY_SECONDS)
        self._name = name
        self._sources = [end.source for ends in deployment.inputs(name).values() for end in ends]
        self._coordinator.bind(name, sinks_of(deployment, name))
        self._started: Started = self._coordinator.start(
            name, {"in": InputSpec(self._sources)}, ["out", "err", "late"], fresh=True
        )
        self._at: InputOffset = self._coordinator.initial(name, self._started.generation, "in")
        self.works = threading.Event()
        """Cleared: it asks for nothing, as a driver that is busy elsewhere."""
        self.works.set()
        self._is_over = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"stand-in for {name}")
        self._thread.start()

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join(AWAY_SECONDS)
        self._segments.close()
        self._coordinator.close()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            while not self._is_over.is_set():
                if self.works.wait(WAIT_MS / 1000):
                    self._batch()
            self._coordinator.heartbeat(self._name, self._started.generation, stopped=True)
        except (Unavailable, Fenced):
            return
        except BaseException as error:
            self._error = error

    def _batch(self) -> None:
        generation = self._started.generation
        self._coordinator.heartbeat(self._name, generation)
        cut = self._coordinator.cut(self._name, generation, "in", self._at, wait_ms=WAIT_MS).offset
        if cut == self._at:
            return
        assert cut.epoch is not None
        staged = self._stage(cut)
        self._coordinator.merge(self._name, cut.epoch, staged, generation=generation)
        self._at = cut

    def _stage(self, cut: InputOffset) -> list[Staged]:
        assert cut.epoch is not None
        name = f"staging/{self._name}/{self._started.generation}/{cut.epoch}/0-{threading.get_ident()}/out"
        rows = [row for segment, end in sorted(cut.segments.items()) for row in self._rows(segment, end)]
        if not rows:
            return []
        with self._segments.appender(name, create=True) as appender:
            for row in rows:
                appender.append(row)
        return [Staged("out", name, self._segments.info(name).length)]

    def _rows(self, segment: str, end: int) -> Iterator[bytes]:
        source = segment.split("/")[1]
        start = self._at.segments.get(segment, 0)
        if start >= end:
            return
        for event in self._segments.events(segment, start):
            if event.offset >= end:
                return
            stored = parse_event(event.data)
            if stored is not None:
                yield _row(source, stored)


def sinks_of(deployment: Deployment, pipeline: str) -> dict[str, SinkSpec]:
    names = deployment.sink_names(pipeline)
    return {sink: SinkSpec(port, to) for sink, (port, to) in names.items()}


def _row(source: str, event: StoredEvent) -> bytes:
    """As the sink of Spark stores it: with its source in the metadata."""
    time = NO_TIME if event.event_time is None else event.event_time
    metadata = msgpack.packb({**event.metadata, "source": source})
    head = struct.pack(">QQq", event.stream_id, event.event_id, time)
    return head + _short(event.key) + _short(metadata) + event.payload


def _short(data: bytes) -> bytes:
    return struct.pack(">H", len(data)) + data


@contextmanager
def standing_in(http: str, segments: str, deployment: Deployment) -> Iterator[dict[str, StandIn]]:
    """For all pipelines of the deployment."""
    running: dict[str, StandIn] = {}
    try:
        for name in deployment.pipelines:
            running[name] = StandIn(http, segments, name, deployment)
        yield running
    finally:
        for one in running.values():
            one.stop()
