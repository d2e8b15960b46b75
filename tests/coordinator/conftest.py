"""A coordinator on a store in memory."""

from collections.abc import AsyncIterator

import pytest

from tests.coordinator.scene import Scene, opened


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    async with opened() as running:
        yield running
