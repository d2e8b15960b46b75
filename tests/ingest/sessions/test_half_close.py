"""A source that shuts down its sending side after the last message, and waits for the acknowledgement."""

import asyncio
import socket
from pathlib import Path

import pytest

from penstock.protocol.connector import (
    NOTHING_YET,
    Ack,
    Decoder,
    EndOfStream,
    Frame,
    Hello,
    Notify,
    NotifyAck,
    Use,
    encode,
)
from tests.ingest.completion_scene import Listener, completion, ends, message, quiet, until_stored
from tests.ingest.conftest import Connect, RunningServer, Serve
from tests.support.worker_process import WorkerProcess


def half_close(source: Listener) -> None:
    source.peer.writer.write_eof()


async def test_a_half_closed_source_gets_its_acks_and_then_the_connection_closes(
    running: RunningServer, connect: Connect
) -> None:
    for number in range(1, 20):
        source = Listener(await connect(running))
        await source.open(1, 2)
        source.send([(1, number), (2, number)])
        half_close(source)
        await source.until(lambda source=source: source.is_closed)  # type: ignore[misc]
        assert source.acked == {1: number, 2: number}
    assert len(running.programs.sessions) == 0


async def test_a_half_closed_source_gets_the_acks_of_ended_streams(running: RunningServer, connect: Connect) -> None:
    source = Listener(await connect(running))
    await source.open(1, 2)
    source.send([(1, 5)])
    source.peer.send(EndOfStream(1), EndOfStream(2))
    half_close(source)
    await source.until(lambda: source.is_closed)
    assert source.acked == {1: 5}
    assert running.sources.counters.streams_ended == 2
    assert sum(running.sources.registry.counts().values()) == 0


async def test_the_streams_of_a_half_closed_source_are_free_at_once(serve: Serve, connect: Connect) -> None:
    running = await serve()
    completion(running).hold({})
    source = Listener(await connect(running))
    await source.open(1, 2)
    source.send([(1, 5)])
    half_close(source)
    other = Listener(await connect(running))
    await other.open(1, 2)
    assert other.opened == {1: 5, 2: NOTHING_YET}
    other.send([(1, 6)])
    await until_stored(running, 2)
    completion(running).advance(ends(running))
    await other.until(lambda: other.acked == {1: 6})
    await source.until(lambda: source.is_closed)
    assert source.acked == {1: 5}
    other.send([(1, 7)])
    await until_stored(running, 3)
    assert [event.event_id for event in running.events()] == [5, 6, 7]


async def test_a_half_closed_session_waits_for_the_release_of_its_own_messages_and_no_others(
    running: RunningServer, connect: Connect
) -> None:
    completion(running).hold({})
    source, other = Listener(await connect(running)), Listener(await connect(running))
    await source.open(1, 2, 3)
    await other.open(4)
    source.send([(1, 5), (2, 6)])
    source.peer.send(EndOfStream(2))
    await until_stored(running, 2)
    own = ends(running)
    half_close(source)
    for number in range(20):
        other.send([(4, number)])
        await asyncio.sleep(0.002)
    assert source.acked == {}
    assert not source.is_closed
    assert "Half-closed" in [s.status().state for s in running.programs.sessions]
    completion(running).advance(own)
    await source.until(lambda: source.is_closed)
    assert source.acked == {1: 5, 2: 6}


async def test_a_half_closed_source_is_acknowledged_when_the_hold_is_lifted(
    running: RunningServer, connect: Connect
) -> None:
    completion(running).hold({})
    source = Listener(await connect(running))
    await source.open(1)
    source.send([(1, 5)])
    half_close(source)
    await quiet()
    assert source.acked == {}
    completion(running).let_go()
    await source.until(lambda: source.is_closed)
    assert source.acked == {1: 5}


async def test_a_hold_set_before_messages_are_durable_applies_to_them(running: RunningServer, connect: Connect) -> None:
    for number in range(1, 20):
        source = Listener(await connect(running))
        await source.open(1)
        source.send([(1, number)])
        half_close(source)
        await asyncio.sleep(0.0003 * number)
        completion(running).hold(ends(running))
        await until_stored(running, number)
        completion(running).advance(ends(running))
        await source.until(lambda source=source: source.is_closed)  # type: ignore[misc]
        assert source.acked == {1: number}
        completion(running).let_go()


async def test_a_half_closed_session_is_closed_unacknowledged_after_its_timeout(serve: Serve, connect: Connect) -> None:
    running = await serve(half_closed_seconds=0.2)
    completion(running).hold({})
    source = Listener(await connect(running))
    await source.open(1)
    source.send([(1, 5)])
    await until_stored(running, 1)
    began = asyncio.get_running_loop().time()
    half_close(source)
    await source.until(lambda: source.is_closed)
    assert asyncio.get_running_loop().time() - began >= 0.2
    assert source.acked == {}
    await source.until(lambda: len(running.programs.sessions) == 0)
    assert not completion(running)._waiters


async def test_a_half_closed_session_makes_room_for_a_new_one(serve: Serve, connect: Connect) -> None:
    running = await serve(sessions_max=2, address_sessions_max=2)
    completion(running).hold({})
    source, other = Listener(await connect(running)), Listener(await connect(running))
    await source.open(1)
    await other.open(2)
    source.send([(1, 5)])
    half_close(source)
    await until_stored(running, 1)
    third = Listener(await connect(running))
    await third.open(3)
    await source.until(lambda: source.is_closed)
    assert not other.is_closed


async def test_a_half_closed_source_that_sent_nothing_is_closed_at_once(serve: Serve, connect: Connect) -> None:
    running = await serve(half_closed_seconds=3600)
    completion(running).hold({})
    source = Listener(await connect(running))
    await source.open(1)
    half_close(source)
    await source.until(lambda: source.is_closed)


@pytest.mark.process
def test_a_worker_process_acknowledges_a_half_closed_source(tmp_path: Path) -> None:
    with WorkerProcess(tmp_path / "data") as worker:
        for number in range(1, 6):
            with socket.create_connection(("127.0.0.1", worker.connector_port), timeout=10) as source:
                source.sendall(encode(Hello("0.0.1", b"", "test", "source")) + encode(Notify(1, "s")))
                decoder, frames = Decoder(Use.SOURCE), list[Frame]()
                while not any(isinstance(frame, NotifyAck) for frame in frames):
                    frames += decoder.feed(source.recv(65536))
                source.sendall(encode(message(1, number)))
                source.shutdown(socket.SHUT_WR)
                while data := source.recv(65536):
                    frames += decoder.feed(data)
            assert [acked for frame in frames if isinstance(frame, Ack) for acked in frame.acked] == [(1, number)]
