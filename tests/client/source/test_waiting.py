"""Iterators that wait, sources that are interrupted, TLS, and what is imported."""

import asyncio
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
import uvloop

from penstock.client import AsyncSource, Source
from penstock.client.source import feed
from penstock.client.source.feed import SKIPS_MAX
from penstock.core.errors import RequestError, Unavailable
from penstock.protocol.connector import Message as ProtocolMessage
from penstock.protocol.connector import Notify, NotifyAck, stream_id_of
from tests.client.source.conftest import asynchronous
from tests.client.source.model_worker import ModelWorker
from tests.client.source.scripted_worker import Peer, ScriptedWorker
from tests.client.source.test_endings import read_to_the_end
from tests.client.source.test_streams import MakeSource, numbers
from tests.support.running_worker import running_worker
from tests.support.waiting import until

PROGRAM = """
import sys
from penstock.client import Source
source = Source(sys.argv[1], source="endless")
def factory(after):
    try:
        print("begun", flush=True)
        while True:
            yield None
    finally:
        print("closed", flush=True)
source.stream("s", factory)
print("running", flush=True)
source.run()
"""


async def test_a_stream_that_waits_forever_blocks_no_other() -> None:
    """And its last message does not wait with it."""
    never = threading.Event()

    def stuck(after: int | None) -> Iterator[tuple[int, bytes]]:
        yield 1, b"one"
        yield 2, b"two"
        never.wait(30)

    async def stuck_too(after: int | None) -> AsyncIterator[tuple[int, bytes]]:
        yield 1, b"one"
        await asyncio.sleep(1000)

    model = ModelWorker()
    with ScriptedWorker(model) as worker:
        source = AsyncSource(worker.address, source="test")
        source.stream("stuck", stuck)
        source.stream("stuck too", stuck_too)
        quick = source.stream("quick", numbers(5000))
        running = asyncio.create_task(source.run())
        await asyncio.to_thread(
            until, lambda: quick.is_done and model.ids("stuck") == [1, 2] and model.ids("stuck too") == [1]
        )
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    never.set()


async def test_a_factory_is_called_again_only_when_the_last_iterator_has_ended() -> None:
    at_once = most = 0
    may_end = threading.Event()

    def factory(after: int | None) -> Iterator[tuple[int, bytes]]:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        try:
            may_end.wait(20)
            yield 1, b""
        finally:
            at_once -= 1

    def cut(peer: Peer) -> None:
        peer.greet(10)
        notify = peer.expect(Notify)
        peer.send(NotifyAck(True, notify.stream_id, 2**64 - 1))
        time.sleep(0.05)

    model = ModelWorker()
    threads = threading.active_count()
    with ScriptedWorker(cut, cut, cut, model) as worker:
        source = AsyncSource(worker.address, source="test")
        source.stream("s", factory)
        running = asyncio.create_task(source.run())
        while worker.connections < 4:
            await asyncio.sleep(0.01)
            assert threading.active_count() <= threads + 2
        may_end.set()
        await running
    assert (most, at_once) == (1, 0)
    assert model.ids("s") == [1]


@pytest.mark.parametrize("make_async", [False, True])
async def test_a_stream_reads_ahead_a_little_only(make_async: bool) -> None:
    given = 0

    def factory(after: int | None) -> Iterator[tuple[int, bytes]]:
        nonlocal given
        for given in range(100_000):
            yield given, b"x" * 1000

    def no_credit(peer: Peer) -> None:
        peer.greet(0)
        notify = peer.expect(Notify)
        peer.send(NotifyAck(True, notify.stream_id, 2**64 - 1))
        assert len(read_to_the_end(peer)) == 0

    with ScriptedWorker(no_credit) as worker:
        source = AsyncSource(worker.address, source="test")
        source.stream("s", asynchronous(factory) if make_async else factory)
        running = asyncio.create_task(source.run())
        await asyncio.to_thread(until, lambda: given > 10)
        await asyncio.sleep(0.2)
        assert 10 < given <= feed.SUPPLY_BYTES // 1000 + 1
        source.stop()
        await running


async def test_the_loop_keeps_running_while_many_messages_are_skipped() -> None:
    skipped = 100_000
    model = ModelWorker()
    model.stored["s"].append(ProtocolMessage(stream_id_of("s"), skipped, 0, b"", b""))
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    with ScriptedWorker(model) as worker:
        source = AsyncSource(worker.address, source="test")
        source.stream("s", asynchronous(lambda _: [(n, b"") for n in range(skipped + 10)]))
        counting = asyncio.create_task(count_turns())
        await source.run()
        counting.cancel()
    assert model.ids("s") == list(range(skipped, skipped + 10))
    assert turns >= skipped // SKIPS_MAX


def test_the_blocking_source_reports_that_it_accepts_no_asynchronous_iterators() -> None:
    with ScriptedWorker(ModelWorker()) as worker:
        source: Any = Source(worker.address, source="test")
        source.stream("s", asynchronous(numbers(3)))
        with pytest.raises(RequestError, match="asynchronous"):
            source.run()


def test_with_uvloop_too() -> None:
    cuts = [3000, 200, 9000]
    model = ModelWorker(cut_after=lambda: cuts.pop() if cuts else None)
    with ScriptedWorker(model) as worker, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        source = AsyncSource(worker.address, source="test")
        source.stream("s", numbers(3000))
        runner.run(source.run())
    assert model.ids("s") == list(range(1, 3001))


def test_over_tls(make_source: MakeSource, tmp_path: Path) -> None:
    authority = trustme.CA()
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(server)
    client = ssl.create_default_context()
    authority.configure_trust(client)
    with running_worker(tmp_path / "data", ssl=server) as worker:
        address = f"127.0.0.1:{worker.ports['connector']}"
        source = make_source(address, ssl=client)
        stream = source.stream("s", lambda after: [(n, b"x" * 2000) for n in range(5000)])
        source.run()
        assert (stream.sent, stream.acknowledged) == (5000, 4999)
        source = make_source(address, ssl=ssl.create_default_context())
        source.stream("s", numbers(1))
        with pytest.raises(Unavailable, match="no TLS connection"):
            source.run()


@pytest.mark.process
def test_ctrl_c_ends_iterators_and_continues_as_keyboard_interrupt() -> None:
    model = ModelWorker()
    with ScriptedWorker(model) as worker:
        command = [sys.executable, "-c", PROGRAM, worker.address]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.readline() == "running\n"
            assert process.stdout.readline() == "begun\n"
            process.send_signal(signal.SIGINT)
            assert process.stdout.readline() == "closed\n"
            assert process.stderr.read().endswith("KeyboardInterrupt\n")
    assert model.errors == []


def test_the_sdk_imports_nothing_heavy() -> None:
    code = "import sys, penstock.client; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"numpy", "numba", "pyspark", "pyarrow", "starlette", "rich"} & set(done.stdout.split())
