"""Which sources somebody waits for: what the windows of pipelines need of the clock of each source that they read.

A window waits until its pipeline's watermark reaches its end. Where the watermark of a source follows the worker's
clock, that needs a mark in the journal, and an epoch of every pipeline that reads it. So marks are written for those
who wait, when the clock has reached what they wait for, and for nobody else.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from penstock.coordinator.machine.state import Pipeline
from penstock.coordinator.queries import Queries
from penstock.coordinator.shared import Shared
from penstock.coordinator.window_reports import WindowReports
from penstock.protocol.stored.names import Form, Source


class Demand(NamedTuple):
    """What all who read a source wait for."""

    next_times: frozenset[int] = frozenset()
    """Of each pipeline that has any, the first time, in microseconds, at which one of its windows fires or is removed.
    All of them count: a pipeline that lags keeps an old time long after the mark that it needs was written."""
    is_unknown: bool = False
    """Somebody may hold more than he has reported: Spark's own operators, or windows after a restart of the worker."""

    def __or__(self, other: "Demand") -> "Demand":
        return Demand(self.next_times | other.next_times, self.is_unknown or other.is_unknown)


NO_DEMAND = Demand()


class ClockDemand:
    """Computed whenever somebody asks, from what pipelines that run have said."""

    def __init__(self, shared: Shared, queries: Queries, windows: WindowReports) -> None:
        self._shared = shared
        self._queries = queries
        self._windows = windows

    def by_source(self) -> dict[str, Demand]:
        """Of the connectors that somebody waits for, also over the outputs of other pipelines."""
        found: dict[str, Demand] = {}
        pipelines = self._shared.state.pipelines
        for name in pipelines:
            demand = self._of(name)
            if demand != NO_DEMAND:
                for source in connectors_behind(pipelines, name):
                    found[source] = found.get(source, NO_DEMAND) | demand
        return found

    def _of(self, name: str) -> Demand:
        if self._shared.heartbeats.state(name) != "RUNNING":
            return NO_DEMAND
        time = self._windows.summary(name).next_time
        return Demand(frozenset() if time is None else frozenset({time}), self.is_unknown(name))

    def is_unknown(self, name: str) -> bool:
        """Whether a pipeline may hold more than it has reported."""
        pipeline = self._shared.state.pipelines[name]
        state, done = self._queries.state(name, pipeline.generation), max(pipeline.merged, pipeline.complete)
        is_behind = "reported" in state and max(self._windows.summary(name).epoch, 0) < done
        return is_behind or ("unreported" in state and done > 0)


def connectors_behind(pipelines: Mapping[str, Pipeline], name: str) -> Iterator[str]:
    """Those that a pipeline reads, and those that the pipelines read whose outputs it reads."""
    waiting, seen = [name], {name}
    while waiting:
        pipeline = pipelines.get(waiting.pop())
        for source in map(Source.parse, sorted(pipeline.sources) if pipeline is not None else ()):
            producer = source.name.partition("/")[0]
            if source.form is Form.CONNECTOR:
                yield source.name
            elif source.form is Form.OUTPUT and producer not in seen:
                seen.add(producer)
                waiting.append(producer)
