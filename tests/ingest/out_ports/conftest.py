"""Hosts of connectors on a real store, which can be reopened in the state that a crash has left."""

from collections.abc import AsyncIterator

import pytest

from tests.ingest.conftest import Connect, Serve, connect, running, serve
from tests.ingest.out_ports.scene import Scene

__all__ = ["Connect", "connect", "running", "scene", "serve"]


@pytest.fixture
async def scene(serve: Serve) -> AsyncIterator[Scene]:
    scene = Scene(serve)
    await scene.open()
    yield scene
    await scene.leave()
