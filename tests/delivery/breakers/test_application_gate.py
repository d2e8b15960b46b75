"""The gate of programs while an application starts, runs and is stopped."""

import asyncio

from penstock.connectors.api import StreamRef
from penstock.delivery.breakers.signals import ApplicationGate, Signals
from penstock.delivery.breakers.table import Breakers

PROGRAM, CONNECTOR = StreamRef("program", 1), StreamRef("connector", 1)


class Recorded:
    """A gate, and the changes that it reports."""

    def __init__(self) -> None:
        self.signals = Signals(Breakers(), asyncio.get_running_loop().time)
        self.gate = ApplicationGate(self.signals)
        self.changes: list[tuple[StreamRef, bool]] = []
        self.gate.subscribe(lambda stream, may_send: self.changes.append((stream, may_send)))


async def test_no_program_may_send_until_links_are_known() -> None:
    recorded = Recorded()
    recorded.gate.started(PROGRAM)
    assert not recorded.gate.may_send(PROGRAM)
    recorded.gate.open()
    assert recorded.gate.may_send(PROGRAM)
    assert recorded.changes == [(PROGRAM, True)]


async def test_a_breaker_that_passes_again_while_the_gate_is_shut_reports_nothing() -> None:
    recorded = Recorded()
    recorded.signals.relink("program", ["sink"])
    recorded.gate.started(PROGRAM)
    recorded.signals.relink("program", [])
    assert not recorded.gate.may_send(PROGRAM)
    assert recorded.changes == []


async def test_streams_of_connectors_are_reported_whether_the_gate_is_shut_or_not() -> None:
    recorded = Recorded()
    recorded.signals.relink("connector", ["sink"])
    recorded.signals.started(CONNECTOR)
    recorded.signals.relink("connector", [])
    recorded.signals.relink("connector", ["sink"])
    assert recorded.changes == [(CONNECTOR, True), (CONNECTOR, False)]
