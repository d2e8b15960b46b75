"""Spark's progress reports of a query: for views, and for the epochs of Spark's own sinks."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

# At runtime: without Spark, whoever imports `watch` learns at once what to install.
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from penstock.core.types import NO_EPOCH
from penstock.spark.run.query_probe import QueryProbe, QueryQuestion
from penstock.spark.source.fused import EVENTS_READ

if TYPE_CHECKING:
    from penstock.spark.run.generation import Generation


_STATE_LOAD = "rocksdbLoadLatencyMs"
"""A metric of Spark's state store."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The last batch of a query."""

    epoch: int
    cut: int | None
    """The last epoch whose cut the loads have read: an earlier one if this epoch had no new input. None if no load
    names a pipeline.
    """
    watermark_us: int | None
    rows: int
    rows_per_second: float
    batch_ms: int
    state_rows: int
    state_bytes: int
    stages_ms: Mapping[str, int] = field(default_factory=dict)
    """How long each stage of the batch took, by Spark's names."""
    state_load_ms: int = 0
    """How long tasks waited for state that was not in memory, in total."""

    @classmethod
    def of(cls, report: Mapping[str, Any]) -> Progress:
        """From Spark's progress report. The loads advance in lockstep, so the lowest of their epochs counts."""
        offsets = list(_offsets(source["endOffset"] for source in report["sources"]))
        rows, batch_ms = _rows(report), report["batchDuration"]
        marks = [offset["watermark"] for offset in offsets if offset["watermark"] is not None]
        return cls(
            epoch=report["batchId"],
            cut=min((offset["epoch"] for offset in offsets), default=None),
            watermark_us=min(marks) if len(marks) == len(offsets) and marks else None,
            rows=rows,
            rows_per_second=rows * 1000 / batch_ms if batch_ms else 0.0,
            batch_ms=batch_ms,
            state_rows=sum(operator["numRowsTotal"] for operator in report["stateOperators"]),
            state_bytes=sum(operator["memoryUsedBytes"] for operator in report["stateOperators"]),
            stages_ms=dict(report["durationMs"]),
            state_load_ms=sum(operator["customMetrics"].get(_STATE_LOAD, 0) for operator in report["stateOperators"]),
        )

    @property
    def stages_text(self) -> str:
        """The stages that took time, in Spark's order."""
        stages = {**self.stages_ms, "state load": self.state_load_ms}
        return ", ".join(f"{name} {milliseconds} ms" for name, milliseconds in stages.items() if milliseconds)


def _rows(report: Mapping[str, Any]) -> int:
    """Events that were read. The readers of a fused load return other rows than these, and count them."""
    rows: int = sum(source["numInputRows"] for source in report["sources"] if not _is_control(source["endOffset"]))
    metrics = report.get("observedMetrics") or {}
    return rows + sum(found["events"] or 0 for name, found in metrics.items() if name.startswith(EVENTS_READ))


def _is_control(end: Any) -> bool:
    """Whether the offset is that of a control-only load, whose rows contain only the watermark."""
    return any(offset.get("control") for offset in _offsets([end]))


def _offsets(ends: Iterable[Any]) -> Iterable[dict[str, Any]]:
    """The offsets of our loads that name a pipeline; a query may read other sources as well. Each is JSON text, or, in
    a report that was JSON itself, what that text means.
    """
    for end in ends:
        try:
            offset = json.loads(end or "null") if isinstance(end, str | None) else end
        except ValueError:
            continue
        if isinstance(offset, dict) and isinstance(offset.get("epoch"), int) and "watermark" in offset:
            yield offset


ASK_SECONDS = 0.2
"""Between two questions. What Spark reports to a listener arrives later than that, and takes a hundred calls into the
JVM for each batch.
"""

_COUNT_SECONDS = 1.0
"""Between two looks at all recent reports, which take a few hundred calls, to count the rows of batches in between."""

_UNCOUNTED_MAX = 50
"""Spark keeps the last 100 reports: they are looked at before one that is not counted is lost."""

_FAILURES_MAX = 10
"""Questions that fail in a row: the query's JVM is gone."""

OnProgress: TypeAlias = Callable[[Progress, int], None]
"""Takes the last batch, and how many rows were read since the last call, those of batches in between included."""


class ProgressReader:
    """Asks a query for its reports in a thread of its own, and calls back for each new one. Ends with the query, when
    its JVM is gone, or when it is stopped.
    """

    def __init__(
        self, query: StreamingQuery, on_progress: OnProgress, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._query = query
        self._on_progress = on_progress
        self._clock = clock
        self._last: int | None = None
        self._counted = NO_EPOCH
        """The rows of all batches up to this one are counted."""
        self._counted_at = clock()
        self._over = threading.Event()
        self._turn = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="progress of a query", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Returns at once: the thread may be waiting for the JVM."""
        self._over.set()

    def finish(self) -> None:
        """Reports what is not reported yet, of a query that was stopped. Nothing is called after that."""
        with self._turn:
            if not self._over.is_set():
                self._read(is_last=True)
                self._over.set()

    def _run(self) -> None:
        failures = 0
        while not self._over.wait(ASK_SECONDS) and failures < _FAILURES_MAX:
            failures += 1
            with suppress(Exception):  # of Py4J, gRPC or Java
                self._ask()
                failures = 0

    def _ask(self) -> None:
        is_active = self._query.isActive  # asked first: its last report is there when it is no longer active
        if not is_active:
            self.finish()
            return
        with self._turn:
            if not self._over.is_set():
                self._read()

    def _read(self, *, is_last: bool = False) -> None:
        report = self._query.lastProgress
        if report is None:
            return
        progress = Progress.of(report)
        rows = self._rows(progress, is_last=is_last)
        if rows or progress.epoch != self._last:
            self._last = progress.epoch
            self._on_progress(progress, rows)

    def _rows(self, progress: Progress, *, is_last: bool) -> int:
        """Those that can be counted now."""
        uncounted, now = progress.epoch - self._counted, self._clock()
        if uncounted == 1:
            rows = progress.rows
        elif uncounted > 1 and (is_last or uncounted > _UNCOUNTED_MAX or now - self._counted_at >= _COUNT_SECONDS):
            found = map(Progress.of, self._query.recentProgress)
            rows = sum(one.rows for one in found if self._counted < one.epoch <= progress.epoch)
        else:
            return 0
        self._counted, self._counted_at = progress.epoch, now
        return rows


def watch(spark: SparkSession, query: StreamingQuery, generation: Generation) -> None:
    """Report each epoch that this query commits to the worker at once, so that acks for Spark's own sinks do not wait
    for another batch. Heartbeats also report how the query gets on.
    """
    generation.watch(QueryProbe(QueryQuestion(spark, query)))

    def on_progress(progress: Progress, _: int) -> None:
        if progress.cut is not None:
            generation.committed(progress.cut)

    ProgressReader(query, on_progress)
