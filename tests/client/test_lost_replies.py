"""A request that was done, and whose reply was lost: repeated where that is safe, else reported to the caller."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from penstock.client.segments import AsyncSegmentClient, AttributeUpdate, SegmentClient
from penstock.core.errors import PenstockError, Unavailable
from tests.support.cutting_proxy import CuttingProxy
from tests.support.running_worker import RunningWorker

KEY = uuid.UUID(int=3)


@pytest.fixture
async def proxy(worker: RunningWorker) -> AsyncIterator[CuttingProxy]:
    async with CuttingProxy(worker.ports["segment"], cuts=0, after_hello=True).run() as proxy:
        yield proxy


@pytest.fixture
async def direct(worker: RunningWorker) -> AsyncIterator[AsyncSegmentClient]:
    async with AsyncSegmentClient(worker.address) as client:
        yield client


Do = Callable[..., Any]


@pytest.fixture(params=["blocking", "asyncio"])
def do(request: pytest.FixtureRequest, proxy: CuttingProxy) -> Do:
    """Calls a method of a fresh client, whose first reply is lost."""

    async def blocking(name: str, *arguments: Any, **options: Any) -> Any:
        proxy.cuts_left = 1
        with SegmentClient(proxy.address, retry_seconds=5) as client:
            return await asyncio.to_thread(getattr(client, name), *arguments, **options)

    async def not_blocking(name: str, *arguments: Any, **options: Any) -> Any:
        proxy.cuts_left = 1
        async with AsyncSegmentClient(proxy.address, retry_seconds=5) as client:
            return await getattr(client, name)(*arguments, **options)

    return blocking if request.param == "blocking" else not_blocking


async def exists(client: AsyncSegmentClient, name: str) -> bool:
    try:
        await client.info(name)
    except PenstockError:
        return False
    return True


async def test_create_and_delete_are_done(do: Do, direct: AsyncSegmentClient) -> None:
    await do("create", "s", quota_bytes=77)
    assert await exists(direct, "s")
    await do("delete", "s")
    assert not await exists(direct, "s")


async def test_idempotent_requests_are_repeated(do: Do, direct: AsyncSegmentClient) -> None:
    await direct.create("s")
    async with await direct.appender("s") as appender:
        await appender.append(b"12345678")
    assert (await do("info", "s")).length == 16
    assert (await do("read", "s", 8, 100)).data == b"12345678"
    assert await do("set_attribute", "s", KEY, 5)
    assert await do("attribute", "s", KEY) == 5
    await do("truncate", "s", 3)
    await do("seal", "s")
    assert (await direct.info("s")).start == 3


async def test_a_merge_is_not_repeated_and_the_hint_names_what_to_check(do: Do, direct: AsyncSegmentClient) -> None:
    await direct.create("s")
    await direct.create("source")
    with pytest.raises(Unavailable) as raised:
        await do("merge", "s", "source", [AttributeUpdate(KEY, 1)])
    assert "MergeSegments" in str(raised.value)
    assert "source" in raised.value.hint
    assert not await exists(direct, "source")
    assert await direct.attribute("s", KEY) == 1


async def test_a_conditional_update_is_not_repeated(do: Do, direct: AsyncSegmentClient) -> None:
    await direct.create("s")
    with pytest.raises(Unavailable) as raised:
        await do("set_attribute", "s", KEY, 1, expected=None)
    assert "attribute" in raised.value.hint
    assert await direct.attribute("s", KEY) == 1


async def test_a_segment_that_another_client_created_or_removed_before_is_still_an_error(
    proxy: CuttingProxy, direct: AsyncSegmentClient
) -> None:
    await direct.create("s")
    async with AsyncSegmentClient(proxy.address) as client:
        with pytest.raises(PenstockError, match="exists already"):
            await client.create("s")
        with pytest.raises(PenstockError, match=r"segment .* not found"):
            await client.delete("x")
