"""Every test runs with the blocking source, and with the asyncio one on plain and on asynchronous iterators."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from penstock.client import AsyncSource, Source
from penstock.client.source import Factory
from penstock.client.source.message import AsyncFactory, Yielded


class Asynchronous(AsyncSource):
    """The asyncio source with the other's interface."""

    def run(self) -> None:  # type: ignore[override]
        asyncio.run(super().run())


class WithAsyncIterators(Asynchronous):
    def stream(self, name: str, factory: Any, *, stream_id: int | None = None) -> Any:
        return super().stream(name, asynchronous(factory), stream_id=stream_id)


def asynchronous(factory: Factory) -> AsyncFactory:
    async def iterate(after: int | None) -> AsyncIterator[Yielded]:
        for given in factory(after):
            yield given

    return iterate


KINDS: dict[str, Callable[..., Any]] = {
    "blocking": Source,
    "asyncio": Asynchronous,
    "async iterators": WithAsyncIterators,
}


@pytest.fixture(params=KINDS)
def make_source(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Makes sources of one kind."""

    def make(address: str, **options: Any) -> Any:
        return KINDS[request.param](
            address, **{"source": "test", "retry_seconds": 30.0, "poll_seconds": 0.01} | options
        )

    return make
