"""What window operators hold, for Prometheus."""

from collections.abc import Callable, Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock.coordinator.window_reports import BucketStatus

_LABELS = ["pipeline", "operator", "bucket"]
_GAUGES = {
    "open_windows": "Windows that have state",
    "keys": "Keys in all open windows, a key once for each window",
    "state_bytes": "Bytes of state",
}
_COUNTERS = {
    "late_kept": "Late events that left through the late port",
    "late_dropped": "Late events that were only counted",
}


class Windows(Collector):
    """Metrics `penstock_window_<name>`, labelled with pipeline, operator and bucket: the last of each."""

    def __init__(self, buckets: Callable[[], Sequence[BucketStatus]]) -> None:
        self._buckets = buckets

    def collect(self) -> Iterator[Metric]:
        found = self._buckets()
        epoch = GaugeMetricFamily("penstock_window_epoch", "The epoch that was reported last", labels=_LABELS)
        for one in found:
            epoch.add_metric(_labels(one), one.epoch)
        yield epoch
        for name, text in _GAUGES.items():
            yield _filled(GaugeMetricFamily(f"penstock_window_{name}", text, labels=_LABELS), name, found)
        for name, text in _COUNTERS.items():
            yield _filled(CounterMetricFamily(f"penstock_window_{name}", text, labels=_LABELS), name, found)


def _filled(
    family: GaugeMetricFamily | CounterMetricFamily, name: str, found: Sequence[BucketStatus]
) -> GaugeMetricFamily | CounterMetricFamily:
    for one in found:
        family.add_metric(_labels(one), getattr(one.numbers, name))
    return family


def _labels(one: BucketStatus) -> list[str]:
    return [one.pipeline, one.operator, str(one.numbers.bucket)]
