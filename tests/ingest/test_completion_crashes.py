"""Programs that use the SDK while pipelines hold their source."""

import asyncio
import math
from collections.abc import Iterator

import pytest

from penstock.client.source import AsyncSource, Message, Source
from penstock.protocol.connector import stream_id_of
from tests.ingest.completion_scene import completion, ends, last_ids, quiet, until_stored
from tests.ingest.conftest import RunningServer, Serve
from tests.support.waiting import SECONDS_MAX, eventually

STREAMS = ["a", "b", "c"]
COUNT = 50


def numbers(after: int | None) -> Iterator[Message]:
    return (Message(number, b"%d" % number) for number in range(0 if after is None else after + 1, COUNT))


class Program:
    """A source with some streams, with the sync or the async client, and its acknowledgements."""

    def __init__(self, running: RunningServer, kind: type[Source | AsyncSource]) -> None:
        self.acked: dict[str, int] = {}
        self.source = kind(
            f"127.0.0.1:{running.port}", source="source", on_ack=self._on_ack, retry_seconds=math.inf, poll_seconds=0.01
        )
        for name in STREAMS:
            self.source.stream(name, numbers)

    def _on_ack(self, name: str, last_id: int) -> None:
        assert last_id > self.acked.get(name, -1)
        self.acked[name] = last_id

    def start(self) -> "asyncio.Task[None]":
        if isinstance(self.source, AsyncSource):
            return asyncio.create_task(self.source.run())
        return asyncio.create_task(asyncio.to_thread(self.source.run))


async def finished(task: "asyncio.Task[None]") -> None:
    async with asyncio.timeout(SECONDS_MAX):
        await task


@pytest.mark.parametrize("kind", [Source, AsyncSource])
async def test_a_program_finishes_when_everything_it_sent_is_complete_and_not_before(
    running: RunningServer, kind: type[Source | AsyncSource]
) -> None:
    completion(running).hold({})
    program = Program(running, kind)
    task = program.start()
    await until_stored(running, COUNT * len(STREAMS))
    await quiet()
    assert not task.done()
    assert program.acked == {}
    completion(running).advance(ends(running))
    await finished(task)
    assert program.acked == dict.fromkeys(STREAMS, COUNT - 1)


@pytest.mark.parametrize("kind", [Source, AsyncSource])
async def test_a_program_that_waits_across_a_worker_restart_is_acknowledged_afterwards(
    serve: Serve, kind: type[Source | AsyncSource], unused_tcp_port: int
) -> None:
    running = await serve(port=unused_tcp_port)
    completion(running).hold({})
    program = Program(running, kind)
    task = program.start()
    await until_stored(running, COUNT * len(STREAMS))
    running = await serve(port=unused_tcp_port)
    completion(running).hold({})
    await eventually(lambda: running.sources.counters.streams_opened >= len(STREAMS))
    await quiet()
    assert program.acked == {}
    completion(running).advance(ends(running))
    await finished(task)
    assert program.acked == dict.fromkeys(STREAMS, COUNT - 1)
    assert len(running.events()) == COUNT * len(STREAMS), "and nothing was stored twice"


async def test_acknowledgements_of_a_program_follow_the_releases(running: RunningServer) -> None:
    completion(running).hold({})
    program = Program(running, AsyncSource)
    task = program.start()
    await until_stored(running, COUNT * len(STREAMS))
    total = ends(running)
    for share in range(10):
        released = {name: end * share // 10 for name, end in total.items()}
        completion(running).advance(released)
        await quiet(0.02)
        allowed = last_ids(running, released)
        for name, last_id in program.acked.items():
            assert last_id <= allowed[stream_id_of(name)]
    completion(running).advance(total)
    await finished(task)


async def test_a_program_that_is_stopped_while_it_waits_does_not_wait_for_pipelines(
    running: RunningServer,
) -> None:
    completion(running).hold({})
    program = Program(running, AsyncSource)
    task = program.start()
    await until_stored(running, COUNT * len(STREAMS))
    program.source.stop()
    await finished(task)
    assert program.acked == {}
