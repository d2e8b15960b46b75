"""The source `system/streams` has a signal for every start and end of a stream, stored in the same record."""

import json
import time
from collections.abc import Sequence
from typing import Any

import pytest

from penstock.core.errors import NoSuchSegment
from penstock.ingest.settings import SourceSettings
from penstock.protocol.connector import EndOfStream, Message
from penstock.protocol.stored.names import Form, Source
from penstock.store.plan import Addition
from penstock.store.reader import Appended
from tests.ingest.conftest import Connect, RunningServer, Serve
from tests.ingest.out_ports.scene import read_events
from tests.support.waiting import eventually

SEGMENT = "connector/system.streams/0"


async def rows(running: RunningServer) -> list[dict[str, Any]]:
    """As any reader of segments sees them."""
    await running.sources.durability.caught_up()
    return [json.loads(event.payload) for event in read_events(running.store, [SEGMENT])]


def without_time(found: list[dict[str, Any]]) -> list[tuple[str, str, str, int]]:
    return [(row["signal"], row["connector"], row["stream"], row["stream_id"]) for row in found]


async def test_starts_and_ends_of_program_streams_are_reported(running: RunningServer, connect: Connect) -> None:
    running.sources.system_streams.enable()
    before = time.time_ns() // 1000
    peer = await connect(running, "sensors")
    high = 2**64 - 5
    await peer.open(high, "lab")
    peer.send(Message(high, 1, 0, b"", b"x"), EndOfStream(high))
    await eventually(lambda: running.sources.counters.streams_ended == 1)
    found = await rows(running)
    assert without_time(found) == [
        ("stream-started", "sensors", "lab", high),
        ("stream-closed", "sensors", "lab", high),
    ]
    assert before <= found[0]["at"] <= found[1]["at"] <= time.time_ns() // 1000
    events = read_events(running.store, [SEGMENT])
    assert [(event.event_id, event.event_time) for event in events] == [
        (n + 1, row["at"]) for n, row in enumerate(found)
    ]


async def test_no_signal_is_written_unless_enabled_or_read(running: RunningServer, connect: Connect) -> None:
    peer = await connect(running)
    await peer.open(1)
    with pytest.raises(NoSuchSegment):
        running.store.info(SEGMENT)


async def test_signals_are_written_for_a_pipeline_that_reads_them(running: RunningServer, connect: Connect) -> None:
    running.sources.completion("system.streams").hold({})
    peer = await connect(running)
    await peer.open(1)
    assert len(await rows(running)) == 1


async def test_reopening_a_stream_writes_no_start_signal(running: RunningServer, connect: Connect) -> None:
    running.sources.system_streams.enable()
    for _ in range(3):
        peer = await connect(running)
        await peer.open(1, "one")
        await peer.close()
        await eventually(lambda: not running.programs.sessions)
    assert without_time(await rows(running)) == [("stream-started", "source", "one", 1)]


async def test_after_a_restart_signals_continue_after_the_stored_ones(serve: Serve, connect: Connect) -> None:
    running = await serve()
    running.sources.system_streams.enable()
    await (await connect(running)).open(1, "one")
    await running.sources.durability.caught_up()
    await running.crash()
    running = await serve()
    await (await connect(running)).open(2, "two")
    assert without_time(await rows(running)) == [
        ("stream-started", "source", "one", 1),
        ("stream-started", "source", "two", 2),
    ]
    assert [event.event_id for event in read_events(running.store, [SEGMENT])] == [1, 2]


@pytest.mark.parametrize("is_read", [False, True])
async def test_unread_signals_are_bounded(
    running: RunningServer, connect: Connect, monkeypatch: pytest.MonkeyPatch, is_read: bool
) -> None:
    monkeypatch.setattr(running.sources.system_streams._source, "_unread_bytes_max", 20_000)
    running.sources.system_streams.enable()
    if is_read:
        running.sources.completion("system.streams").hold({})
    peer = await connect(running)
    for stream_id in range(1, 501):
        await peer.open(stream_id, f"stream {stream_id}")
    found = await rows(running)
    assert found[-1]["stream"] == "stream 500"
    assert (len(found) == 500) is is_read
    info = running.store.info(SEGMENT)
    assert (info.length - info.start < 20_500) is not is_read


async def test_the_source_of_signals_becomes_idle_quickly(running: RunningServer, connect: Connect) -> None:
    running.sources.system_streams.enable()
    await (await connect(running)).open(1)
    assert running.programs.view.open_streams("system.streams")
    await eventually(lambda: not running.programs.view.open_streams("system.streams"))
    await (await connect(running)).open(2)
    assert running.programs.view.open_streams("system.streams")


async def test_a_stream_and_its_signal_are_stored_in_one_step(
    serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = await serve(source=SourceSettings(segments=1))
    running.sources.system_streams.enable()
    seen: list[list[str]] = []
    append_all = running.store.append_all

    def noted(additions: Sequence[Addition]) -> list[Appended]:
        seen.append([addition.segment for addition in additions])
        return append_all(additions)

    monkeypatch.setattr(running.store, "append_all", noted)
    await (await connect(running)).open(1)
    assert seen == [["connector/source/0", SEGMENT]]


def test_the_source_of_signals_is_written_system_streams_with_a_slash_or_a_dot() -> None:
    source = Source.parse("system/streams")
    assert source == Source(Form.CONNECTOR, "system.streams")
    assert str(source) == "system.streams"
    assert Source.parse(str(source)) == source
    assert source.owns(SEGMENT)
