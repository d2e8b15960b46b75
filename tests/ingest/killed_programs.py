"""Programs that send without pause, while they or the worker are killed; and what must be true then: every acknowledged
message is stored, and every stored message once and in order.
"""

import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from penstock.client.coordinator import CoordinatorClient
from penstock.client.segments import SegmentClient
from penstock.core.errors import NoSuchSegment
from penstock.protocol.api.pipelines import InputOffset, InputSpec
from tests.ingest.source_program import Acked, payload, stream_ids
from tests.ingest.stored_events import StoredEvent, parse_data
from tests.support.waiting import SECONDS_MAX

STREAMS = 10
INSTANCES = ("first", "second", "held")
HELD = "held"
"""The source that the pipeline reads."""


class Program:
    """A source in a process of its own, which can be killed and started again."""

    def __init__(self, instance: str, port: int, directory: Path, seed: int) -> None:
        self.instance = instance
        self.acked = Acked(log := directory / f"{instance}.log")
        self.stop_file = directory / "stop"
        self.streams = stream_ids(instance, STREAMS)
        self._arguments = [str(port), instance, str(log), str(STREAMS), str(self.stop_file), str(seed)]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen([sys.executable, "-m", "tests.ingest.source_program", *self._arguments])

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Whoever reads what it sends could otherwise fall behind for good."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def check(self) -> None:
        assert self._process is not None
        assert self._process.poll() is None, "the program found that something was lost"

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def finish(self, meanwhile: Callable[[], object]) -> int:
        assert self._process is not None
        deadline = time.monotonic() + SECONDS_MAX
        while (code := self._process.poll()) is None:
            assert time.monotonic() < deadline, f"{self.instance} does not end"
            meanwhile()
        self._process = None
        return code


def segments_of(instance: str) -> list[str]:
    return [f"connector/{instance}/{route}" for route in (0, 1)]


class Stored:
    """What the segments contain. Checks that each stream has the messages 1, 2, 3, …, each once."""

    def __init__(self, address: str) -> None:
        self._address = address
        self.last: defaultdict[int, int] = defaultdict(int)
        self.ends: dict[str, int] = {}
        self.places: dict[tuple[int, int], tuple[str, int]] = {}
        """Of each message, its segment, and where it ends there."""

    def look(self, instances: tuple[str, ...] = INSTANCES) -> None:
        """Read what was added since the last call."""
        with SegmentClient(self._address) as client:
            for segment in (segment for instance in instances for segment in segments_of(instance)):
                for event in client.events(segment, self.ends.get(segment, 0)):
                    self.ends[segment] = event.end
                    if event.data:
                        stored = parse_data(bytes(event.data))
                        self._next(stored)
                        self.places[stored.stream_id, stored.event_id] = segment, event.end

    def _next(self, event: StoredEvent) -> None:
        assert event.event_id == self.last[event.stream_id] + 1, f"stream {event.stream_id}"
        assert event.payload == payload(event.stream_id, event.event_id)
        assert event.event_time == event.event_id * 1000
        self.last[event.stream_id] = event.event_id

    def check_holds(self, acked: dict[int, int]) -> None:
        for stream_id, last_id in acked.items():
            assert self.last[stream_id] >= last_id, f"stream {stream_id}: acknowledged, and not there"

    def check_completed(self, acked: dict[int, int], completed: Mapping[str, int]) -> None:
        """Check that all these messages are before these offsets."""
        for message in acked.items():
            segment, end = self.places[message]
            assert end <= completed[segment], f"stream {message[0]}: acknowledged, and not complete"


class Pipeline:
    """A pipeline on one of the sources, which completes what was looked at, a cut at a time. Retention then gives that
    up, so the source's segments are truncated now and then.
    """

    def __init__(self, source: str, stored: Stored) -> None:
        self._source = source
        self._stored = stored
        self._client: CoordinatorClient | None = None
        self._offset: InputOffset | None = None
        self.completed: Mapping[str, int] = {}
        """What it may have completed: it has said so, or tried to."""

    def start(self, http_port: int) -> None:
        """Start, or start again at another worker, with what it knows, as if from a checkpoint."""
        self.close()
        self._client = CoordinatorClient(f"127.0.0.1:{http_port}")
        inputs = {"in": InputSpec([self._source])}
        self._generation = self._client.start("pipeline", inputs, [], fresh=self._offset is None).generation
        if self._offset is None:
            self._offset = self._client.initial("pipeline", self._generation, "in")

    def close(self) -> None:
        if self._client is not None:
            self._client.close()

    def step(self) -> None:
        assert self._client is not None
        assert self._offset is not None
        with suppress(NoSuchSegment):  # its program has not come yet
            self._stored.look((self._source,))
        upto = {s: self._stored.ends.get(s, 0) for s in segments_of(self._source)}
        cut = self._client.cut("pipeline", self._generation, "in", self._offset, upto=upto, wait_ms=20).offset
        if cut.epoch != self._offset.epoch:
            assert cut.epoch is not None
            self.completed = cut.segments
            self._client.complete("pipeline", self._generation, cut.epoch)
            self._offset = cut


@contextmanager
def running(programs: list[Program]) -> Iterator[None]:
    try:
        for program in programs:
            program.start()
        yield
    finally:
        for program in programs:
            program.kill()


def acked_by(programs: list[Program]) -> dict[int, int]:
    return {stream_id: last_id for program in programs for stream_id, last_id in program.acked.read().items()}


def held_by(programs: list[Program]) -> dict[int, int]:
    """The acknowledgements of the program whose source the pipeline reads."""
    return acked_by([program for program in programs if program.instance == HELD])


def wait_for_acks(programs: list[Program], before: dict[int, int], pipeline: Pipeline) -> None:
    """Wait until every program has received a new acknowledgement."""
    deadline = time.monotonic() + SECONDS_MAX
    for program in programs:
        while all(before.get(s, 0) >= last_id for s, last_id in program.acked.read().items()):
            program.check()
            assert time.monotonic() < deadline, f"{program.instance} is not acknowledged any more"
            pipeline.step()
