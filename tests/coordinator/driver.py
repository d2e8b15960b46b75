"""Does what Spark's driver does with a worker, without Spark: asks, logs, stages, merges, commits; can die anywhere."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

from penstock.client.coordinator import (
    CoordinatorClient,
    InputOffset,
    InputSpec,
    Limits,
    Registration,
    SideKey,
    Staged,
    Started,
)
from penstock.client.segments import SegmentClient
from penstock.protocol.stored.event import parse_event
from penstock.protocol.stored.names import epoch_prefix
from penstock.protocol.stored.side_outputs import data_prefix
from tests.protocol.stored.events import stored

SOURCE, PIPELINE = "numbers", "copy"


class DriverDied(Exception):
    """The driver ends here; its checkpoint stays."""


@dataclass
class Checkpoint:
    """Spark's offset log and commit log. What was logged and not committed is rerun."""

    offsets: dict[int, tuple[InputOffset, InputOffset]] = field(default_factory=dict)
    committed: int = -1

    @property
    def end(self) -> InputOffset | None:
        return self.offsets[self.committed][1] if self.committed >= 0 else None


class Driver:
    """One start of the pipeline. `die` is called in every window and may raise DriverDied."""

    def __init__(
        self, worker: str, segments: str, checkpoint: Checkpoint, die: Callable[[str], None], random: Random
    ) -> None:
        self._coordinator = CoordinatorClient(worker, 60)
        self._segments = SegmentClient(segments, retry_seconds=60)
        self._checkpoint = checkpoint
        self._die = die
        self._random = random
        self._run: Started = self._coordinator.start(
            PIPELINE,
            {"in": InputSpec([f"segment:{SOURCE}"])},
            ["out"],
            Limits(bytes=random.randint(50, 500)),
            fresh=not checkpoint.offsets,
        )

    def close(self) -> None:
        self._coordinator.close()
        self._segments.close()

    def batch(self) -> bool:
        """Run the next batch, or rerun the one that was not committed. False if there was nothing new."""
        number = self._checkpoint.committed + 1
        if number in self._checkpoint.offsets:
            start, end = self._checkpoint.offsets[number]
            self._coordinator.reading(PIPELINE, self._run.generation, "in", start, end)
        else:
            start = self._checkpoint.end or self._coordinator.initial(PIPELINE, self._run.generation, "in")
            end = self._coordinator.cut(PIPELINE, self._run.generation, "in", start, wait_ms=50).offset
            if end == start:
                return False
            self._die("before the offset log")
            self._checkpoint.offsets[number] = start, end
            self._die("after the offset log")
        staged = [self._stage(number, attempt, start, end) for attempt in range(self._random.randint(1, 2))]
        for partition in range(2):
            for _ in range(self._random.randint(1, 2)):
                self._register(number, partition, start, end)
        self._die("before the merge")
        self._coordinator.merge(PIPELINE, number, [staged[-1]], generation=self._run.generation)
        self._die("after the merge")
        self._checkpoint.committed = number
        self._die("after the commit log")
        return True

    def _register(self, number: int, partition: int, start: InputOffset, end: InputOffset) -> None:
        """As an operator after a shuffle does: both partitions have rows of a bad event, and a task may run twice."""
        name = data_prefix(epoch_prefix(PIPELINE, self._run.generation, number)) + "/err"
        bad = [event for event in self._events(start, end) if is_bad(event.data)]
        with self._segments.appender(name, create=True) as appender:
            for event in bad:
                place = {"reason": "bad", "segment": SOURCE, "offset": event.offset}
                appender.append(stored(0, 0, 0, b"", event.data, place)[8:])
        self._die("before the registration")
        length = self._segments.info(name).length
        registration = Registration(
            SideKey(True, "operator", partition),
            (Staged("err", name, length, len(bad)),) if bad else (),
            sum(event.offset for event in bad),
        )
        first = self._coordinator.register(PIPELINE, number, registration, generation=self._run.generation)
        assert first.digest == registration.digest
        self._die("after the registration")

    def _events(self, start: InputOffset, end: InputOffset) -> Iterator[Any]:
        for event in self._segments.events(SOURCE, start.segments.get(SOURCE, 0)):
            if event.offset >= end.segments[SOURCE]:
                return
            yield event

    def _stage(self, number: int, attempt: int, start: InputOffset, end: InputOffset) -> Staged:
        """Copies the events; every attempt has a name that was never used."""
        name = f"staging/{PIPELINE}/{self._run.generation}/{number}/0-{attempt}-{self._random.randrange(2**60)}/out"
        with self._segments.appender(name, create=True) as appender:
            for event in self._events(start, end):
                appender.append(event.data)
        self._die("in the write")
        return Staged("out", name, self._segments.info(name).length)


def numbers(count: int, first: int = 0) -> list[bytes]:
    return [b"number %d" % number for number in range(first, first + count)]


def is_bad(event: bytes) -> bool:
    """Whether the operator cannot process it."""
    return int(event.split()[1]) % 7 == 0


def dead_letters(segments: SegmentClient) -> list[bytes]:
    found = [parse_event(event.data) for event in segments.events(f"pipeline/{PIPELINE}/err")]
    return [bytes(event.payload) for event in found if event is not None]


def output(segments: SegmentClient) -> list[Any]:
    return [event.data for event in segments.events(f"pipeline/{PIPELINE}/out")]
