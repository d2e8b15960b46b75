"""Connections that are cut anywhere: every event is stored once, in order; every call succeeds, or reports that it has
not.
"""

import asyncio
import uuid

import pytest

from penstock.client.segments import AsyncSegmentClient, SegmentClient
from tests.support.cutting_proxy import CuttingProxy
from tests.support.running_worker import RunningWorker

EVENTS = [b"%06d" % n * (1 + n % 40) for n in range(4000)]
WRITER = uuid.UUID(int=1)


def append_blocking(address: str) -> None:
    with (
        SegmentClient(address, retry_seconds=20) as client,
        client.appender("s", WRITER, window_bytes=32_000, block_bytes=2_000) as appender,
    ):
        for event in EVENTS[:1000]:
            appender.append(event)
            assert appender.buffered_bytes <= 32_000
        appender.append_many(EVENTS[1000:])


async def append_async(address: str) -> None:
    async with (
        AsyncSegmentClient(address, retry_seconds=20) as client,
        await client.appender("s", WRITER, window_bytes=32_000, block_bytes=2_000) as appender,
    ):
        for event in EVENTS[:1000]:
            await appender.append(event)
            assert appender.buffered_bytes <= 32_000
        await appender.append_many(EVENTS[1000:])


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["blocking", "asyncio"])
async def test_each_event_is_stored_once_over_cut_connections(worker: RunningWorker, kind: str, seed: int) -> None:
    async with AsyncSegmentClient(worker.address) as client:
        await client.create("s")
        proxy = CuttingProxy(worker.ports["segment"], cuts=30, bytes_max=60_000, seed=seed)
        async with proxy.run():
            if kind == "blocking":
                await asyncio.to_thread(append_blocking, proxy.address)
            else:
                await append_async(proxy.address)
        assert [event.data async for event in client.events("s")] == EVENTS
        assert proxy.cuts_left < 30


@pytest.mark.parametrize("seed", range(3))
async def test_reads_continue_over_cut_connections(worker: RunningWorker, seed: int) -> None:
    async with AsyncSegmentClient(worker.address) as client, await client.appender("s", create=True) as appender:
        await appender.append_many(EVENTS)
    proxy = CuttingProxy(worker.ports["segment"], cuts=10, bytes_max=100_000, seed=seed)
    async with proxy.run():
        async with AsyncSegmentClient(proxy.address) as client:
            assert [event.data async for event in client.events("s")] == EVENTS

        def read() -> list[bytes]:
            with SegmentClient(proxy.address) as client:
                return [event.data for event in client.events("s")]

        proxy.cuts_left = 10
        assert await asyncio.to_thread(read) == EVENTS


@pytest.mark.parametrize("seed", range(5))
async def test_management_is_done_once_over_cut_connections(worker: RunningWorker, seed: int) -> None:
    proxy = CuttingProxy(worker.ports["segment"], cuts=40, bytes_max=400, seed=seed)
    key = uuid.UUID(int=3)

    def manage() -> None:
        with SegmentClient(proxy.address) as client:
            for n in range(20):
                client.create(f"t{n}")
                client.set_attribute(f"t{n}", key, n)
                assert client.attribute(f"t{n}", key) == n
                client.seal(f"t{n}")
                assert client.info(f"t{n}").sealed
                client.truncate(f"t{n}", 0)
                client.delete(f"t{n}")

    async with proxy.run():
        await asyncio.to_thread(manage)
        proxy.cuts_left = 40
        async with AsyncSegmentClient(proxy.address) as client:
            for n in range(20):
                await client.create(f"t{n}")
                await client.set_attribute(f"t{n}", key, n)
                await client.delete(f"t{n}")
