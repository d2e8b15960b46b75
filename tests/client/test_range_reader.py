"""A range is read to its last byte, also over lost connections; the next request is sent before it is needed."""

import asyncio
import time
from collections.abc import Iterator

import pytest

from penstock.client.segments import SegmentClient
from penstock.client.segments.failures import Interrupted
from penstock.client.segments.range_reader import READ_BYTES, read_range
from penstock.core.address import Address
from penstock.core.errors import Damaged, NoSuchSegment, SegmentTruncated
from penstock.protocol.segment import frame_events
from penstock.spark.sink.staging import Link
from tests.spark.asking import get
from tests.support.cutting_proxy import CuttingProxy
from tests.support.running_worker import RunningWorker
from tests.support.waiting import SECONDS_MAX

EVENTS = [b"%06d" % n * (1 + n % 40) for n in range(20_000)]
DATA = frame_events(EVENTS)


@pytest.fixture
def link(worker: RunningWorker) -> Iterator[Link]:
    link = Link(lambda: Address.parse(worker.address))
    yield link
    link.drop()


@pytest.fixture
def segment(worker: RunningWorker) -> str:
    with SegmentClient(worker.address) as client, client.appender("s", create=True) as appender:
        appender.append_many(EVENTS)
    return "s"


def joined(link: Link, segment: str, start: int, end: int, retry_seconds: float = 20) -> bytes:
    found = bytearray()
    for piece in read_range(link, segment, start, end, retry_seconds):
        assert piece.offset == start + len(found)
        assert 0 < len(piece.data) <= READ_BYTES
        found += piece.data
        del piece
    return bytes(found)


@pytest.mark.parametrize(("start", "end"), [(0, len(DATA)), (1, len(DATA) - 1), (500_000, 500_001), (7, 7), (9, 3)])
def test_exactly_the_bytes_of_the_range_are_read(link: Link, segment: str, start: int, end: int) -> None:
    assert len(DATA) > 2 * READ_BYTES
    assert joined(link, segment, start, end) == DATA[start:end]


def test_several_ranges_share_a_connection_also_when_one_is_left_halfway(
    worker: RunningWorker, link: Link, segment: str
) -> None:
    connection = link.connected()
    reading = read_range(link, segment, 0, len(DATA))
    next(reading)
    reading.close()
    assert joined(link, segment, 100, 2_000_000) == DATA[100:2_000_000]
    assert link.connected() is connection


@pytest.mark.parametrize("seed", range(3))
async def test_reading_continues_over_cut_connections(worker: RunningWorker, segment: str, seed: int) -> None:
    proxy = CuttingProxy(worker.ports["segment"], cuts=10, bytes_max=100_000, seed=seed)
    async with proxy.run():
        link = Link(lambda: Address.parse(proxy.address))
        assert await asyncio.to_thread(joined, link, segment, 0, len(DATA)) == DATA
        link.drop()
    assert proxy.cuts_left < 10


def test_without_a_worker_it_gives_up_when_its_time_is_over(segment: str, link: Link) -> None:
    class Away:
        def connected(self) -> None:
            raise Interrupted("nobody is there")

        def drop(self) -> None:
            pass

    with pytest.raises(Interrupted, match="nobody is there"):
        next(read_range(Away(), segment, 0, 10, retry_seconds=0.2))  # type: ignore[arg-type]


def test_what_was_truncated_is_an_error_that_reports_where_the_segment_begins(
    worker: RunningWorker, link: Link, segment: str
) -> None:
    with SegmentClient(worker.address) as client:
        client.truncate(segment, 1_000_000)
    with pytest.raises(SegmentTruncated) as caught:
        joined(link, segment, 0, len(DATA))
    assert caught.value.start == 1_000_000
    assert joined(link, segment, 1_000_000, len(DATA)) == DATA[1_000_000:]


def test_a_segment_that_ends_too_early_or_does_not_exist_is_an_error(
    worker: RunningWorker, link: Link, segment: str
) -> None:
    with SegmentClient(worker.address) as client:
        client.seal(segment)
    with pytest.raises(Damaged, match=f"segment 's' ends at {len(DATA)}, before {len(DATA) + 5}"):
        joined(link, segment, 0, len(DATA) + 5)
    with pytest.raises(NoSuchSegment):
        joined(link, "other", 0, 1)


def test_the_next_bytes_are_on_their_way_while_a_piece_is_used(worker: RunningWorker, link: Link, segment: str) -> None:
    reading = read_range(link, segment, 0, len(DATA))
    before = get(worker, "/status")["segment_server"]["reads"]
    next(reading)
    deadline = time.monotonic() + SECONDS_MAX
    while get(worker, "/status")["segment_server"]["reads"] < before + 2:
        assert time.monotonic() < deadline
    reading.close()
