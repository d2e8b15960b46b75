"""What flows through the worker, as /status and /metrics show it: counters, rates, and how long epochs take."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock.coordinator.flow import BUCKETS, Distribution, Flow
from penstock.gateway.gateway import Gateway
from penstock.worker.rates import Key, Rates

_SOURCE, _PIPELINE, _SINK = "source", "pipeline", "sink"


def counts(gateway: Gateway, flow: Flow | None) -> dict[Key, int]:
    """All counters that rates are made of. `flow` is None where there is no coordinator."""
    found: dict[Key, int] = {}
    for name, counters in gateway.source_counters().items():
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


def rates_as_json(rates: Rates, flow: Flow | None) -> dict[str, Any]:
    """By name, what `docs/operating.md` says; sinks by pipeline and name."""
    found: dict[str, Any] = {"seconds": round(rates.seconds, 1), "sources": {}, "pipelines": {}, "sinks": {}}
    for (kind, *names, what), value in rates.per_second().items():
        place = found[f"{kind}s"]
        for name in names:
            place = place.setdefault(name, {})
        place[f"{what}_per_second"] = round(value, 3)
    for name, pipeline in flow.pipelines.items() if flow is not None else ():
        found["pipelines"][name] |= {
            "epoch_seconds": _rounded(pipeline.duration.last),
            "latency_seconds": _rounded(pipeline.latency.last),
        }
    return found


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


class FlowMetrics(Collector):
    """Counters of sources, pipelines and sinks, and histograms of epochs: `docs/operating.md` has the table."""

    def __init__(self, gateway: Gateway, flow: Flow | None) -> None:
        self._gateway = gateway
        self._flow = flow

    def collect(self) -> Iterator[Metric]:
        yield from self._sources()
        if self._flow is not None:
            yield from _pipelines(self._flow)
            yield from _epochs(self._flow)
            yield from _sinks(self._flow)

    def _sources(self) -> Iterator[Metric]:
        found = self._gateway.source_counters().items()
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
    text = "Of an epoch, from its cut to its completion"
    yield _histogram("epoch_duration", text, ["pipeline"], [([name], one.duration) for name, one in found])
    stages = [([name, "process"], one.processing) for name, one in found]
    stages += [([name, "deliver"], one.delivering) for name, one in found]
    text = "Of an epoch, process: from its cut to its merge; deliver: from there to its completion"
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
    """Cumulative, as Prometheus wants them."""
    bounds = [*map(str, BUCKETS), "+Inf"]
    return [(bound, float(total)) for bound, total in zip(bounds, accumulate(one.counts), strict=True)]
