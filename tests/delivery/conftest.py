from collections.abc import AsyncIterator

import pytest

from tests.delivery.stage import Stage, staged


@pytest.fixture
async def stage(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stage]:
    async with staged(monkeypatch) as opened:
        yield opened
