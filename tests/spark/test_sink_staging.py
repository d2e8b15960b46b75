"""What a task stages: durable and in order when `finish` returns, despite lost connections; gone after `discard`."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.client.segments import SegmentClient
from penstock.client.segments.failures import Interrupted
from penstock.core.address import Address
from penstock.core.errors import LimitExceeded, NoSuchSegment, RequestError, SegmentExists
from penstock.protocol.segment import frame_events
from penstock.spark.sink.staging import PORTS_MAX, Link, Staging, segment_address
from tests.spark.asking import connections, segment_names
from tests.support.cutting_proxy import CuttingProxy
from tests.support.running_worker import RunningWorker, running_worker
from tests.support.tls import client_context, server_context

PREFIX = "staging/counts/3/7/0-12"
BLOCKS = [[b"%d %d" % (block, n) * (1 + n % 20) for n in range(20)] for block in range(200)]


@pytest.fixture
def link(worker: RunningWorker) -> Iterator[Link]:
    link = Link(lambda: Address.parse(worker.address))
    yield link
    link.drop()


def stored(worker: RunningWorker, segment: str) -> list[bytes]:
    with SegmentClient(worker.address) as client:
        return [event.data for event in client.events(segment)]


def append_and_finish(staging: Staging) -> None:
    staging.append("out", frame_events([b"a"]), 1)
    staging.finish()


def test_blocks_are_stored_in_order_before_finish_returns(worker: RunningWorker, link: Link) -> None:
    staging = Staging(link, PREFIX, window_bytes=10_000)
    for block in BLOCKS:
        staging.append("out", frame_events(block), len(block))
        assert staging.buffered_bytes <= 10_000
    (port,) = staging.finish()
    events = [event for block in BLOCKS for event in block]
    assert port.segment == f"{PREFIX}/out"
    assert port.rows == len(events)
    assert port.length == len(frame_events(events))
    assert stored(worker, port.segment) == events


def test_a_block_larger_than_the_window_is_sent_alone(worker: RunningWorker, link: Link) -> None:
    staging = Staging(link, PREFIX, window_bytes=1_000)
    staging.append("out", frame_events([b"small"]), 1)
    staging.append("out", frame_events([b"x" * 5_000]), 1)
    staging.finish()
    assert stored(worker, f"{PREFIX}/out") == [b"small", b"x" * 5_000]


def test_each_port_has_its_own_segment_and_all_share_the_window(worker: RunningWorker, link: Link) -> None:
    staging = Staging(link, PREFIX, window_bytes=10_000)
    for number, block in enumerate(BLOCKS):
        staging.append(f"port{number % 3}", frame_events(block), len(block))
        assert staging.buffered_bytes <= 10_000
    staged = staging.finish()
    assert [s.port for s in staged] == ["port0", "port1", "port2"]
    for first, s in enumerate(staged):
        assert stored(worker, s.segment) == [event for block in BLOCKS[first::3] for event in block]


def test_without_appends_no_segment_is_created(worker: RunningWorker, link: Link) -> None:
    assert Staging(link, PREFIX).finish() == ()
    assert segment_names(worker, "staging/") == []


def test_the_connection_is_reused_by_the_next_task(worker: RunningWorker, link: Link) -> None:
    for task in range(3):
        staging = Staging(link, f"staging/counts/3/7/0-{task}")
        staging.append("out", frame_events([b"a"]), 1)
        staging.finish()
    assert connections(worker) == 1


def test_a_connection_that_has_had_many_writers_is_replaced_between_tasks(worker: RunningWorker, link: Link) -> None:
    first = link.connected()
    link.writers = 1_000
    staging = Staging(link, PREFIX)
    staging.append("out", frame_events([b"a"]), 1)
    staging.finish()
    assert link.connected() is not first
    assert link.writers == 1


@pytest.mark.parametrize("seed", range(6))
async def test_blocks_are_stored_once_across_lost_connections(worker: RunningWorker, seed: int) -> None:
    proxy = CuttingProxy(worker.ports["segment"], cuts=12, bytes_max=30_000, seed=seed)

    def stage() -> None:
        link = Link(lambda: Address.parse(proxy.address))
        staging = Staging(link, PREFIX, window_bytes=20_000, retry_seconds=20)
        for number, block in enumerate(BLOCKS):
            staging.append(f"port{number % 2}", frame_events(block), len(block))
        staging.finish()
        link.drop()

    async with proxy.run():
        await asyncio.to_thread(stage)
    for first in range(2):
        events = [event for block in BLOCKS[first::2] for event in block]
        assert await asyncio.to_thread(stored, worker, f"{PREFIX}/port{first}") == events
    assert proxy.cuts_left < 12


async def test_a_block_whose_acknowledgement_is_lost_is_stored_once(worker: RunningWorker) -> None:
    proxy = CuttingProxy(worker.ports["segment"], cuts=3, after_hello=True)

    def stage() -> None:
        link = Link(lambda: Address.parse(proxy.address))
        staging = Staging(link, PREFIX, retry_seconds=20)
        staging.append("out", frame_events([b"once"]), 1)
        staging.finish()
        link.drop()

    async with proxy.run():
        await asyncio.to_thread(stage)
    assert await asyncio.to_thread(stored, worker, f"{PREFIX}/out") == [b"once"]


def test_a_segment_name_that_exists_is_an_error(worker: RunningWorker, link: Link) -> None:
    with SegmentClient(worker.address) as client:
        client.create(f"{PREFIX}/out")
    staging = Staging(link, PREFIX)
    with pytest.raises(SegmentExists):
        append_and_finish(staging)


def test_discard_leaves_nothing(worker: RunningWorker, link: Link) -> None:
    staging = Staging(link, PREFIX)
    for block in BLOCKS:
        staging.append("out", frame_events(block), len(block))
        staging.append("late", frame_events(block), len(block))
    staging.discard()
    assert segment_names(worker, "staging/") == []


def test_discard_after_a_lost_connection_leaves_nothing(worker: RunningWorker, link: Link) -> None:
    staging = Staging(link, PREFIX)
    staging.append("out", frame_events([b"a"]), 1)
    staging.finish()
    link.drop()
    staging.discard()
    assert segment_names(worker, "staging/") == []


def test_discard_without_a_worker_is_silent() -> None:
    nowhere = Address("127.0.0.1", 1)
    asked = []

    def found() -> Address:
        asked.append(nowhere)
        return nowhere

    staging = Staging(Link(found), PREFIX, retry_seconds=0)
    staging.append("out", frame_events([b"a"]), 1)
    asked.clear()
    staging.discard()
    assert asked, "it has tried"


def test_an_unavailable_worker_is_waited_for_up_to_a_limit() -> None:
    staging = Staging(Link(lambda: Address("127.0.0.1", 1)), PREFIX, retry_seconds=0.2)
    staging.append("out", frame_events([b"a"]), 1)
    with pytest.raises(Interrupted, match="cannot be reached"):
        staging.finish()


def test_a_refusal_by_the_worker_is_raised_and_leaves_no_segment(worker: RunningWorker, link: Link) -> None:
    staging = Staging(link, "staging/" + "x" * 2_000)
    with pytest.raises(LimitExceeded, match="name_bytes_max"):
        append_and_finish(staging)
    with pytest.raises(NoSuchSegment):
        stored(worker, "staging/" + "x" * 2_000 + "/out")


def test_more_ports_than_a_pipeline_may_have_are_refused(link: Link) -> None:
    staging = Staging(link, PREFIX)
    for number in range(PORTS_MAX):
        staging.append(f"p{number}", frame_events([b"a"]), 1)
    with pytest.raises(LimitExceeded, match="more than 100 ports") as caught:
        staging.append("one-more", frame_events([b"a"]), 1)
    assert "`stream` or `key`" in caught.value.hint
    staging.discard()


def test_tls_is_used_if_the_worker_uses_it(tmp_path: Path) -> None:
    with running_worker(tmp_path / "data", ssl=server_context()) as worker:
        http = f"127.0.0.1:{worker.ports['http']}"
        with pytest.raises(RequestError, match="TLS"):
            segment_address(http, tls=False)
        link = Link(lambda: segment_address(http, tls=True), client_context())
        staging = Staging(link, PREFIX)
        staging.append("out", frame_events([b"a" * 100_000]), 1)
        assert staging.finish()[0].length == 100_008
        link.drop()
