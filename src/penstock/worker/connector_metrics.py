"""The connectors of the application, for Prometheus."""

from collections.abc import Callable, Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock.application.report import ConnectorStatus

_LABELS = ["connector", "type"]
_GAUGES = {
    "streams": "Streams that are open",
    "waiting_streams": "Streams that may not send: closed by a breaker, or paused",
    "closed_count": "Streams that its port in has closed",
    "held_bytes": "Bytes held for streams that its port in has closed",
}
_COUNTERS = {
    "events_in": "Events that came in",
    "bytes_in": "Bytes of events that came in",
    "events_out": "Events that have left",
    "letters": "What came in and is no event, or was to leave and never will",
}


class HostedConnectors(Collector):
    """Metrics `penstock_connector_<name>`, labelled with connector and type; `…_up` is 1 for one that listens, or is
    connected; `…_own_total` are the numbers that a connector counts itself, by `what`.
    """

    def __init__(self, connectors: Callable[[], Sequence[ConnectorStatus]]) -> None:
        self._connectors = connectors

    def collect(self) -> Iterator[Metric]:
        found = self._connectors()
        for name, text in _GAUGES.items():
            gauge = GaugeMetricFamily(f"penstock_connector_{name}", text, labels=_LABELS)
            yield _filled(gauge, [(one, getattr(one, name)) for one in found])
        for name, text in _COUNTERS.items():
            counter = CounterMetricFamily(f"penstock_connector_{name}", text, labels=_LABELS)
            yield _filled(counter, [(one, getattr(one, name)) for one in found])
        up = GaugeMetricFamily("penstock_connector_up", "1 if it listens, or is connected", labels=_LABELS)
        yield _filled(up, [(one, int(one.state == "connected")) for one in found])
        paused = GaugeMetricFamily("penstock_connector_paused", "1 while an operator has paused it", labels=_LABELS)
        yield _filled(paused, [(one, int(one.paused)) for one in found])
        own = CounterMetricFamily(
            "penstock_connector_own", "What the connector counts itself", labels=[*_LABELS, "what"]
        )
        for one in found:
            for what, count in one.counts.items():
                own.add_metric([one.name, one.type, what], count)
        yield own


def _filled(family: Metric, values: Sequence[tuple[ConnectorStatus, int]]) -> Metric:
    for one, value in values:
        family.add_metric([one.name, one.type], value)  # type: ignore[attr-defined]
    return family
