"""Streams of a connector's `out` port: their ids, their events, what they wait for, how they end."""

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

from penstock.connectors.api import Capabilities, Options, Pause
from penstock.connectors.interceptors.api import BadBytes
from penstock.core.errors import LimitExceeded, RequestError, StoreFailed
from penstock.core.types import Guarantee
from penstock.ingest import worker_sources
from penstock.ingest.in_flight import InFlightBudget
from penstock.ingest.out_ports.event_ids import CUT_BITS
from penstock.ingest.out_ports.host import SourceHost
from penstock.ingest.out_ports.stream import OutStream
from penstock.protocol.api.deployment import ConnectorSpec
from penstock.protocol.connector import Ack, EndOfStream, Message, stream_id_of
from penstock.protocol.stored.head import MarkKind
from penstock.store.file_journal import Committer
from tests.ingest.conftest import Connect
from tests.ingest.idle_scene import TIMEOUT, IdleScene
from tests.ingest.out_ports.scene import PREFIXED, SPLIT, Driven, Scene, full_disk, is_waiting
from tests.support.waiting import SECONDS_MAX, eventually


async def test_a_stream_starts_durably_and_its_events_are_numbered_from_1(scene: Scene) -> None:
    host = await scene.host()
    stream = await host.open_stream("peer", metadata={"peer": "10.0.0.1:5"})
    assert [(m.kind, m.name) for m in await scene.marks()] == [(MarkKind.STARTED, "peer")]
    assert scene.gate.reports == [("started", stream.ref)]
    assert await stream.send(b"one") == 1
    assert await stream.send(b"two", metadata={"content_type": "text/plain"}) == 2
    first, second = await scene.events()
    assert (first.stream_id, first.event_id, first.payload) == (stream.ref.stream_id, 1, b"one")
    assert first.metadata == {"peer": "10.0.0.1:5"}
    assert second.metadata == {"peer": "10.0.0.1:5", "content_type": "text/plain"}
    assert first.event_time is not None
    assert second.event_time is not None
    assert first.event_time <= second.event_time


async def test_all_events_of_one_send_are_in_one_record_with_a_head(scene: Scene) -> None:
    host = await scene.host(interceptors=SPLIT)
    stream = await host.open_stream("peer")
    assert await stream.send(b"a\nb\nc") == 2
    assert await stream.send(b"\n") == 3
    heads = [head for head in await scene.heads() if head.count]
    assert [(head.count, head.last) for head in heads] == [
        (2, {stream.ref.stream_id: 2}),
        (1, {stream.ref.stream_id: 3}),
    ]
    assert await scene.values() == [b"a", b"b", b"c"]


async def test_the_lines_of_a_large_send_are_events_also_beside_another_stream(scene: Scene) -> None:
    host = await scene.host(interceptors=SPLIT)
    lines = [b"line %d of many" % number for number in range(1000)]
    data = b"\n".join(lines)
    stream = await host.open_stream("peer", resume=True)
    assert await stream.send(data) == (len(data) - len(lines[-1])) << CUT_BITS
    other = await host.open_stream("other", metadata={"peer": "p"})
    sending = asyncio.gather(stream.send(b"\n" + data + b"\n"), other.send(data + b"\n"))
    assert [*await sending] == [(2 * len(data) + 2) << CUT_BITS, 1000]
    events = await scene.events()
    ours = [event for event in events if event.stream_id == stream.ref.stream_id]
    assert [event.payload for event in ours] == lines + lines
    assert [event.event_id for event in ours] == sorted({event.event_id for event in ours})
    others = [event for event in events if event.stream_id == other.ref.stream_id]
    assert [event.payload for event in others] == lines
    assert {event.metadata["peer"] for event in others} == {"p"}


async def test_events_that_share_a_mapping_have_its_metadata(scene: Scene) -> None:
    host = await scene.host()
    stream = await host.open_stream("peers", metadata={"of": "stream"})
    one, two = {"peer": "one"}, {"peer": "two"}
    await stream.put([b"a", b"b", b"c"], metadata=[one, two, one])
    await stream.put([b"d", b"e"], metadata=[two, two])
    assert [event.metadata for event in await scene.events()] == [
        {"of": "stream", **each} for each in (one, two, one, two, two)
    ]


async def test_put_stores_ids_times_keys_and_metadata(scene: Scene) -> None:
    host = await scene.host()
    stream = await host.open_stream("partition", resume=True)
    assert stream.ref.stream_id == stream_id_of("partition")
    last = await stream.put(
        [b"x", b"y"], ids=[7, 9], event_times_us=[100, 50], keys=[b"k", b""], metadata=[{"n": 1}, {"n": 2}]
    )
    assert last == 9
    assert await stream.put([b"x", b"y", b"z"], ids=[7, 9, 12]) == 12
    assert host.status().duplicates == 2
    events = [(e.event_id, e.event_time, e.key, e.metadata, e.payload) for e in (await scene.events())[:2]]
    assert events == [(7, 100, b"k", {"n": 1}, b"x"), (9, 50, b"", {"n": 2}, b"y")]
    assert await scene.values() == [b"x", b"y", b"z"]
    with pytest.raises(RequestError, match="increase strictly"):
        await stream.put([b"", b""], ids=[20, 20])
    assert stream.last_id == 12


async def test_only_a_stream_that_a_sink_has_closed_waits_until_it_is_opened(scene: Scene) -> None:
    host = await scene.host()
    one, other = await host.open_stream("one"), await host.open_stream("other")
    scene.gate.set(one.ref, is_open=False)
    assert not one.may_send
    sending, ready = asyncio.create_task(one.send(b"1")), asyncio.create_task(one.ready())
    assert await is_waiting(sending)
    await other.ready()
    await other.send(b"2")
    assert await scene.values() == [b"2"]
    assert host.status().blocked == {one.ref.stream_id: "the test keeps it"}
    scene.gate.set(one.ref, is_open=True)
    await ready
    assert await sending == 1
    assert sorted(await scene.values()) == [b"1", b"2"]


async def test_a_connector_that_can_only_pause_as_a_whole_waits_for_all_its_streams(scene: Scene) -> None:
    host = await scene.host(pauses=Pause.WHOLE)
    one, other = await host.open_stream("one"), await host.open_stream("other")
    scene.gate.set(one.ref, is_open=False)
    assert not other.may_send
    sending = asyncio.create_task(other.send(b"2"))
    assert await is_waiting(sending)
    await one.close()
    assert await sending == 1


async def test_at_its_quota_a_connector_reads_nothing_until_there_is_room(scene: Scene) -> None:
    host = await scene.host(quota_bytes=10_000, segments=1)
    stream = await host.open_stream("peer")
    sending = [asyncio.create_task(stream.send(bytes(1000))) for _ in range(15)]
    assert await is_waiting(sending[-1], 0.5)
    assert len(await scene.values()) == 10
    assert not host.status().has_room
    assert not stream.may_send
    waiting = asyncio.create_task(stream.ready())
    assert await is_waiting(waiting)
    (segment,) = host.log.segments
    scene.running.store.truncate(segment, scene.ends()[segment])
    await waiting
    await asyncio.gather(*sending)
    assert len(await scene.values()) == 5


async def test_a_send_waits_while_the_disk_is_full_and_loses_nothing(scene: Scene) -> None:
    host = await scene.host(interceptors=SPLIT)
    stream = await host.open_stream("peer")
    with full_disk(scene.running.journal):
        assert not stream.may_send
        sending = asyncio.create_task(stream.send(b"a\nb\n"))
        assert await is_waiting(sending)
    assert await sending == 2
    assert await scene.values() == [b"a", b"b"]


async def test_bad_bytes_become_a_dead_letter_and_end_only_their_stream(scene: Scene) -> None:
    host = await scene.host(interceptors=PREFIXED)
    bad, good = await host.open_stream("bad", metadata={"peer": "p"}), await host.open_stream("good")
    with pytest.raises(BadBytes):
        await bad.send(b"\x00\x00\x00\x02ok" + b"\xff\xff\xff\xff garbage")
    await good.send(b"\x00\x00\x00\x04fine")
    assert sorted(await scene.values()) == [b"fine", b"ok"]
    (dead_letter,) = await scene.events("source.err")
    assert dead_letter.stream_id == bad.ref.stream_id
    assert dead_letter.payload == b"\xff\xff\xff\xff garbage"
    assert {key: dead_letter.metadata[key] for key in ("source", "stream", "peer")} == {
        "source": "source",
        "stream": "bad",
        "peer": "p",
    }
    assert "bytes" in dead_letter.metadata["reason"]
    assert host.status().dead_letters == 1
    with pytest.raises(RequestError, match="closed"):
        await bad.send(b"more")
    await bad.close()
    assert [m.kind for m in await scene.marks() if m.stream_id == bad.ref.stream_id] == [
        MarkKind.STARTED,
        MarkKind.ENDED,
    ]


async def test_a_truncated_record_becomes_a_dead_letter(scene: Scene) -> None:
    host = await scene.host(interceptors=PREFIXED)
    stream = await host.open_stream("peer")
    await stream.send(b"\x00\x00\x00\x01a\x00\x00\x00\x10half")
    await stream.cut_off("the peer went away")
    assert await scene.values() == [b"a"]
    (dead_letter,) = await scene.events("source.err")
    assert dead_letter.metadata["reason"] == "the peer went away"
    assert dead_letter.payload.endswith(b"half")


async def test_close_finishes_a_stream_that_was_not_finished(scene: Scene) -> None:
    host = await scene.host(interceptors=SPLIT)
    stream = await host.open_stream("peer")
    await stream.send(b"a\nlast")
    await stream.close()
    await stream.close()
    assert await scene.values() == [b"a", b"last"]
    await eventually(lambda: scene.gate.of(stream.ref) == ["started", "ended", "completed"])


async def test_after_finish_a_stream_continues_with_fresh_interceptors(scene: Scene) -> None:
    host = await scene.host(interceptors=SPLIT)
    stream = await host.open_stream("connection")
    await stream.send(b"first request")
    assert await stream.finish() == 1
    await stream.send(b"second\nre")
    assert await stream.finish() == 3
    assert await scene.values() == [b"first request", b"second", b"re"]


async def test_an_event_is_complete_when_every_pipeline_has_completed_it(scene: Scene) -> None:
    host = await scene.host(segments=1)
    completion = scene.running.sources.completion("source")
    completion.hold({})
    stream = await host.open_stream("peer")
    first = await stream.send(b"1")
    await scene.running.sources.durability.caught_up()
    end = scene.ends()
    second = await stream.send(b"2")
    await stream.durable(second)
    waiting = [asyncio.create_task(stream.complete(event)) for event in (first, second)]
    assert await is_waiting(waiting[0])
    completion.advance(end)
    await waiting[0]
    assert await is_waiting(waiting[1])
    completion.advance(scene.ends())
    await waiting[1]


async def test_what_a_stream_had_sent_before_a_crash_is_complete_when_its_pipelines_have_completed_it(
    scene: Scene,
) -> None:
    host = await scene.host(segments=1)
    stream = await host.open_stream("peer", resume=True)
    await stream.durable(await stream.put([b"1", b"2"], ids=[10, 20]))
    await scene.crash()
    host = await scene.host(segments=1)
    completion = scene.running.sources.completion("source")
    completion.hold({})
    stream = await host.open_stream("peer", resume=True)
    await stream.put([b"2"], ids=[20])  # sent again, and dropped
    waiting = asyncio.create_task(stream.complete(20))
    assert await is_waiting(waiting)
    completion.advance(scene.ends())
    await waiting


async def test_with_ack_durable_an_event_is_complete_when_it_is_on_disk(scene: Scene) -> None:
    host = await scene.host(ack="durable")
    scene.running.sources.completion("source").hold({})
    stream = await host.open_stream("peer")
    async with asyncio.timeout(SECONDS_MAX):
        await stream.complete(await stream.send(b"1"))


async def test_with_ack_durable_a_stream_is_still_completed_only_after_its_last_event(
    scene: Scene,
) -> None:
    host = await scene.host(ack="durable", segments=1)
    completion = scene.running.sources.completion("source")
    completion.hold({})
    stream = await host.open_stream("peer")
    await stream.send(b"1")
    await stream.close()
    await eventually(lambda: scene.gate.of(stream.ref) == ["started", "ended"])
    assert scene.running.sources.knows(stream.ref)
    assert stream.ref.stream_id in host.log.streams
    completion.advance(scene.ends())
    await eventually(lambda: scene.gate.of(stream.ref) == ["started", "ended", "completed"])
    assert stream.ref.stream_id not in host.log.streams
    assert not scene.running.sources.knows(stream.ref)


async def test_metadata_that_cannot_be_stored_is_refused_and_nothing_is_stored(scene: Scene) -> None:
    host = await scene.host()
    with pytest.raises(RequestError, match="metadata"):
        await host.open_stream("peer", metadata={"x": object()})
    with pytest.raises(LimitExceeded, match="metadata"):
        await host.open_stream("peer", metadata={"x": "y" * 70_000})
    assert not host.log.streams
    stream = await host.open_stream("peer")
    with pytest.raises(LimitExceeded):
        await stream.send(b"", metadata={"x": "y" * 70_000})
    assert await stream.send(b"x") == 1


async def test_a_large_send_is_split_into_records_that_fit(scene: Scene, tmp_path: Path) -> None:
    host = await scene.host(interceptors=SPLIT)
    stream = await host.open_stream("peer", metadata={"peer": "x" * 1000})
    lines = [b"%d" % number for number in range(20_000)]
    assert await stream.send(b"\n".join(lines) + b"\n") == 20_000
    assert await scene.values() == lines
    assert len([head for head in await scene.heads() if head.count]) == 3


async def test_a_record_that_is_too_large_for_an_event_is_a_dead_letter(scene: Scene) -> None:
    host = await scene.host()
    stream = await host.open_stream("peer")
    with pytest.raises(BadBytes, match="too large"):
        await stream.send(bytes(17 << 20))
    (dead_letter,) = await scene.events("source.err")
    assert dead_letter.metadata["cut_from"] == 17 << 20
    assert len(dead_letter.payload) == 8 << 20


async def test_a_stream_cannot_be_opened_twice(scene: Scene) -> None:
    host = await scene.host()
    stream = await host.open_stream("file", resume=True)
    with pytest.raises(RequestError, match="open already"):
        await host.open_stream("file", resume=True)
    await stream.close()
    again: OutStream = await host.open_stream("file", resume=True)
    assert again.ref == stream.ref


async def test_programs_cannot_join_a_source_whose_events_come_from_a_connector(scene: Scene) -> None:
    host = await scene.host()
    await host.open_stream("peer")
    with pytest.raises(RequestError, match="a connector of the application"):
        scene.running.sources.joined_by_program("source")


async def test_at_most_one_window_waits_for_the_disk(scene: Scene) -> None:
    host = await scene.host()
    stream = await host.open_stream("peer")
    await scene.running.sources.durability.caught_up()
    scene.running.committer.stop()
    sending = [asyncio.create_task(stream.send(bytes(1 << 20))) for _ in range(20)]
    assert await is_waiting(sending[-1], 0.5)
    assert sum(task.done() for task in sending) == 8
    assert not stream.may_send
    scene.running.committer = Committer(scene.running.journal, 1)
    scene.running.committer.start()
    async with asyncio.timeout(SECONDS_MAX):
        await asyncio.gather(*sending)
        await stream.ready()


async def test_all_ports_together_stay_within_the_budget_of_bytes_waiting_for_the_disk(scene: Scene) -> None:
    budget = scene.running.sources.in_flight = InFlightBudget(8 << 20, 10)
    streams = [await (await scene.host(name=f"source-{n}")).open_stream("peer") for n in range(30)]
    await scene.running.sources.durability.caught_up()
    scene.running.committer.stop()
    sending = [asyncio.create_task(stream.send(bytes(1 << 19))) for stream in streams for _ in range(2)]
    assert await is_waiting(sending[-1], 0.5)
    assert budget.in_flight_bytes < (8 << 20) + 2 * (1 << 19)
    assert not streams[-1].may_send
    scene.running.committer = Committer(scene.running.journal, 1)
    scene.running.committer.start()
    async with asyncio.timeout(60):
        await asyncio.gather(*sending)
    await eventually(lambda: budget.in_flight_bytes == 0)


async def test_dead_letters_wait_for_the_disk_like_events(scene: Scene) -> None:
    budget = scene.running.sources.in_flight
    host = await scene.host(interceptors=PREFIXED)
    stream = await host.open_stream("peer")
    await scene.running.sources.durability.caught_up()
    scene.running.committer.stop()
    with pytest.raises(BadBytes):
        await stream.send(b"\xff" * 1000)
    assert budget.in_flight_bytes >= 1000
    scene.running.committer = Committer(scene.running.journal, 1)
    scene.running.committer.start()
    await eventually(lambda: budget.in_flight_bytes == 0)


async def test_a_silent_stream_becomes_idle_only_while_it_may_send_and_its_next_event_reactivates_it(
    scene: Scene,
) -> None:
    host = await scene.host(idle_timeout_seconds=TIMEOUT)
    clock = IdleScene(scene.running)
    silent, kept = await host.open_stream("silent"), await host.open_stream("kept")
    scene.gate.set(kept.ref, is_open=False)
    clock.pass_time(2 * TIMEOUT)
    assert await clock.idle() == [silent.ref.stream_id]
    await silent.send(b"x")
    (marks,) = [head.marks for head in await scene.heads() if head.count]
    assert [mark.kind for mark in marks] == [MarkKind.ACTIVE_AGAIN]
    for _ in range(4):
        clock.pass_time(TIMEOUT / 2)
        await silent.send(b"x")
    scene.gate.set(kept.ref, is_open=True)
    clock.pass_time(TIMEOUT / 2)
    assert await clock.idle() == [silent.ref.stream_id]
    await silent.send(b"x")
    clock.pass_time(0.75 * TIMEOUT)
    assert sorted(await clock.idle()) == sorted([silent.ref.stream_id, kept.ref.stream_id])


async def test_a_connector_without_an_out_port_has_no_source(scene: Scene) -> None:
    class Sink(Driven):
        def capabilities(self, options: Options) -> Capabilities:  # type: ignore[override]
            return Capabilities(sink=Guarantee.AT_LEAST_ONCE)

    spec = ConnectorSpec(name="sink", id="sink", instance="01", type="driven")
    host = SourceHost(spec, Sink(), scene.running.sources)
    scene.hosts.append(host)
    host.start()
    await eventually(lambda: host.status().state == "connected")
    assert not scene.running.store.segments("connector/sink")
    with pytest.raises(RequestError, match="no source of its own"):
        await host.open_stream("peer")
    await host.drain()


async def test_unread_dead_letters_are_bounded(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_sources, "DEAD_LETTERS_UNREAD_BYTES_MAX", 10_000)
    host = await scene.host(interceptors=PREFIXED)
    for number in range(20):
        stream = await host.open_stream("peer")
        await stream.send(b"\x00\x00\xff\xff" + bytes(999))
        await stream.cut_off(f"cut off {number}")
        await scene.running.sources.durability.caught_up()
    kept = await scene.events("source.err")
    assert 4 <= len(kept) <= 12
    assert kept[-1].metadata["reason"] == "cut off 19"
    assert host.status().dead_letters == 20


async def test_programs_may_join_a_source_after_its_host_has_stopped(scene: Scene, connect: Connect) -> None:
    host = await scene.host()
    stream = await host.open_stream("peer")
    await stream.send(b"hosted")
    await scene.leave()
    scene.running.sources.completion("source").hold({})
    peer = await connect(scene.running)
    await peer.open(1)
    peer.send(Message(1, 1, 0, b"", b"sent"), EndOfStream(1))
    await eventually(lambda: scene.running.sources.counters.messages == 2)
    await scene.running.sources.durability.caught_up()
    scene.running.sources.completion("source").advance(scene.ends())
    while not isinstance(frame := await peer.frame(), Ack) or not frame.acked:
        pass
    assert [(acked.stream_id, acked.point_of_reference) for acked in frame.acked] == [(1, 1)]


async def test_after_a_disk_failure_no_stream_waits_for_room(scene: Scene) -> None:
    host = await scene.host()
    stream = await host.open_stream("peer")
    scene.running.journal.crash_after(1)
    with suppress(StoreFailed):
        await stream.send(b"x")
    await eventually(lambda: not stream.may_send)  # the journal's thread knows it first
    async with asyncio.timeout(SECONDS_MAX):
        with pytest.raises(StoreFailed):
            await stream.ready()
    await scene.running.crash()


async def test_buffered_bytes_get_the_event_time_at_which_they_are_stored(scene: Scene) -> None:
    host = await scene.host(interceptors=SPLIT)
    stream = await host.open_stream("peer")
    await stream.send(b"one\ntw")
    marked = host.sources.clock.now() + 5_000_000
    host.log.mark_clock(MarkKind.CLOCK, marked)
    await stream.send(b"o\nthr")
    await stream.close()
    first, *later = [event.event_time for event in await scene.events()]
    assert first is not None
    assert first < marked
    assert later == [marked, marked], "nothing comes behind a mark that is below it, whenever its bytes came"
    assert host.log.times.are_arrival_times


async def test_a_connector_that_sets_event_times_gets_no_clock_marks(scene: Scene) -> None:
    host = await scene.host()
    stream = await host.open_stream("peer")
    had = [host.log.times.are_arrival_times]  # its type does not declare it
    await stream.put([b"one"])
    had.append(host.log.times.are_arrival_times)
    await stream.put([b"two"], event_times_us=[7])
    assert [*had, host.log.times.are_arrival_times] == [False, True, False]
    assert [event.event_time for event in await scene.events()][1:] == [7]
