"""`segment`: values in a segment of a real store, over the segment protocol."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.client.segments import AsyncSegmentClient
from penstock.connectors.api import Lost, StreamGone
from penstock.connectors.registry import make_connector
from penstock.connectors.segment import Segment, SegmentOptions
from penstock.core.errors import RequestError
from penstock.core.types import Guarantee
from tests.connectors.real_host import Hosted, hosting
from tests.support.waiting import eventually


@asynccontextmanager
async def appending(folder: Path, **config: Any) -> AsyncIterator[tuple[Hosted, AsyncSegmentClient]]:
    async with hosting(folder, "segment", {"segment": "numbers", **config}, has_in=True) as hosted:
        await hosted.connected()
        async with AsyncSegmentClient(hosted.host.segment_port.address) as client:
            yield hosted, client


async def stored(client: AsyncSegmentClient, segment: str = "numbers") -> list[bytes]:
    return [event.data async for event in client.events(segment)]


async def test_values_are_appended_as_raw_events(tmp_path: Path) -> None:
    async with appending(tmp_path) as (hosted, client):
        await hosted.deliver([b"one", b"two"], [1, 2], 5)
        await hosted.deliver([b"three"], [3], 5, "p:1:1/2")
        await hosted.deliver([b"of a window"], [0], None, "p:1:1/3")
        assert await stored(client) == [b"one", b"two", b"three", b"of a window"]


async def test_a_repeated_delivery_is_stored_once(tmp_path: Path) -> None:
    async with appending(tmp_path) as (hosted, client):
        for name in ("p:1:7/0", "p:1:7/0", "p:1:7/1", "p:1:7/1"):
            await hosted.deliver([name.encode()], [1], 5, name)
        assert await stored(client) == [b"p:1:7/0", b"p:1:7/1"]


async def test_a_delivery_repeated_after_a_restart_is_stored_once(tmp_path: Path) -> None:
    async with appending(tmp_path) as (hosted, client):
        await hosted.deliver([b"one"], [1], 5, "p:1:7/0")
        await hosted.deliver([b"two"], [2], 6, "p:1:7/1")
    async with appending(tmp_path) as (hosted, client):
        await hosted.deliver([b"one"], [1], 5, "p:1:7/0")
        await hosted.deliver([b"two"], [2], 6, "p:1:7/1")
        await hosted.deliver([b"three"], [3], 5, "p:1:8/0")
        assert await stored(client) == [b"one", b"two", b"three"]


async def test_streams_may_come_in_any_order(tmp_path: Path) -> None:
    async with appending(tmp_path) as (hosted, client):
        await hosted.deliver([b"b"], [1], 6, "p:1:8/1")
        await hosted.deliver([b"held meanwhile"], [1], 5, "p:1:7/0")
        assert await stored(client) == [b"b", b"held meanwhile"]


async def test_a_new_run_of_the_pipeline_is_not_a_repeat(tmp_path: Path) -> None:
    async with appending(tmp_path) as (hosted, client):
        await hosted.deliver([b"one"], [1], 5, "p:1:1/0")
        await hosted.deliver([b"one"], [1], 5, "p:2:1/0")
        assert await stored(client) == [b"one", b"one"]


async def test_a_delivery_without_a_name_is_stored_at_least_once(tmp_path: Path) -> None:
    async with appending(tmp_path) as (hosted, client):
        await hosted.deliver([b"one"], [1], 5, "")
        await hosted.deliver([b"one"], [1], 5, "")
        assert await stored(client) == [b"one", b"one"]


async def test_a_large_delivery_is_stored_in_blocks_and_in_order(tmp_path: Path) -> None:
    values = [bytes([number]) * (3 << 20) for number in range(7)]
    async with appending(tmp_path) as (hosted, client):
        await hosted.deliver(values, [*range(1, 8)], 5)
        await hosted.deliver(values, [*range(1, 8)], 5)
        assert await stored(client) == values


async def test_a_value_over_the_segment_limit_is_a_dead_letter_and_the_others_are_stored(tmp_path: Path) -> None:
    async with appending(tmp_path) as (hosted, client):
        with pytest.raises(StreamGone) as raised:
            await hosted.deliver([b"one", bytes(9 << 20), b"three"], [1, 2, 3], 5)
        assert raised.value.places == [1]
        assert await stored(client) == [b"one", b"three"]


async def test_another_worker_can_be_appended_to(tmp_path: Path) -> None:
    async with hosting(tmp_path / "there", "null", {}) as there:
        address = there.host.segment_port.address
        config = {"segment": "numbers", "worker": address}
        async with hosting(tmp_path / "here", "segment", config, has_in=True) as here:
            await here.connected()
            await here.deliver([b"one"], [1], 5)
        async with AsyncSegmentClient(address) as client:
            assert await stored(client) == [b"one"]


async def test_an_unavailable_worker_is_waited_for_and_nothing_is_lost(tmp_path: Path) -> None:
    async with hosting(tmp_path / "there", "null", {}) as there:
        config = {"segment": "numbers", "worker": there.host.segment_port.address, "timeout": "200ms"}
    async with hosting(tmp_path / "here", "segment", config, has_in=True) as here:
        await eventually(lambda: "cannot be reached" in here.host.status().reason)
        with pytest.raises(Lost, match=r"cannot be reached|has not answered"):
            await here.deliver([b"one"], [1], 5)


async def test_a_sealed_segment_is_lost_with_a_hint(tmp_path: Path) -> None:
    async with appending(tmp_path) as (hosted, client):
        await client.seal("numbers")
        with pytest.raises(Lost, match="sealed"):
            await hosted.deliver([b"one"], [1], 5)


def test_pipelines_read_the_segment_itself_but_not_that_of_another_worker() -> None:
    here = SegmentOptions(segment="a/b")
    assert Segment.source_name(here, "mine") == "segment:a/b"
    assert Segment.capabilities(here).source is Guarantee.EXACTLY_ONCE
    there = SegmentOptions(segment="a/b", worker="example.org:7101")
    assert Segment.source_name(there, "mine") is None
    assert Segment.capabilities(there).source is None


def test_a_segment_of_the_worker_itself_is_refused() -> None:
    with pytest.raises(RequestError, match="contains stored events"):
        make_connector("segment", {"segment": "pipeline/p/out"})
