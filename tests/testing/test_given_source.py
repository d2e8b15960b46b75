"""Events of a test are stored like those of any connector."""

from collections.abc import Iterator

import pytest

from penstock.client.coordinator import CoordinatorClient
from penstock.client.segments import SegmentClient
from penstock.protocol.stored import StoredEvent, parse_event
from penstock.testing.events import Event, stored_form
from penstock.testing.given_source import GivenSource
from tests.support.running_worker import RunningWorker


@pytest.fixture
def orders(worker: RunningWorker) -> Iterator[GivenSource]:
    async def made() -> GivenSource:
        source = GivenSource(worker.worker, "orders", 0)
        await source.start()
        return source

    source = worker.call(made())
    yield source
    worker.call(source.stop())


def stored(worker: RunningWorker) -> list[StoredEvent]:
    with SegmentClient(worker.address) as client:
        events = [parse_event(event.data) for event in client.events("connector/orders/0")]
    return [event for event in events if event is not None]


def test_events_keep_their_order_across_streams(worker: RunningWorker, orders: GivenSource) -> None:
    given = [
        Event(value=b"1", stream="a", event_time=1, key="k", metadata={"path": "/"}),
        Event(value=b"2", stream="b"),
        Event(value=b"3", stream="a", event_time=2, content_type="text/plain"),
    ]
    worker.call(orders.send([stored_form(event, None) for event in given]))
    first, second, third = stored(worker)
    assert [one.payload for one in (first, second, third)] == [b"1", b"2", b"3"]
    assert (first.event_time, first.key, first.metadata) == (1_000_000, b"k", {"path": "/"})
    assert (second.event_time, second.metadata) == (None, {})
    assert (third.stream_id, third.metadata) == (first.stream_id, {"content_type": "text/plain"})


def test_declarations_are_those_of_any_source(worker: RunningWorker, orders: GivenSource) -> None:
    worker.call(orders.open("a"))
    worker.call(orders.declare_watermark(7_000_000))
    worker.call(orders.end())
    with CoordinatorClient(worker.http) as client:
        (source,) = [one for name, one in client.status().sources.items() if name == "orders"]
    assert source.streams == 1
