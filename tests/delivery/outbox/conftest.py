from collections.abc import AsyncIterator

import pytest

from tests.delivery.outbox.scene import SinkScene, sink_scene


@pytest.fixture
async def scene() -> AsyncIterator[SinkScene]:
    async with sink_scene() as opened:
        yield opened
