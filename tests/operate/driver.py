"""What Spark's driver and tasks do for a pipeline that copies its source, without Spark."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from uuid import uuid4

from penstock.client.coordinator import CoordinatorClient, InputSpec, SinkSpec, Staged
from penstock.client.segments import SegmentClient
from penstock.core.errors import RequestError
from penstock.protocol.api.pipelines import Segments
from penstock.protocol.stored.bulk import encode
from tests.client.source.stored import decode_message
from tests.coordinator.driver import Checkpoint
from tests.delivery.fake_epoch import column

SOURCE = "numbers"
SINK = "s"


@dataclass(slots=True)
class CopyDriver:
    """`start` begins a generation, from the checkpoint. A call that is refused is reported to the worker as the runner
    of pipelines does, and raised.
    """

    client: CoordinatorClient
    segments: SegmentClient
    name: str
    checkpoint: Checkpoint
    sink_url: str
    generation: int = field(default=0, init=False)

    def start(self) -> None:
        self.client.bind(self.name, {SINK: SinkSpec("out", self.sink_url)})
        fresh = not self.checkpoint.offsets
        inputs = {"in": InputSpec([SOURCE])}
        self.generation = self.client.start(self.name, inputs, ["out"], fresh=fresh).generation

    def epoch(self) -> bool:
        """Run the next epoch, or the one that the checkpoint has planned. False if there was nothing new."""
        try:
            return self._epoch()
        except RequestError:
            self.client.heartbeat(self.name, self.generation, failed=True)
            raise

    def _epoch(self) -> bool:
        checkpoint, number = self.checkpoint, self.checkpoint.committed + 1
        if number in checkpoint.offsets:
            start, end = checkpoint.offsets[number]
            self.client.reading(self.name, self.generation, "in", start, end)
        else:
            start = checkpoint.end or self.client.initial(self.name, self.generation, "in")
            end = self.client.cut(self.name, self.generation, "in", start).offset
            if end == start:
                return False
            assert end.epoch is not None
            number = end.epoch
            checkpoint.offsets[number] = start, end
        staged = self._stage(number, [*self.values(start.segments, end.segments)])
        self.client.merge(self.name, number, [staged], generation=self.generation)
        checkpoint.committed = number
        return True

    def values(self, start: Segments, end: Segments) -> Iterator[bytes]:
        for segment, limit in end.items():
            at = start.get(segment, 0)
            for event in self.segments.events(segment, at) if at < limit else ():
                if event.offset >= limit:
                    break
                if event.data:  # those without stand where a stream started or ended
                    yield decode_message(bytes(event.data))[1].payload

    def _stage(self, number: int, values: list[bytes]) -> Staged:
        name = f"staging/{self.name}/{self.generation}/{number}/0-{uuid4().hex}/out"
        encoded = encode(column(values))
        with self.segments.appender(name, create=True) as appender:
            for start, end in pairwise(encoded.starts.tolist()):
                appender.append(bytes(encoded.data[start + 8 : end]))
        return Staged("out", name, self.segments.info(name).length)
