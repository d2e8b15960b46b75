"""The worker's numbers for Prometheus, read from the parts that keep them when somebody asks."""

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

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


def _text(name: str) -> str:
    return name.replace("_", " ").capitalize()
