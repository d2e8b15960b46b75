"""A worker with events, whose epochs the test determines, and queries over them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import penstock.spark
from penstock.protocol.stored import StoredEvent
from penstock.protocol.stored.head import StreamColumns, encode_head
from penstock.spark.run.progress import Progress
from penstock.store.store import SegmentStore
from tests.coordinator.scene import u64s
from tests.protocol.stored.events import stored
from tests.spark.asking import get
from tests.spark.sending import outputs
from tests.spark.stored_data import durable
from tests.support.running_worker import RunningWorker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

PIPELINE, SOURCE, SEGMENT = "p", "sensors", "connector/sensors/0"


class Cut(NamedTuple):
    end: int
    watermark: int | None


@dataclass(frozen=True)
class Sent:
    """`offset` is where it is stored."""

    stream: int
    number: int
    time_us: int
    payload: bytes
    offset: int


class Scene:
    """Events that are ingested together are one epoch of a query with a limit of one row per epoch."""

    def __init__(self, worker: RunningWorker, spark: SparkSession, folder: Path) -> None:
        self.worker = worker
        self.spark = spark
        self.http = f"127.0.0.1:{worker.ports['http']}"
        self.checkpoint = folder / "checkpoint"
        self.sent: list[Sent] = []
        self.rows_read = 0
        """By the last run, as its progress shows."""
        self._end = 0

    def ingest(self, *events: tuple[int, int, Any]) -> None:
        """Store one record. Each event is a stream, a time in microseconds, and bytes or a value to encode as JSON."""
        data, highest = [], dict[int, int]()
        for stream, time_us, value in events:
            payload = value if isinstance(value, bytes) else json.dumps(value).encode()
            event = stored(stream, len(self.sent) + 1, time_us, b"", payload)
            self.sent.append(Sent(stream, len(self.sent) + 1, time_us, payload, self._end))
            self._end += len(event)
            data.append(event)
            highest[stream] = max(highest.get(stream, time_us), time_us)
        last = {one.stream: one.number for one in self.sent}
        columns = StreamColumns(u64s([*highest]), u64s([last[one] for one in highest]), u64s([*highest.values()]))
        head = encode_head(columns, (), len(events))

        def store(store: SegmentStore) -> None:
            if not store.exists(SEGMENT):
                store.create(SEGMENT)
            store.append(SEGMENT, [b"".join(data)], head=head)

        durable(self.worker, store)

    def run(self, build: Callable[[DataFrame], DataFrame], **options: str) -> list[Row]:
        """Run all available epochs after the checkpoint; `options` are those of the load. Returns the rows of the
        result. Raises what ends the query.
        """
        found: list[Row] = []
        inputs = {"in": SOURCE}
        with penstock.spark.begin(
            PIPELINE, worker=self.http, inputs=inputs, outputs=[], checkpoint=str(self.checkpoint)
        ) as run:
            with penstock.spark.session(self.spark, pipeline=run):
                frame = build(run.load(self.spark, "in", maxRowsPerEpoch="1", **options))
            writer = frame.writeStream.foreachBatch(lambda rows, _: found.extend(rows.collect()))
            query = writer.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True).start()
            try:
                query.awaitTermination()
                self.rows_read = sum(Progress.of(report).rows for report in query.recentProgress)
            finally:
                query.stop()
        return found

    def left(self, port: str = "late") -> list[StoredEvent]:
        """The events in a side port."""
        return outputs(self.worker.address, PIPELINE, port)

    def cuts(self) -> list[Cut]:
        """The cut of each epoch, from Spark's log."""
        files = sorted((self.checkpoint / "offsets").glob("[0-9]*"), key=lambda file: int(file.name))
        offsets = [json.loads(file.read_text().splitlines()[-1]) for file in files]
        return [Cut(one["segments"][SEGMENT], one["watermark"]) for one in offsets]

    def epochs(self) -> list[tuple[Sequence[Sent], int | None, int | None]]:
        """The events of each epoch, and the watermarks before and after it."""
        found: list[tuple[Sequence[Sent], int | None, int | None]] = []
        start: int = 0
        before: int | None = None
        for end, after in self.cuts():
            found.append(([one for one in self.sent if start <= one.offset < end], before, after))
            start, before = end, after
        return found

    def numbers(self) -> list[dict[str, Any]]:
        """What the worker reports about window operators."""
        shown: list[dict[str, Any]] = get(self.worker, "/status")["windows"]
        return shown
