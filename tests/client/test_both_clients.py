"""Every method of both clients, against a real worker over real sockets."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from penstock.client.segments import QUOTA, AsyncSegmentClient, AttributeUpdate, Event, ReadResult, SegmentClient
from penstock.core import errors
from penstock.protocol.segment import frame_events
from tests.support.running_worker import RunningWorker
from tests.support.waiting import SECONDS_MAX

KEY = uuid.UUID(int=7)


class Blocking:
    """The blocking client with the other one's interface, so that one test serves both. Each call runs in a thread."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._client, name)
        if not callable(value):
            return value

        async def method(*arguments: Any, **options: Any) -> Any:
            result = await asyncio.to_thread(value, *arguments, **options)
            return Blocking(result) if name == "appender" else result

        return method

    async def collect(self, *arguments: Any, **options: Any) -> list[Event]:
        return await asyncio.to_thread(lambda: list(self._client.events(*arguments, **options)))

    async def __aenter__(self) -> "Blocking":
        self._client.__enter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await asyncio.to_thread(self._client.__exit__, *error)


class Async(AsyncSegmentClient):
    async def collect(self, *arguments: Any, **options: Any) -> list[Event]:
        return [event async for event in self.events(*arguments, **options)]


@pytest.fixture(params=["blocking", "asyncio"])
async def client(request: pytest.FixtureRequest, worker: RunningWorker) -> AsyncIterator[Any]:
    made: Any = Async(worker.address) if request.param == "asyncio" else Blocking(SegmentClient(worker.address))
    async with made:
        await made.create("s")
        yield made


async def fill(client: Any, name: str, *events: bytes) -> None:
    async with await client.appender(name, create=True) as appender:
        await appender.append_many(events)


def data(events: list[Event]) -> list[bytes]:
    return [event.data for event in events]


async def test_a_segment_is_created_once(client: Any) -> None:
    with pytest.raises(errors.SegmentExists) as raised:
        await client.create("s")
    assert str(raised.value) == "segment 's' exists already"
    assert raised.value.hint == errors.SegmentExists.hint
    await client.create("s", exist_ok=True)


async def test_info_shows_start_length_and_whether_it_is_sealed(client: Any) -> None:
    await fill(client, "s", b"abc", b"d")
    found = await client.info("s")
    assert (found.name, found.start, found.length, found.sealed) == ("s", 0, 20, False)
    await client.truncate("s", 11)
    await client.seal("s")
    await client.seal("s")
    found = await client.info("s")
    assert (found.start, found.length, found.sealed) == (11, 20, True)


async def test_a_missing_segment_is_an_error_everywhere(client: Any) -> None:
    calls: list[Callable[[], Awaitable[Any]]] = [
        lambda: client.info("x"),
        lambda: client.delete("x"),
        lambda: client.seal("x"),
        lambda: client.truncate("x", 0),
        lambda: client.attribute("x", KEY),
        lambda: client.set_attribute("x", KEY, 1),
        lambda: client.merge("x", "s"),
        lambda: client.merge("s", "x"),
        lambda: client.read("x", 0, 10),
        lambda: client.read("x", 0, 10, wait=False),
        lambda: client.collect("x"),
        lambda: client.appender("x"),
    ]
    for call in calls:
        with pytest.raises(errors.NoSuchSegment):
            await call()


async def test_delete_removes_it(client: Any) -> None:
    await client.delete("s")
    with pytest.raises(errors.NoSuchSegment):
        await client.delete("s")
    await client.delete("s", missing_ok=True)


async def test_attributes_are_set_whatever_they_are_or_under_a_condition(client: Any) -> None:
    assert await client.attribute("s", KEY) is None
    assert await client.set_attribute("s", KEY, 1, expected=None)
    assert not await client.set_attribute("s", KEY, 2, expected=None)
    assert not await client.set_attribute("s", KEY, 2, expected=5)
    assert await client.set_attribute("s", KEY.bytes, 2, expected=1)
    assert await client.set_attribute("s", KEY, -3)
    assert await client.set_attribute("s", KEY, -3)
    assert await client.attribute("s", KEY.bytes) == -3


async def test_a_key_has_16_bytes_and_the_smallest_value_is_reserved(client: Any) -> None:
    with pytest.raises(errors.RequestError):
        await client.attribute("s", b"short")
    with pytest.raises(errors.RequestError):
        await client.set_attribute("s", KEY, -(2**63))
    with pytest.raises(errors.RequestError):
        await client.merge("s", "x", [AttributeUpdate(KEY, -(2**63))])


async def test_merge_moves_the_bytes_and_updates_attributes_or_does_nothing(client: Any) -> None:
    await fill(client, "s", b"one")
    await fill(client, "staged", b"two", b"three")
    with pytest.raises(errors.ConditionFailed):
        await client.merge("s", "staged", [AttributeUpdate(KEY, 1, expected=9)])
    assert await client.merge("s", "staged", [AttributeUpdate(KEY, 1, expected=None)]) == 11 + 11 + 13
    assert data(await client.collect("s")) == [b"one", b"two", b"three"]
    assert await client.attribute("s", KEY) == 1
    with pytest.raises(errors.NoSuchSegment):
        await client.info("staged")
    await fill(client, "again", b"x")
    await client.merge("s", "again", [AttributeUpdate(KEY, 2)])
    assert await client.attribute("s", KEY) == 2


async def test_a_read_returns_bytes_and_where_they_end(client: Any) -> None:
    await fill(client, "s", b"abc")
    assert await client.read("s", 0, 100) == ReadResult(memoryview(frame_events([b"abc"])), True, False)
    assert bytes((await client.read("s", 8, 2)).data) == b"ab"
    assert not (await client.read("s", 8, 2)).at_tail
    assert await client.read("s", 11, 100, wait=False) == ReadResult(memoryview(b""), True, False)
    await client.seal("s")
    assert await client.read("s", 11, 100) == ReadResult(memoryview(b""), True, True)
    assert await client.read("s", 11, 100, wait=False) == ReadResult(memoryview(b""), True, True)


async def test_a_read_of_what_is_gone_or_not_yet_there_is_an_error(client: Any) -> None:
    await fill(client, "s", b"abc")
    await client.truncate("s", 5)
    with pytest.raises(errors.SegmentTruncated) as raised:
        await client.read("s", 0, 10)
    assert raised.value.start == 5
    with pytest.raises(errors.ConditionFailed):
        await client.read("s", 12, 10)
    with pytest.raises(errors.ConditionFailed):
        await client.read("s", 12, 10, wait=False)


async def test_a_read_at_the_tail_waits_for_data(client: Any, worker: RunningWorker) -> None:
    async with Async(worker.address) as other:
        reading = asyncio.create_task(other.read("s", 0, 100))
        await asyncio.sleep(0.1)
        assert not reading.done()
        await fill(client, "s", b"abc")
        assert (await reading).data == frame_events([b"abc"])


async def test_events_end_at_the_tail_or_follow_until_the_segment_is_sealed(client: Any) -> None:
    assert await client.collect("s") == []
    await fill(client, "s", b"one", b"", b"three")
    events = await client.collect("s")
    assert events == [(0, b"one"), (11, b""), (19, b"three")]
    assert [event.end for event in events] == [11, 19, 32]
    assert await client.collect("s", 11) == events[1:]
    await client.seal("s")
    assert await client.collect("s", follow=True) == events


async def test_events_larger_than_one_read_are_put_together(client: Any) -> None:
    large = [bytes([n]) * (3 << 20) for n in range(1, 3)]
    await fill(client, "s", b"small", *large, b"small")
    assert data(await client.collect("s")) == [b"small", *large, b"small"]


async def test_bytes_that_are_no_events_are_an_error(client: Any) -> None:
    async with await client.appender("s") as appender:
        await appender.append_block(frame_events([b"one"]) + b"\0\0\0", 1)
    assert data(await client.collect("s")) == [b"one"]
    await client.seal("s")
    with pytest.raises(errors.ProtocolError):
        await client.collect("s")


async def test_numbers_continue_where_the_writer_stopped(client: Any) -> None:
    async with await client.appender("s", KEY) as appender:
        assert appender.last_number is None
        assert appender.writer_id == KEY
        assert await appender.append(b"1") == 1
        assert await appender.append_many([b"2", b"3"]) == 3
        assert await appender.append_block(frame_events([b"4", b"5"]), 2) == 5
        assert await appender.append(b"9", number=9) == 9
        with pytest.raises(errors.RequestError):
            await appender.append(b"no", number=9)
        await appender.flush()
        assert (appender.acknowledged, appender.taken, appender.buffered_bytes) == (9, 9, 0)
    async with await client.appender("s", KEY.bytes) as appender:
        assert appender.last_number == 9
        assert await appender.append(b"10") == 10
    assert data(await client.collect("s")) == [b"1", b"2", b"3", b"4", b"5", b"9", b"10"]


@pytest.mark.slow
async def test_many_events_fill_many_blocks_within_the_window(client: Any) -> None:
    events = [b"%06d" % n * 20 for n in range(20_000)]
    async with await client.appender("s", window_bytes=64 << 10, block_bytes=4 << 10) as appender:
        for event in events[:10_000]:
            await appender.append(event)
            assert appender.buffered_bytes <= 64 << 10
        await appender.append_many(events[10_000:])
    assert data(await client.collect("s")) == events


async def test_an_event_larger_than_the_window_still_goes_through(client: Any) -> None:
    async with await client.appender("s", window_bytes=1024, block_bytes=1024) as appender:
        for _ in range(3):
            await appender.append(b"x" * 100_000)
        with pytest.raises(errors.LimitExceeded):
            await appender.append(b"x" * (9 << 20))
    assert (await client.info("s")).length == 3 * 100_008


async def test_leaving_on_an_error_does_not_flush(client: Any) -> None:
    async def fail() -> None:
        async with await client.appender("s", KEY) as appender:
            await appender.append(b"first")
            await appender.flush()
            await appender.append_many([b"second", b"third"])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    async with await client.appender("s", KEY) as appender:
        stored = data(await client.collect("s"))
        assert stored in ([b"first"], [b"first", b"second", b"third"])  # asyncio sends without a flush
        assert appender.last_number == len(stored)


async def test_a_sealed_segment_is_an_error_and_the_events_stay(client: Any) -> None:
    appender = await client.appender("s")
    await appender.append(b"one")
    await appender.flush()
    await client.seal("s")
    await appender.append(b"two")
    for _ in range(2):
        with pytest.raises(errors.SegmentSealed):
            await appender.flush()
    assert appender.buffered_bytes == 11
    await appender.close()
    with pytest.raises(errors.SegmentSealed):
        await client.appender("s")


async def test_appends_wait_for_the_quota_and_resume_when_it_is_raised(client: Any, worker: RunningWorker) -> None:
    await client.create("small", quota_bytes=1000)
    assert await client.attribute("small", QUOTA) == 1000
    appender = await client.appender("small", block_bytes=500)

    async def append_all() -> None:
        """Waits for room at the first append that learns there is none, or at the flush."""
        await appender.append_many([b"%03d" % n * 30 for n in range(40)])
        await appender.flush()

    flushing = asyncio.create_task(append_all())
    await asyncio.sleep(0.3)
    assert not flushing.done()
    async with Async(worker.address) as other:
        assert (await other.info("small")).length <= 1000
        await other.truncate("small", (await other.info("small")).length)
        await asyncio.sleep(0.3)
        await other.set_attribute("small", QUOTA, 100_000)
    await flushing
    assert appender.acknowledged == 40
    await appender.close()
    assert (await client.info("small")).length == 40 * 98


async def test_a_quota_that_stays_full_is_raised_and_nothing_is_lost(worker: RunningWorker) -> None:
    for made in (Async(worker.address, retry_seconds=0.2), Blocking(SegmentClient(worker.address, retry_seconds=0.2))):
        client: Any = made
        async with client:
            await client.create("full", quota_bytes=50)
            appender = await client.appender("full", block_bytes=20, window_bytes=10_000)
            await appender.append_many([b"%d" % n for n in range(10)])
            with pytest.raises(errors.QuotaReached):
                await appender.flush()
            with pytest.raises(errors.QuotaReached):
                await appender.append(b"not taken")
            await client.set_attribute("full", QUOTA, 1000)
            await appender.flush()
            assert data(await client.collect("full")) == [b"%d" % n for n in range(10)]
            await appender.close()
            await client.delete("full")


async def test_two_writers_share_a_segment_and_each_keeps_its_order(client: Any) -> None:
    async with await client.appender("s", block_bytes=64) as one, await client.appender("s", block_bytes=64) as two:
        for n in range(200):
            await one.append(b"a%d" % n)
            await two.append(b"b%d" % n)
    found = data(await client.collect("s"))
    for letter in (b"a", b"b"):
        assert [event for event in found if event[:1] == letter] == [letter + b"%d" % n for n in range(200)]


async def test_calls_work_while_an_appender_and_a_waiting_read_are_busy(worker: RunningWorker) -> None:
    async with Async(worker.address) as client:
        await client.create("s")
        following = client.events("s", follow=True)
        first = asyncio.ensure_future(anext(following))
        await asyncio.sleep(0.05)
        assert (await client.info("s")).length == 0
        async with await client.appender("s") as appender:
            await asyncio.gather(*(appender.append(b"%d" % n) for n in range(100)))
        assert (await first).offset == 0
        await following.aclose()
        assert sorted(data(await client.collect("s"))) == sorted(b"%d" % n for n in range(100))


async def test_an_event_leaves_without_a_flush_with_asyncio(worker: RunningWorker) -> None:
    async with Async(worker.address) as client:
        appender = await client.appender("s", create=True)
        for n in range(3):
            await appender.append(b"%d" % n)
        async with asyncio.timeout(SECONDS_MAX):
            while appender.acknowledged != 3:  # noqa: ASYNC110  that is what is tested
                await asyncio.sleep(0.005)
        assert data(await client.collect("s")) == [b"0", b"1", b"2"]
        await appender.close()
