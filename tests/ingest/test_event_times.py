"""Event times in the source's unit become microseconds; keys and payloads are unchanged."""

import time

import pytest

from penstock.ingest.settings import SourceSettings
from penstock.protocol.connector import Ack, Message
from penstock.protocol.connector.frames import EventTimeUnit
from tests.ingest.conftest import Connect, RunningServer, Serve
from tests.ingest.stored_events import StoredEvent
from tests.support.heads import decode_head

LOWEST, HIGHEST = -(2**63), 2**63 - 1


async def store(running: RunningServer, connect: Connect, *messages: Message) -> list[StoredEvent]:
    peer = await connect(running)
    await peer.open(7)
    peer.send(*messages)
    while not (isinstance(frame := await peer.frame(), Ack) and (7, messages[-1].message_id) in frame.acked):
        pass
    return running.events()


def at(number: int, event_time: int) -> Message:
    return Message(7, number, event_time, b"", b"x")


@pytest.mark.parametrize(
    ("unit", "sent", "stored"),
    [
        (EventTimeUnit.S, [1, -1, 0, HIGHEST, LOWEST], [1_000_000, -1_000_000, 0, HIGHEST, LOWEST]),
        (EventTimeUnit.MS, [1, -1, 0, 1_700_000_000_000], [1000, -1000, 0, 1_700_000_000_000_000]),
        (EventTimeUnit.US, [1, -1, 0, HIGHEST, LOWEST], [1, -1, 0, HIGHEST, LOWEST]),
        (EventTimeUnit.NS, [1, 999, 1000, -1, -1000, -1001], [0, 0, 1, -1, -1, -2]),
    ],
)
async def test_event_times_are_stored_in_microseconds_and_clamped_to_their_limits(
    serve: Serve, connect: Connect, unit: EventTimeUnit, sent: list[int], stored: list[int]
) -> None:
    running = await serve(source=SourceSettings(event_time_unit=unit))
    events = await store(running, connect, *(at(number, value) for number, value in enumerate(sent)))
    assert [event.event_time for event in events] == stored


async def test_milliseconds_are_the_default(running: RunningServer, connect: Connect) -> None:
    (event,) = await store(running, connect, at(1, -1234))
    assert event.event_time == -1_234_000


async def test_an_event_time_of_0_means_arrival_time_if_so_configured(serve: Serve, connect: Connect) -> None:
    running = await serve(source=SourceSettings(event_time_ingest=True))
    before = time.time_ns() // 1000
    first, second = await store(running, connect, at(1, 0), at(2, -5))
    assert before <= first.event_time <= time.time_ns() // 1000
    assert second.event_time == -5000


async def test_keys_and_payloads_are_stored_unchanged(running: RunningServer, connect: Connect) -> None:
    contents = [(b"", b""), (b"key", b""), (b"", b"payload"), (bytes(range(256)), b"\0" * 70_000), (b"k" * 65535, b"p")]
    messages = [Message(7, number, 0, key, payload) for number, (key, payload) in enumerate(contents)]
    events = await store(running, connect, *messages)
    assert [(event.key, event.payload) for event in events] == contents
    assert all(event.metadata == b"" for event in events)


async def test_record_heads_have_the_last_id_and_the_highest_event_time_of_each_stream(
    serve: Serve, connect: Connect
) -> None:
    running = await serve(source=SourceSettings(segments=1))
    await store(running, connect, at(1, 5), at(2, 9), at(3, -7))
    (name,) = running.sources.log("source").segments
    found = [decode_head(data) for _, data in running.store.heads(name, 0, running.store.length(name))]
    heads = [head for head in found if head is not None]
    assert max(head.highest[7] for head in heads if 7 in head.highest) == 9000
    assert [head.last[7] for head in heads if 7 in head.last][-1] == 3
