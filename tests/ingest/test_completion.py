"""Acknowledgements while pipelines hold a source: never before `advance`, and after it without further traffic."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from penstock.core.retry import RetryPolicy
from penstock.ingest.completion import HeadsRead, read_heads
from penstock.ingest.settings import AckMode, SourceSettings
from penstock.protocol.connector import NOTHING_YET, Notify
from tests.ingest.completion_scene import (
    Listener,
    blocked_source,
    completion,
    ends,
    last_ids,
    quiet,
    record_ends,
    release,
    until_stored,
)
from tests.ingest.conftest import Connect, RunningServer, Serve
from tests.support.waiting import SECONDS_MAX

ONE_SEGMENT = SourceSettings(segments=1)


async def test_messages_are_acknowledged_when_they_are_released_and_not_before(
    running: RunningServer, connect: Connect
) -> None:
    source = await blocked_source(running, connect, 1, 2, 3)
    source.send((stream_id, number) for number in range(10) for stream_id in (1, 2, 3))
    await until_stored(running, 30)
    await quiet()
    assert source.acked == {}
    await release(running, source, {1: 9, 2: 9, 3: 9})


async def test_credits_return_when_messages_are_durable(serve: Serve, connect: Connect) -> None:
    running = await serve(window_bytes=4096 * 10)
    source = await blocked_source(running, connect, 1)
    for first in range(0, 100, 5):  # ten times the window
        before = source.credits
        source.send((1, number) for number in range(first, first + 5))
        await source.until(lambda before=before: source.credits >= before + 5)  # type: ignore[misc]
    assert source.acked == {}
    assert len(running.events()) == 100


async def test_a_release_acknowledges_the_records_that_are_entirely_before_it(serve: Serve, connect: Connect) -> None:
    running = await serve(source=ONE_SEGMENT)
    source = await blocked_source(running, connect, 1)
    for number in range(5):
        source.send([(1, number)])
        await until_stored(running, number + 1)
    (segment,) = ends(running)
    for end in record_ends(running, segment):
        completion(running).advance({segment: end - 1})
        await quiet(0.02)
        expected = last_ids(running, {segment: end - 1})
        assert source.acked == expected
        completion(running).advance({segment: end})
        await source.until(lambda end=end: source.acked == last_ids(running, {segment: end}))  # type: ignore[misc]
    assert source.acked == {1: 4}


async def test_a_release_that_goes_back_or_beyond_the_end_is_harmless(serve: Serve, connect: Connect) -> None:
    running = await serve(source=ONE_SEGMENT)
    source = await blocked_source(running, connect, 1)
    source.send([(1, 1)])
    await until_stored(running, 1)
    completion(running).advance({"connector/source/0": 1 << 40, "connector/source/77": 5})
    await source.until(lambda: source.acked == {1: 1})
    completion(running).advance({"connector/source/0": 3})
    source.send([(1, 2)])
    await source.until(lambda: source.acked == {1: 2})


async def test_every_session_gets_only_its_own_acknowledgements(running: RunningServer, connect: Connect) -> None:
    completion(running).hold({})
    completion(running, "other").hold({})
    first, second, other = [Listener(await connect(running, name)) for name in ("source", "source", "other")]
    await first.open(1, 2)
    await second.open(3)
    await other.open(1)
    first.send([(1, 10), (2, 20)])
    second.send([(3, 30)])
    other.send([(1, 40)])
    await until_stored(running, 3)
    await until_stored(running, 1, "other")
    await release(running, first, {1: 10, 2: 20})
    await second.until(lambda: second.acked == {3: 30})
    assert other.acked == {}
    completion(running, "other").advance(ends(running, "other"))
    await other.until(lambda: other.acked == {1: 40})
    assert first.acked == {1: 10, 2: 20}


async def test_a_program_that_reconnects_is_acknowledged_once_everything_stored_is_released(
    serve: Serve, connect: Connect
) -> None:
    running = await serve(source=ONE_SEGMENT)
    source = await blocked_source(running, connect, 1)
    for number in range(3):
        source.send([(1, number)])
        await until_stored(running, number + 1)
    await source.close()
    again = Listener(await connect(running))
    await again.open(1)
    assert again.opened == {1: 2}
    (segment,) = ends(running)
    record = record_ends(running, segment)
    completion(running).advance({segment: record[2]})
    await quiet()
    assert again.acked == {}, "nothing below what NOTIFY_ACK said"
    again.send([(1, 3)])
    await until_stored(running, 4)
    completion(running).advance({segment: record[3]})
    await again.until(lambda: again.acked == {1: 2})
    await release(running, again, {1: 3})


async def test_a_program_that_reconnects_after_everything_was_released_is_acknowledged_at_once(
    running: RunningServer, connect: Connect
) -> None:
    source = await blocked_source(running, connect, 1, 2)
    source.send([(1, 7), (2, 8)])
    await until_stored(running, 2)
    await release(running, source, {1: 7, 2: 8})
    await source.close()
    again = Listener(await connect(running))
    await again.open(1, 2, 3)
    assert again.opened == {1: 7, 2: 8, 3: NOTHING_YET}
    await again.until(lambda: again.acked == {1: 7, 2: 8})


async def test_the_end_of_a_stream_waits_for_its_release(running: RunningServer, connect: Connect) -> None:
    completion(running).hold({})
    source, other = Listener(await connect(running)), Listener(await connect(running))
    await source.open(1)
    source.send([(1, 5)])
    source.end(1)
    await until_stored(running, 1)
    await quiet()
    assert source.acked == {}
    other.peer.send(Notify(1, "s"))
    source.peer.send(Notify(1, "s"))
    await source.until(lambda: source.refused == other.refused == [1])
    await release(running, source, {1: 5})
    await other.open(1)
    assert other.opened == {1: 5}


async def test_the_end_of_a_stream_is_acknowledged_at_once_if_its_last_message_was_released(
    running: RunningServer, connect: Connect
) -> None:
    source = await blocked_source(running, connect, 1)
    source.send([(1, 5)])
    await until_stored(running, 1)
    await release(running, source, {1: 5})
    source.end(1)
    await source.open(1)
    source.end(1)
    await source.open(1)
    assert source.opened == {1: 5}


async def test_an_empty_stream_ends_without_a_release(running: RunningServer, connect: Connect) -> None:
    source = await blocked_source(running, connect, 1)
    source.end(1)
    await quiet()
    await source.open(1)
    assert source.opened == {1: NOTHING_YET}


async def test_a_program_that_ends_a_stream_and_disconnects_can_reopen_it_and_is_acknowledged_at_its_release(
    running: RunningServer, connect: Connect
) -> None:
    source = await blocked_source(running, connect, 1)
    source.send([(1, 5)])
    source.end(1)
    await until_stored(running, 1)
    await source.close()
    again = Listener(await connect(running))
    await again.open(1)
    assert again.opened == {1: 5}
    again.end(1)
    await quiet()
    assert again.acked == {}
    await release(running, again, {1: 5})
    await again.until(lambda: sum(running.sources.registry.counts().values()) == 0)


@pytest.mark.slow
async def test_very_many_streams_are_acknowledged_in_bulk(running: RunningServer, connect: Connect) -> None:
    completion(running).hold({})
    sources = [Listener(await connect(running)) for _ in range(3)]
    streams = [range(number * 4000, (number + 1) * 4000) for number in range(3)]
    for source, own in zip(sources, streams, strict=True):
        await source.open(*own)
        for first in range(0, 4000, 500):
            before = source.credits
            source.send((stream_id, 1) for stream_id in own[first : first + 500])
            # Not all 500 return: what others have in flight leaves less for this one.
            await source.until(lambda source=source, before=before: source.credits >= before + 200)  # type: ignore[misc]
    await until_stored(running, 12_000)
    frames = running.sources.counters.frames_sent
    completion(running).advance(ends(running))
    for source, own in zip(sources, streams, strict=True):
        await source.until(lambda source=source, own=own: source.acked == dict.fromkeys(own, 1))  # type: ignore[misc]
    assert running.sources.counters.frames_sent - frames < 200


@pytest.mark.parametrize("restarts", [1, 2])
async def test_a_restarted_worker_acknowledges_what_was_released_and_withholds_the_rest(
    serve: Serve, connect: Connect, restarts: int
) -> None:
    running = await serve(source=ONE_SEGMENT)
    source = await blocked_source(running, connect, 1, 2)
    source.send([(1, 10)])
    await until_stored(running, 1)
    released = ends(running)
    completion(running).advance(released)
    await source.until(lambda: source.acked == {1: 10})
    source.send([(2, 20)])
    await until_stored(running, 2)
    for _ in range(restarts):
        running = await serve(source=ONE_SEGMENT)
        completion(running).hold(released)
    again = Listener(await connect(running))
    await again.open(1, 2)
    assert again.opened == {1: 10, 2: 20}
    again.send([(1, 11)])
    await until_stored(running, 3)
    await quiet()
    assert again.acked == {}
    await release(running, again, {1: 11, 2: 20})


async def test_ack_durable_does_not_wait_for_pipelines(serve: Serve, connect: Connect) -> None:
    running = await serve(source=SourceSettings(ack=AckMode.DURABLE))
    source = await blocked_source(running, connect, 1)
    source.send([(1, 5)])
    source.end(1)
    await source.until(lambda: source.acked == {1: 5})
    await source.open(1)
    assert not running.programs.view.status()["source"].acks_await_pipelines


async def test_a_new_ack_applies_at_once(serve: Serve, connect: Connect) -> None:
    running = await serve(source=ONE_SEGMENT)
    source = await blocked_source(running, connect, 1)
    source.send([(1, 5)])
    await until_stored(running, 1)
    await quiet()
    assert source.acked == {}
    running.sources.configure("source", replace(ONE_SEGMENT, ack=AckMode.DURABLE))
    await source.until(lambda: source.acked == {1: 5})
    source.send([(1, 6)])
    await source.until(lambda: source.acked == {1: 6})
    running.sources.configure("source", ONE_SEGMENT)
    source.send([(1, 7)])
    await until_stored(running, 3)
    await quiet()
    assert source.acked == {1: 6}
    await release(running, source, {1: 7})


async def test_a_hold_does_not_move_acknowledgements_backwards(running: RunningServer, connect: Connect) -> None:
    source = Listener(await connect(running))
    await source.open(1, 2)
    source.send([(1, 5), (2, 5)])
    await source.until(lambda: source.acked == {1: 5, 2: 5})
    completion(running).hold(dict.fromkeys(ends(running), 0))
    source.send([(1, 6)])
    await until_stored(running, 3)
    await quiet()
    assert source.acked == {1: 5, 2: 5}
    await release(running, source, {1: 6, 2: 5})


async def test_what_was_acknowledged_before_the_hold_is_not_acknowledged_again(serve: Serve, connect: Connect) -> None:
    running = await serve(source=ONE_SEGMENT)
    acked: list[tuple[int, int]] = []
    source = Listener(await connect(running), lambda *ack: acked.append(ack))
    await source.open(1)
    for number in range(5):
        source.send([(1, number)])
        await source.until(lambda number=number: source.acked == {1: number})  # type: ignore[misc]
    completion(running).hold({})
    for end in record_ends(running, "connector/source/0"):
        completion(running).advance({"connector/source/0": end})
        await quiet(0.01)
    source.check()
    assert acked == [(1, number) for number in range(5)]


async def test_a_hold_that_starts_at_the_end_releases_what_is_stored(running: RunningServer, connect: Connect) -> None:
    source = await blocked_source(running, connect, 1)
    source.send([(1, 5)])
    await until_stored(running, 1)
    completion(running).hold(ends(running))
    await source.until(lambda: source.acked == {1: 5})


async def test_a_second_hold_with_a_lower_start_revokes_nothing_and_applies_to_new_messages(
    running: RunningServer, connect: Connect
) -> None:
    source = await blocked_source(running, connect, 1)
    source.send([(1, 5)])
    await until_stored(running, 1)
    await release(running, source, {1: 5})
    completion(running).hold({})
    source.send([(1, 6)])
    source.end(1)
    await until_stored(running, 2)
    await quiet()
    assert source.acked == {1: 5}
    await release(running, source, {1: 6})


async def test_lifting_a_hold_acknowledges_all_that_is_durable_and_new_messages_at_once(
    running: RunningServer, connect: Connect
) -> None:
    source = await blocked_source(running, connect, 1, 2)
    source.send([(1, 5), (2, 6)])
    source.end(2)
    await until_stored(running, 2)
    completion(running).let_go()
    await source.until(lambda: source.acked == {1: 5, 2: 6})
    await source.open(2)
    source.send([(1, 7), (2, 8)])
    await source.until(lambda: source.acked == {1: 7, 2: 8})
    completion(running).hold(ends(running))
    source.send([(1, 9)])
    await until_stored(running, 5)
    await quiet()
    assert source.acked == {1: 7, 2: 8}


async def test_under_load_acknowledgements_never_move_backwards_while_pipelines_come_and_go(
    running: RunningServer, connect: Connect
) -> None:
    source = Listener(await connect(running))
    await source.open(1, 2, 3)
    number = 0
    for turn in range(30):
        match turn % 6:
            case 1:
                completion(running).hold({})
            case 3:
                completion(running).advance(ends(running))
            case 5:
                completion(running).let_go()
        for _ in range(5):
            number += 1
            source.send((stream_id, number) for stream_id in (1, 2, 3))
            await asyncio.sleep(0.001)
        source.check()
    completion(running).let_go()
    await source.until(lambda: source.acked == {1: number, 2: number, 3: number})


async def test_a_hold_is_remembered_for_a_source_that_does_not_exist_yet(
    running: RunningServer, connect: Connect
) -> None:
    completion(running, "later").hold({})
    source = Listener(await connect(running, "later"))
    await source.open(1)
    source.send([(1, 5)])
    await until_stored(running, 1, "later")
    await quiet()
    assert source.acked == {}
    completion(running, "later").advance(ends(running, "later"))
    await source.until(lambda: source.acked == {1: 5})


async def test_a_stop_does_not_wait_for_pipelines(serve: Serve, connect: Connect) -> None:
    running = await serve()
    source = await blocked_source(running, connect, 1)
    source.send([(1, 5)])
    await until_stored(running, 1)
    async with asyncio.timeout(SECONDS_MAX):
        await running.stop()
    running.crashed = True
    await source.until(lambda: source.is_closed)
    assert source.acked == {}


async def test_the_status_shows_pending_messages_and_the_age_of_the_oldest(
    running: RunningServer, connect: Connect
) -> None:
    began = asyncio.get_running_loop().time()
    source = await blocked_source(running, connect, 1)
    source.send([(1, 1), (1, 2), (1, 1)])
    await until_stored(running, 2)
    await quiet(0.1)
    status = running.programs.view.status()["source"]
    assert (status.messages, status.duplicates) == (2, 1)
    assert status.message_bytes == running.sources.counters.message_bytes
    assert status.acks_await_pipelines
    assert status.waiting_bytes > 0
    assert 0.1 <= running.programs.session_totals().ack_lag_seconds < asyncio.get_running_loop().time() - began
    completion(running).advance(released := ends(running))
    await source.until(lambda: source.acked == {1: 2})
    assert running.programs.session_totals().ack_lag_seconds == 0
    status = running.programs.view.status()["source"]
    assert (status.released, status.acknowledged, status.waiting_bytes) == (released, released, 0)
    completion(running).let_go()
    await source.until(lambda: not running.programs.view.status()["source"].acks_await_pipelines)
    status = running.programs.view.status()["source"]
    assert (status.acks_await_pipelines, status.released, status.waiting_bytes) == (False, {}, 0)


async def test_acknowledgements_continue_after_their_task_has_died(
    running: RunningServer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.core.supervisor.RESTARTS", RetryPolicy(0.01, 0.05))
    read, failures = read_heads, [RuntimeError("once"), RuntimeError("twice")]

    async def failing(*given: Any) -> HeadsRead:
        if failures:
            raise failures.pop()
        return await read(*given)

    monkeypatch.setattr("penstock.ingest.completion.read_heads", failing)
    source = await blocked_source(running, connect, 1, 2)
    source.send((stream_id, number) for number in range(10) for stream_id in (1, 2))
    await until_stored(running, 20)
    await release(running, source, {1: 9, 2: 9})
    deaths = {one.name: one.deaths for one in running.sources.supervisor.states()}
    assert deaths["acknowledgements of source"] == 2
