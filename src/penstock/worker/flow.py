"""What flows through the worker, as /status and /metrics show it: counters, rates, and how long epochs take."""

import json
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple, TypeAlias

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock.coordinator.flow import BUCKETS, Distribution, Flow, PipelineFlow
from penstock.coordinator.heartbeats import DEFAULT_START_SECONDS
from penstock.ingest.source_view import SourceView
from penstock.protocol.api.pipelines import PipelineStatus
from penstock.protocol.api.status import OperatorStatus, PipelineRates, RatesStatus, SinkRates, SourceRates
from penstock.protocol.stored.event import END_OF_TIME

# Current rates: counters as they were a moment ago, in a small ring, compared with what they are now.

SAMPLE_SECONDS = 1.0
WINDOW_SECONDS = 10.0
"""The window of rates: an epoch of a few seconds shows as a rate, and what has stopped is soon 0."""

SAMPLES_MAX = int(WINDOW_SECONDS / SAMPLE_SECONDS) + 1

Key: TypeAlias = tuple[str, ...]
"""What is counted, like ("source", "orders", "events")."""


class _Sample(NamedTuple):
    time: float
    counts: Mapping[Key, int]


class Rates:
    """`count` reads all counters as they are. They never decrease, but one may disappear and start again at 0."""

    def __init__(self, count: Callable[[], Mapping[Key, int]], clock: Callable[[], float]) -> None:
        self._count = count
        self._clock = clock
        self._samples: deque[_Sample] = deque(maxlen=SAMPLES_MAX)
        self.sample()

    def sample(self) -> None:
        """Every SAMPLE_SECONDS."""
        self._samples.append(_Sample(self._clock(), self._count()))

    @property
    def seconds(self) -> float:
        """The time that the rates cover: the window, or less soon after the start."""
        return self._clock() - self._samples[0].time

    def per_second(self) -> dict[Key, float]:
        """The rate of each counter. One that did not exist at the beginning of the window started at 0."""
        before, seconds = self._samples[0].counts, max(self.seconds, SAMPLE_SECONDS)
        return {key: _grown(before.get(key, 0), now) / seconds for key, now in self._count().items()}


def _grown(before: int, now: int) -> int:
    return now - before if now >= before else now


_SOURCE, _PIPELINE, _SINK = "source", "pipeline", "sink"


def counts(sources: SourceView, flow: Flow | None) -> dict[Key, int]:
    """All counters that rates are made of. `flow` is None where there is no coordinator."""
    found: dict[Key, int] = {}
    for name, counters in sources.counters().items():
        found[_SOURCE, name, "events"] = counters.messages
        found[_SOURCE, name, "bytes"] = counters.message_bytes
    for name, pipeline in flow.pipelines.items() if flow is not None else ():
        found[_PIPELINE, name, "rows_in"] = pipeline.rows_in
        found[_PIPELINE, name, "bytes_in"] = pipeline.bytes_in
        found[_PIPELINE, name, "rows_out"] = sum(pipeline.rows_out.values())
    for (name, sink), delivered in flow.sinks.items() if flow is not None else ():
        found[_SINK, name, sink, "rows"] = delivered.rows
        found[_SINK, name, sink, "epochs"] = delivered.epochs
    return found


def rates_status(rates: Rates, flow: Flow | None) -> RatesStatus:
    """As `docs/operating.md` describes it."""
    now = {key: round(value, 3) for key, value in rates.per_second().items()}
    sinks: dict[str, dict[str, SinkRates]] = {}
    for name, sink in flow.sinks if flow is not None else ():
        key = _SINK, name, sink
        sinks.setdefault(name, {})[sink] = SinkRates(
            rows_per_second=now[*key, "rows"], epochs_per_second=now[*key, "epochs"]
        )
    return RatesStatus(
        seconds=round(rates.seconds, 1),
        sources={name: _source_rates(now, name) for kind, name, *_ in now if kind == _SOURCE},
        pipelines={name: _pipeline_rates(now, name, one) for name, one in flow.pipelines.items()} if flow else {},
        sinks=sinks,
    )


def measured(
    rates: Rates,
    flow: Flow | None,
    pipelines: Iterable[PipelineStatus],
    operators: Iterable[OperatorStatus],
    now: float,
) -> dict[str, float]:
    """Rates, lags and sizes of state, under the names of WorkerHistory. `now` is in seconds since 1970."""
    found = {"/".join(key): value for key, value in rates.per_second().items()}
    for one in pipelines:
        found[f"{_PIPELINE}/{one.name}/lag_bytes"] = float(one.lag_bytes)
        if one.watermark is not None and one.watermark < END_OF_TIME:
            found[f"{_PIPELINE}/{one.name}/watermark_lag_seconds"] = now - one.watermark / 1e6
    for operator in operators:
        for name, value in (("state_bytes", operator.state_bytes), ("open_windows", operator.waiting)):
            key = f"{_PIPELINE}/{operator.pipeline}/{name}"
            found[key] = found.get(key, 0.0) + value
    for name, pipeline in flow.pipelines.items() if flow is not None else ():
        if pipeline.latency.last is not None:
            found[f"{_PIPELINE}/{name}/latency_seconds"] = pipeline.latency.last
    return found


def _source_rates(now: Mapping[Key, float], name: str) -> SourceRates:
    return SourceRates(events_per_second=now[_SOURCE, name, "events"], bytes_per_second=now[_SOURCE, name, "bytes"])


def _pipeline_rates(now: Mapping[Key, float], name: str, flow: PipelineFlow) -> PipelineRates:
    return PipelineRates(
        rows_in_per_second=now[_PIPELINE, name, "rows_in"],
        bytes_in_per_second=now[_PIPELINE, name, "bytes_in"],
        rows_out_per_second=now[_PIPELINE, name, "rows_out"],
        epoch_seconds=_rounded(flow.duration.last),
        latency_seconds=_rounded(flow.latency.last),
        rows_in=flow.rows_in,
        rows_out=dict(flow.rows_out),
    )


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


class FlowMetrics(Collector):
    """Counters of sources, pipelines and sinks, and histograms of epochs: `docs/metrics.md` explains them."""

    def __init__(self, sources: SourceView, flow: Flow | None) -> None:
        self._source_view = sources
        self._flow = flow

    def collect(self) -> Iterator[Metric]:
        yield from self._sources()
        if self._flow is not None:
            yield from _pipelines(self._flow)
            yield from _epochs(self._flow)
            yield from _sinks(self._flow)

    def _sources(self) -> Iterator[Metric]:
        found = self._source_view.counters().items()
        events = [([name], counters.messages) for name, counters in found]
        yield _counter("source_events", "Events stored", ["source"], events)
        sizes = [([name], counters.message_bytes) for name, counters in found]
        yield _counter("source_bytes", "Bytes of events stored", ["source"], sizes)


def _pipelines(flow: Flow) -> Iterator[Metric]:
    found = flow.pipelines.items()
    rows = [([name], one.rows_in) for name, one in found]
    yield _counter("pipeline_rows_in", "Events of sources and of other pipelines in its epochs", ["pipeline"], rows)
    sizes = [([name], one.bytes_in) for name, one in found]
    yield _counter("pipeline_bytes_in", "Stored bytes in its epochs", ["pipeline"], sizes)
    out = [([name, port], rows) for name, one in found for port, rows in one.rows_out.items()]
    yield _counter("pipeline_rows_out", "Rows merged into its outputs", ["pipeline", "port"], out)


def _sinks(flow: Flow) -> Iterator[Metric]:
    found = flow.sinks.items()
    rows = [(key, one.rows) for key, one in found]
    yield _counter("sink_rows", "Rows delivered", ["pipeline", "sink"], rows)
    epochs = [(key, one.epochs) for key, one in found]
    yield _counter("sink_epochs", "Epochs delivered", ["pipeline", "sink"], epochs)


def _epochs(flow: Flow) -> Iterator[Metric]:
    found = flow.pipelines.items()
    text = "Duration of an epoch, from its cut to its completion"
    yield _histogram("epoch_duration", text, ["pipeline"], [([name], one.duration) for name, one in found])
    stages = [([name, "process"], one.processing) for name, one in found]
    stages += [([name, "deliver"], one.delivering) for name, one in found]
    text = "Duration of a phase of an epoch; process: from its cut to its merge, deliver: from there to its completion"
    yield _histogram("epoch_stage_duration", text, ["pipeline", "stage"], stages)
    text = "From the arrival of an epoch's first event at the worker to the epoch's completion"
    yield _histogram("end_to_end_latency", text, ["pipeline"], [([name], one.latency) for name, one in found])


def _counter(
    name: str, text: str, labels: list[str], values: Iterable[tuple[Sequence[str], int]]
) -> CounterMetricFamily:
    family = CounterMetricFamily(f"penstock_{name}", text, labels=labels)
    for key, value in values:
        family.add_metric(key, value)
    return family


def _histogram(
    name: str, text: str, labels: list[str], values: Iterable[tuple[Sequence[str], Distribution]]
) -> HistogramMetricFamily:
    family = HistogramMetricFamily(f"penstock_pipeline_{name}_seconds", text, labels=labels)
    for key, one in values:
        family.add_metric(key, _buckets(one), one.sum)
    return family


def _buckets(one: Distribution) -> list[tuple[str, float]]:
    """Cumulative, as Prometheus requires."""
    bounds = [*map(str, BUCKETS), "+Inf"]
    return [(bound, float(total)) for bound, total in zip(bounds, accumulate(one.counts), strict=True)]


# How long the starts of pipelines took: DATA/starts.json, to estimate how long the next start will take.

log = logging.getLogger(__name__)

_FILE = "starts.json"

_PIPELINES_MAX = 1000
"""Pipelines that are remembered; the one measured longest ago goes first."""


class StartTimes:
    """Only an estimate: a file that cannot be read or written is ignored."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / _FILE
        self._seconds = _read(self._path)

    def seconds(self, name: str) -> float:
        """The duration of its last start; for one that was never measured, the longest of the others, since most of a
        start is Spark's.
        """
        return self._seconds.get(name) or max(self._seconds.values(), default=DEFAULT_START_SECONDS)

    def keep(self, name: str, seconds: float) -> None:
        self._seconds.pop(name, None)
        self._seconds[name] = round(seconds, 1)
        while len(self._seconds) > _PIPELINES_MAX:
            del self._seconds[next(iter(self._seconds))]
        partial = self._path.with_suffix(".tmp")
        try:
            partial.write_text(json.dumps(self._seconds) + "\n")
            partial.replace(self._path)
        except OSError as error:
            log.warning("%s could not be written: %s", self._path, error)


def _read(path: Path) -> dict[str, float]:
    try:
        return {str(name): float(seconds) for name, seconds in json.loads(path.read_text()).items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}
