from collections.abc import AsyncIterator

import pytest

from penstock.connectors.connector_protocol import sink as connector_connection
from tests.connectors.connector_protocol.scripted_sink import ScriptedSink, scripted_sink


@pytest.fixture
async def scripted(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ScriptedSink]:
    """A sink that does not notice by itself that the worker closes."""
    monkeypatch.setattr(connector_connection, "FAREWELL_SECONDS", 0.05)
    async with scripted_sink() as sink:
        yield sink
