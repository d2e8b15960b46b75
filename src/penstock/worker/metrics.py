"""The worker's numbers for Prometheus, read from the parts that keep them when somebody asks."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock.coordinator.delivery_messages import EpochStatus, SinkStatus
from penstock.coordinator.messages import PipelineStatus

Numbers = Mapping[str, int | float]


class Numbered(Collector):
    """Every number of a part as a metric `penstock_<part>_<name>`."""

    def __init__(self, part: str, gauges: Callable[[], Numbers], counters: Callable[[], Numbers]) -> None:
        self._prefix = f"penstock_{part}_"
        self._gauges = gauges
        self._counters = counters

    def collect(self) -> Iterator[Metric]:
        for name, value in self._gauges().items():
            yield GaugeMetricFamily(self._prefix + name, _text(name), value)
        for name, value in self._counters().items():
            yield CounterMetricFamily(self._prefix + name, _text(name), value)


class Pipelines(Collector):
    """Numbers of each pipeline as metrics `penstock_pipeline_<name>`, labelled with its name."""

    _GAUGES = (
        *("incarnation", "generation", "planned", "merged", "delivered", "complete", "proved"),
        *("lag_bytes", "undelivered_bytes"),
    )

    def __init__(self, pipelines: Callable[[], Sequence[PipelineStatus]]) -> None:
        self._pipelines = pipelines

    def collect(self) -> Iterator[Metric]:
        found = self._pipelines()
        for name in self._GAUGES:
            yield self._gauge(name, {one.name: getattr(one, name) for one in found})
        yield self._gauge("running", {one.name: one.state in ("STARTING", "RUNNING") for one in found})
        times = {one.name: one.watermark / 1e6 for one in found if one.watermark is not None}
        yield self._gauge("watermark_seconds", times)
        unmoved = {one.name: one.watermark_unmoved_seconds for one in found}
        yield self._gauge("watermark_unmoved_seconds", {n: age for n, age in unmoved.items() if age is not None})
        yield self._held(found)

    def _held(self, found: Sequence[PipelineStatus]) -> GaugeMetricFamily:
        """1 for what holds a pipeline's watermark back: a stream of a connector, or an output."""
        labels = ["pipeline", "source", "stream_id", "stream"]
        gauge = GaugeMetricFamily("penstock_pipeline_watermark_held", _text("watermark_held"), labels=labels)
        for one in found:
            if (held := one.watermark_held) is not None:
                stream_id = "" if held.stream_id is None else str(held.stream_id)
                gauge.add_metric([one.name, held.source, stream_id, held.stream], 1)
        return gauge

    def _gauge(self, name: str, values: Numbers) -> GaugeMetricFamily:
        gauge = GaugeMetricFamily(f"penstock_pipeline_{name}", _text(name), labels=["pipeline"])
        for pipeline, value in values.items():
            gauge.add_metric([pipeline], value)
        return gauge


class Sinks(Collector):
    """Numbers of each sink as metrics `penstock_sink_<name>`, labelled with pipeline and sink; and how many epochs of
    each pipeline some sink lacks.
    """

    def __init__(
        self, sinks: Callable[[], Sequence[SinkStatus]], epochs: Callable[[str], Sequence[EpochStatus]]
    ) -> None:
        self._sinks = sinks
        self._epochs = epochs

    def collect(self) -> Iterator[Metric]:
        found = self._sinks()
        epochs = {name: self._epochs(name) for name in dict.fromkeys(one.pipeline for one in found)}
        undelivered = GaugeMetricFamily(
            "penstock_pipeline_undelivered_epochs", _text("undelivered_epochs"), labels=["pipeline"]
        )
        for name, waiting in epochs.items():
            undelivered.add_metric([name], len(waiting))
        yield undelivered
        yield self._filled(CounterMetricFamily, "sent_bytes", [(one, one.sent) for one in found])
        yield self._filled(CounterMetricFamily, "parked_epochs", [(one, one.parked) for one in found])
        yield self._filled(GaugeMetricFamily, "lost", [(one, one.state == "WAITING") for one in found])
        yield self._filled(GaugeMetricFamily, "refused", [(one, one.state == "REFUSED") for one in found])
        tries = [(one, _tries(one, epochs[one.pipeline])) for one in found]
        yield self._filled(GaugeMetricFamily, "failed_tries", tries)

    def _filled(
        self,
        family: type[CounterMetricFamily] | type[GaugeMetricFamily],
        name: str,
        values: Sequence[tuple[SinkStatus, int]],
    ) -> Metric:
        made = family(f"penstock_sink_{name}", _text(name), labels=["pipeline", "sink"])
        for sink, value in values:
            made.add_metric([sink.pipeline, sink.sink], value)
        return made


def _tries(sink: SinkStatus, epochs: Sequence[EpochStatus]) -> int:
    """Of the epoch that it was given in vain; 0 if there is none."""
    return max((one.attempts for epoch in epochs for one in epoch.waiting if one.sink == sink.sink), default=0)


def _text(name: str) -> str:
    return name.replace("_", " ").capitalize()
