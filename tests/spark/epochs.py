"""An epoch of a pipeline as its tasks see it, without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.client.coordinator import CoordinatorClient, InputOffset, InputSpec, SideKey
from penstock.spark.side_outputs import Origin, SideOutputs
from penstock.spark.sink.writer import SinkOptions, merge
from penstock.spark.source.options import SourceOptions
from tests.protocol.stored.events import stored
from tests.spark.sending import outputs
from tests.spark.stored_data import store_events
from tests.support.running_worker import RunningWorker

SEGMENT = "connector/sales/0"
VALUES = [b'{"n": 1}', b"no json", b'{"n": "x"}', b'{"n": 4}']
TYPED = {"content_type": "application/json", "headers": {"a": "b"}}


@dataclass
class Epoch:
    """A running epoch of the pipeline `p`, as its tasks see it."""

    worker: RunningWorker
    client: CoordinatorClient
    origin: Origin
    end: InputOffset
    offsets: list[int]

    def sides(self, operator: str = "apply", partition: int = 0) -> SideOutputs:
        return SideOutputs(self.origin, 0, SideKey(True, operator, partition))

    def rows(self, *numbers: int) -> pa.Table:
        offsets = pa.array([self.offsets[number] for number in numbers], pa.int64())
        return pa.table({"segment": pa.array([SEGMENT] * len(numbers)), "offset": offsets, "any": offsets})

    def options(self, **more: str) -> SourceOptions:
        given = {"source": "sales", "worker": self.origin.worker, "pipeline": "p", "codec": "json", "schema": "n int"}
        return SourceOptions.parse({**given, "generation": str(self.origin.generation), **more})

    def merge(self) -> None:
        merge(SinkOptions(pipeline="p", worker=self.origin.worker, generation=self.origin.generation), 0, [])

    def left(self, port: str = "err") -> list[Any]:
        return outputs(self.worker.address, "p", port)


@contextmanager
def running_epoch(worker: RunningWorker) -> Iterator[Epoch]:
    """An epoch with the first events of the source `sales`."""
    events = [stored(7, number, number * 10, b"k", value, TYPED) for number, value in enumerate(VALUES, 1)]
    store_events(worker, SEGMENT, events)
    offsets = [sum(map(len, events[:number])) for number in range(len(events))]
    http = f"127.0.0.1:{worker.ports['http']}"
    with CoordinatorClient(http) as client:
        generation = client.start("p", {"in": InputSpec(["sales"])}, ["out"]).generation
        end = client.cut("p", generation, "in", client.initial("p", generation, "in"), wait_ms=5000).offset
        yield Epoch(worker, client, Origin(http, "p", generation), end, offsets)
