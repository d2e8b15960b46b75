"""Event times from the data of messages and of connectors' events, and what happens to events without one."""

import json
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgpack
import pytest

from penstock.connectors import event_times
from penstock.connectors.event_times import codecs_with_plugins
from penstock.core.errors import NoRoom, RequestError, StoreFailed
from penstock.ingest.batch import Batch
from penstock.ingest.settings import SourceSettings
from penstock.ingest.worker_sources import DeadLetters, Untimed
from penstock.protocol.connector import Ack, Message
from penstock.protocol.event_time.field import EventTimeField
from penstock.protocol.stored.event import NO_TIME
from tests.ingest.conftest import Connect, Peer, RunningServer, Serve
from tests.ingest.out_ports.scene import SPLIT, Scene, read_events
from tests.support.heads import Head, decode_head
from tests.support.waiting import eventually

NOON = 1_769_860_800_000_000
"""2026-01-31T12:00:00Z."""
FIELD = EventTimeField(field="t", format="s", codec="json")
KEPT = replace(FIELD, missing="arrival")
SECOND = 1_000_000


@pytest.fixture
async def scene(serve: Serve) -> AsyncIterator[Scene]:
    scene = Scene(serve)
    await scene.open()
    yield scene
    await scene.leave()


def at(seconds: int, **more: object) -> bytes:
    return json.dumps({"t": NOON // SECOND + seconds, **more}).encode()


def message(number: int, payload: bytes) -> Message:
    return Message(7, number, 55, f"key {number}".encode(), payload)


async def acked(peer: Peer, last_id: int) -> None:
    while not (isinstance(frame := await peer.frame(), Ack) and (7, last_id) in frame.acked):
        pass


def heads(running: RunningServer, source: str = "source") -> list[Head]:
    found = []
    for name in running.sources.log(source).segments:
        found += [decode_head(data) for _, data in running.store.heads(name, 0, running.store.length(name))]
    return [head for head in found if head is not None]


async def send(running: RunningServer, connect: Connect, *payloads: bytes) -> Peer:
    peer = await connect(running)
    await peer.open(7, "till")
    peer.send(*(message(number, payload) for number, payload in enumerate(payloads, 1)))
    await acked(peer, len(payloads))
    return peer


async def test_the_event_time_comes_from_the_data_and_not_from_the_frame(serve: Serve, connect: Connect) -> None:
    running = await serve(source=SourceSettings(event_time=FIELD))
    await send(running, connect, at(0), at(9), at(5))
    events = running.events()
    assert [event.event_time for event in events] == [NOON, NOON + 9 * SECOND, NOON + 5 * SECOND]
    assert [event.payload for event in events] == [at(0), at(9), at(5)]
    assert max(head.highest[7] for head in heads(running) if 7 in head.highest) == NOON + 9 * SECOND
    log = running.sources.log("source")
    assert log.times.has_own_times
    assert not log.times.are_arrival_times


async def test_a_message_without_a_time_gets_its_arrival_time_which_does_not_advance_the_watermark(
    serve: Serve, connect: Connect
) -> None:
    running = await serve(source=SourceSettings(event_time=KEPT))
    before = time.time_ns() // 1000
    await send(running, connect, at(0), b'{"t": "soon"}', b"not JSON")
    first, *others = running.events()
    assert first.event_time == NOON
    assert [before <= event.event_time <= time.time_ns() // 1000 for event in others] == [True, True]
    assert {head.highest[7] for head in heads(running) if 7 in head.highest} == {NOON}
    assert running.sources.log("source").counters.untimed == 2
    assert running.sources.get("source.err") is None


async def test_a_message_without_a_time_is_one_dead_letter_however_often_it_is_sent(
    serve: Serve, connect: Connect
) -> None:
    settings = SourceSettings(event_time=FIELD, segments=1)
    running = await serve(source=settings)
    peer = await send(running, connect, at(0), b'{"t": null}', b"not JSON")
    assert [event.payload for event in running.events()] == [at(0)]
    await peer.close()
    await eventually(lambda: not running.sources.log("source").sessions)
    again = await connect(running)
    assert await again.open(7, "till") == 3
    again.send(message(2, b'{"t": null}'), message(3, b"not JSON"), message(4, b"[]"))
    await acked(again, 4)
    found = read_events(running.store, ["connector/source.err/0"])
    assert [event.payload for event in found] == [b'{"t": null}', b"not JSON", b"[]"]
    assert [event.key for event in found] == [b"key 2", b"key 3", b"key 4"]
    assert {event.stream_id for event in found} == {7}
    assert [event.metadata["message_id"] for event in found] == [2, 3, 4]
    assert [event.metadata["reason"] for event in found] == [
        'no event time: the field "t" is null',
        "no event time: the event is not valid JSON",
        'no event time: the field "t" is missing',
    ]
    assert {(event.metadata["source"], event.metadata["stream"]) for event in found} == {("source", "till")}
    counters = running.sources.log("source").counters
    assert (counters.messages, counters.duplicates, counters.untimed) == (1, 2, 3)


@pytest.mark.parametrize("records", [1, 2, 3, 4])
async def test_a_crash_leaves_each_message_stored_once_or_a_dead_letter_once(
    serve: Serve, connect: Connect, records: int
) -> None:
    running = await serve(source=SourceSettings(event_time=FIELD, segments=1))
    sent = [message(1, b"[]"), message(2, at(2)), message(3, b"{}"), message(4, b"{}")]
    peer = await connect(running)
    await peer.open(7, "till")
    running.journal.crash_after(records)
    for one in sent:
        before = int(running.journal.end)
        with suppress(ConnectionError):
            peer.send(one)
            await peer.writer.drain()
        await eventually(partial(has_moved, running, before))
    await running.crash()
    running = await serve(source=SourceSettings(event_time=FIELD, segments=1))
    again = await connect(running)
    await again.open(7, "till")
    again.send(*sent)
    await acked(again, 4)
    assert [event.payload for event in running.events()] == [at(2)]
    found = read_events(running.store, ["connector/source.err/0"])
    assert [(event.metadata["message_id"], event.payload) for event in found] == [
        (1, b"[]"),
        (3, b"{}"),
        (4, b"{}"),
    ]


def has_moved(running: RunningServer, end: int) -> bool:
    """Whether something was written after this end, or nothing will be any more."""
    try:
        running.journal.check()
    except StoreFailed:
        return True
    return running.journal.end > end


async def test_a_message_whose_dead_letter_could_not_be_stored_is_sent_again(
    serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = await serve(source=SourceSettings(event_time=FIELD, segments=1))
    peer = await send(running, connect, at(1))
    with monkeypatch.context() as patched:
        patched.setattr(DeadLetters, "beside", lambda *_: (_ for _ in ()).throw(NoRoom("full")))
        peer.send(message(2, b"{}"))
        await peer.frames_until_closed()
    again = await connect(running)
    assert await again.open(7, "till") == 1
    again.send(message(2, b"{}"))
    await acked(again, 2)
    assert [event.payload for event in read_events(running.store, ["connector/source.err/0"])] == [b"{}"]


async def test_a_run_of_only_dead_letters_still_advances_its_stream(serve: Serve, connect: Connect) -> None:
    running = await serve(source=SourceSettings(event_time=FIELD, segments=1))
    await send(running, connect, b"[]", b"{}")
    assert running.events() == []
    last = [head for head in heads(running) if 7 in head.last][-1]
    assert (last.last[7], last.highest[7], last.count) == (2, NO_TIME, 0)
    running = await serve(source=SourceSettings(event_time=FIELD, segments=1))
    peer = await connect(running)
    assert await peer.open(7, "till") == 2


async def test_dead_letters_are_kept_until_their_quota_and_then_the_source_waits(
    serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.ingest.worker_sources.DEAD_LETTERS_UNREAD_BYTES_MAX", 1000)
    running = await serve(source=SourceSettings(event_time=FIELD, segments=1, quota_bytes=20_000))
    log = running.sources.log("source")
    peer = await send(running, connect, *(b"x" * 1000 for _ in range(10)))
    assert log.has_room()
    peer.send(*(message(number, b"y" * 1000) for number in range(11, 21)))
    await acked(peer, 20)
    assert len(read_events(running.store, ["connector/source.err/0"])) == 20
    assert not log.has_room()
    running.store.truncate("connector/source.err/0", running.store.info("connector/source.err/0").length)
    assert log.has_room()


async def test_events_of_a_connector_get_the_event_times_in_their_data(scene: Scene) -> None:
    host = await scene.host(interceptors=SPLIT, segments=1, event_time=FIELD)
    stream = await host.open_stream("file", resume=True)
    await stream.send(at(3) + b"\n" + at(1) + b"\n")
    assert [event.event_time for event in await scene.events()] == [NOON + 3 * SECOND, NOON + SECOND]
    assert (await scene.heads())[-1].highest == {stream.ref.stream_id: NOON + 3 * SECOND}
    assert not host.log.times.are_arrival_times


async def test_an_event_without_a_time_is_a_dead_letter_and_a_stream_that_resumes_does_not_read_it_again(
    scene: Scene,
) -> None:
    data = at(1) + b"\n# a comment\n" + at(2) + b"\n{}\n"
    host = await scene.host(interceptors=SPLIT, segments=1, event_time=FIELD)
    stream = await host.open_stream("file", resume=True, metadata={"peer": "p"})
    await stream.send(data)
    await stream.durable(stream.last_id)
    await scene.crash()
    host = await scene.host(interceptors=SPLIT, segments=1, event_time=FIELD)
    again = await host.open_stream("file", resume=True)
    assert again.position == len(data)
    assert await scene.values() == [at(1), at(2)]
    found = await scene.events("source.err")
    assert [event.payload for event in found] == [b"# a comment", b"{}"]
    assert {event.metadata["peer"] for event in found} == {"p"}
    assert [event.metadata["reason"] for event in found] == [
        "no event time: the event is not valid JSON",
        'no event time: the field "t" is missing',
    ]


async def test_the_part_of_a_block_stored_before_a_crash_is_not_stored_again(scene: Scene) -> None:
    """The ids of dead letters count: positions between two points of reference are counted in events."""
    host = await scene.host(interceptors=SPLIT, segments=1, event_time=FIELD)
    stream = await host.open_stream("file", resume=True)
    await stream.send(b"{}\n" + at(1) + b"\n{}")
    await stream.durable(stream.last_id)
    await scene.crash()
    host = await scene.host(interceptors=SPLIT, segments=1, event_time=FIELD)
    again = await host.open_stream("file", resume=True)
    await again.send((b"{}\n" + at(1) + b"\n{}\n" + at(2) + b"\n")[again.position :])
    assert await scene.values() == [at(1), at(2)]
    assert len(await scene.events("source.err")) == 2


async def test_an_event_of_a_connector_without_a_time_may_get_its_arrival_time(scene: Scene) -> None:
    host = await scene.host(interceptors=SPLIT, segments=1, event_time=KEPT)
    stream = await host.open_stream("file", resume=True)
    before = time.time_ns() // 1000
    await stream.send(at(1) + b"\n{}\n")
    timed, untimed = await scene.events()
    assert timed.event_time == NOON + SECOND
    assert before <= (untimed.event_time or 0) <= time.time_ns() // 1000
    assert (await scene.heads())[-1].highest == {stream.ref.stream_id: NOON + SECOND}
    assert host.log.counters.untimed == 1


async def test_the_content_type_of_an_event_decides_how_its_time_is_found(scene: Scene) -> None:
    field = replace(FIELD, codec_map={"application/msgpack": "msgpack", "text/*": "csv"}, column=1)
    host = await scene.host(segments=1, event_time=field)
    stream = await host.open_stream("peer")
    packed = msgpack.packb({"t": NOON // SECOND + 1})
    await stream.send(packed, metadata={"content_type": "application/MSGPACK; v=1"})
    await stream.put([b"a,1769860802", at(3)], metadata=[{"content_type": "text/csv"}, {"content_type": "image/png"}])
    await stream.send(at(4))
    assert [event.event_time for event in await scene.events()] == [NOON + n * SECOND for n in (1, 2, 3, 4)]


async def test_metadata_with_any_keys_say_how_a_time_is_found(scene: Scene) -> None:
    host = await scene.host(segments=1, event_time=replace(FIELD, codec_map={"text/*": "csv"}, column=1))
    stream = await host.open_stream("peer")
    given = {"content_type": "text/csv", "headers": {b"k": "v", 7: 8}}
    await stream.put([b"a,1769860802", b"a,soon"], metadata=[given, given])
    (event,) = await scene.events()
    assert (event.event_time, event.metadata["headers"]) == (NOON + 2 * SECOND, {"k": "v", "7": 8})
    (untimed,) = await scene.events("source.err")
    assert (untimed.payload, untimed.metadata["headers"]) == (b"a,soon", {"k": "v", "7": 8})


PLUGIN = {
    "prefixed_times.py": """
class PrefixedTimes:
    def __init__(self, field):
        self.prefix = field.encode()

    def __call__(self, events):
        return [int(event.removeprefix(self.prefix)) for event in events]
""",
    "prefixed-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: prefixed\nVersion: 1.0\n",
    "prefixed-1.0.dist-info/entry_points.txt": """
[penstock.event_times]
prefixed = prefixed_times:PrefixedTimes
broken = prefixed_times:Nothing
""",
}
"""A package with event times of its own codec, as pip installs it."""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, text in PLUGIN.items():
        file = tmp_path / "site" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    monkeypatch.syspath_prepend(tmp_path / "site")
    event_times.installed.cache_clear()
    yield
    event_times.installed.cache_clear()
    sys.modules.pop("prefixed_times", None)


@pytest.mark.usefixtures("plugin")
async def test_a_plugin_finds_the_times_of_another_codec(scene: Scene) -> None:
    assert {"broken", "prefixed"} <= {*codecs_with_plugins()}
    host = await scene.host(segments=1, event_time=replace(FIELD, codec="prefixed"))
    stream = await host.open_stream("peer")
    await stream.put([b"t1769860800", b"t1769860801", b"oops"])
    assert [event.event_time for event in await scene.events()] == [NOON, NOON + SECOND]
    (event,) = await scene.events("source.err")
    assert event.metadata["reason"] == "no event time: the event is not valid prefixed"


@pytest.mark.usefixtures("plugin")
async def test_a_plugin_that_cannot_be_loaded_is_named_with_its_package(scene: Scene) -> None:
    with pytest.raises(RequestError, match="the event times of codec broken cannot be loaded") as refused:
        await scene.host(segments=1, event_time=replace(FIELD, codec="broken"))
    assert refused.value.hint == "Install it again: pip install prefixed"


async def test_many_dead_letters_with_long_names_fit_into_one_record(running: RunningServer) -> None:
    log, dead_letters = running.sources.log("source"), running.sources.dead_letters("source")
    one = Untimed(7, "ä" * 200, 1, b"k", b"{}", msgpack.packb({"peer": "p"}), "no event time: " + "x" * 900)
    beside = dead_letters.beside([one] * 17_000)
    log.append([Batch(0, ())], beside)
    dead_letters.stored(beside)
    await running.sources.durability.caught_up()
    found = read_events(running.store, ["connector/source.err/0"])
    assert len(found) == dead_letters.count == 17_000
    assert found[0].metadata == {"reason": "no event time"}
