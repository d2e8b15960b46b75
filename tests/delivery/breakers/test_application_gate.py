"""The gate of programs while an application starts, runs and is stopped."""

import asyncio

from penstock.connectors.api import StreamRef
from penstock.delivery.breakers.signals import ApplicationGate, Signals
from penstock.delivery.breakers.table import Breakers

PROGRAM, HOSTED = StreamRef("program", 1), StreamRef("hosted", 1)


class Heard:
    """A guard, and what is told of changes."""

    def __init__(self) -> None:
        self.signals = Signals(Breakers(), asyncio.get_running_loop().time)
        self.guard = ApplicationGate(self.signals)
        self.changes: list[tuple[StreamRef, bool]] = []
        self.guard.subscribe(lambda stream, may_send: self.changes.append((stream, may_send)))


async def test_until_it_is_known_where_streams_lead_no_program_may_send() -> None:
    heard = Heard()
    heard.guard.started(PROGRAM)
    assert not heard.guard.may_send(PROGRAM)
    heard.guard.open()
    assert heard.guard.may_send(PROGRAM)
    assert heard.changes == [(PROGRAM, True)]


async def test_a_breaker_that_opens_while_it_is_shut_opens_nothing() -> None:
    heard = Heard()
    heard.signals.relink("program", ["sink"])
    heard.guard.started(PROGRAM)
    heard.signals.relink("program", [])
    assert not heard.guard.may_send(PROGRAM)
    assert heard.changes == []


async def test_of_streams_of_hosted_connectors_it_tells_whatever_it_is() -> None:
    heard = Heard()
    heard.signals.relink("hosted", ["sink"])
    heard.signals.started(HOSTED)
    heard.signals.relink("hosted", [])
    heard.signals.relink("hosted", ["sink"])
    assert heard.changes == [(HOSTED, True), (HOSTED, False)]
