"""Spark's progress reports of a query: for views, and for the epochs of Spark's own sinks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark import SparkContext
from pyspark.sql.streaming.listener import (
    JStreamingQueryListener,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from penstock.spark.run.query_probe import QueryProbe, QueryQuestion

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

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
        marks = [offset["watermark"] for offset in offsets if offset["watermark"] is not None]
        return cls(
            epoch=report["batchId"],
            cut=min((offset["epoch"] for offset in offsets), default=None),
            watermark_us=min(marks) if len(marks) == len(offsets) and marks else None,
            rows=sum(source["numInputRows"] for source in report["sources"] if not _is_control(source["endOffset"])),
            rows_per_second=report.get("processedRowsPerSecond") or 0.0,  # JSON has no NaN: the field is absent
            batch_ms=report["batchDuration"],
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


class Listener(StreamingQueryListener):
    """Calls back on one of Spark's threads, with the query's id, for every progress report of a session's queries."""

    def __init__(self, on_progress: Callable[[str, Progress], None]) -> None:
        self._on_progress = on_progress

    @property
    def _jlistener(self) -> Any:
        """PySpark's own counterpart reads a report field by field: a hundred calls into the JVM. The end of each Java
        collection is an exception there, whose class PySpark looks for by a dozen names: an eighth of the CPU time of
        a driver with small epochs.
        """
        if not hasattr(self, "_counterpart"):
            jvm: Any = SparkContext._jvm  # noqa: SLF001  (as PySpark does)
            self._counterpart = jvm.PythonStreamingQueryListenerWrapper(_Counterpart(self))
        return self._counterpart

    def on_report(self, report: Mapping[str, Any]) -> None:
        self._on_progress(report["id"], Progress.of(report))

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Not called, nor are the next two."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        pass


class _Counterpart(JStreamingQueryListener):
    """What the JVM calls. It fetches a report as one text."""

    pylistener: Listener

    def onQueryStarted(self, jevent: Any) -> None:  # noqa: N802
        pass

    def onQueryProgress(self, jevent: Any) -> None:  # noqa: N802
        self.pylistener.on_report(json.loads(jevent.progress().json()))

    def onQueryIdle(self, jevent: Any) -> None:  # noqa: N802
        pass

    def onQueryTerminated(self, jevent: Any) -> None:  # noqa: N802
        pass


def watch(spark: SparkSession, query: StreamingQuery, generation: Generation) -> None:
    """Report each epoch that this query commits to the worker at once, so that acks for Spark's own sinks do not wait
    for another batch. Heartbeats also report how the query gets on.
    """
    watched = query.id
    generation.watch(QueryProbe(QueryQuestion(spark, query)))

    def on_progress(query_id: str, progress: Progress) -> None:
        if query_id == watched and progress.cut is not None:
            generation.committed(progress.cut)

    spark.streams.addListener(Listener(on_progress))
    if (last := query.lastProgress) is not None:  # it may have ended its only batch before we listened
        on_progress(watched, Progress.of(last))
