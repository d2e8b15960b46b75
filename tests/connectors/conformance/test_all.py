"""No type is left out."""

from collections.abc import Iterator

from penstock.connectors.registry import CONNECTORS
from penstock.testing.conformance import ConnectorConformance
from tests.connectors.conformance import (
    test_brokers,
    test_event_logs,
    test_http,
    test_programs,
    test_small_ones,
    test_sockets,
    test_stores,
    test_web,
)


def suites() -> Iterator[type[ConnectorConformance]]:
    modules = (
        test_brokers,
        test_event_logs,
        test_http,
        test_programs,
        test_small_ones,
        test_sockets,
        test_stores,
        test_web,
    )
    for module in modules:
        for found in vars(module).values():
            if isinstance(found, type) and issubclass(found, ConnectorConformance) and "connector" in vars(found):
                yield found


def test_every_type_has_its_conformance_tests() -> None:
    assert {suite.connector for suite in suites()} == {CONNECTORS.get(name) for name in CONNECTORS.own}
