"""`run` is called again after a back-off; a drain loses nothing; a stop keeps the position of streams that resume."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import pytest

from penstock.connectors.api import Host, Lost, Stream, StreamRef
from penstock.core.errors import RequestError
from penstock.ingest.out_ports.host import Supervision
from penstock.protocol.api.deployment import ReconnectSpec
from penstock.protocol.stored.head import MarkKind
from tests.ingest.out_ports.scene import PREFIXED, SPLIT, Scene, full_disk, is_waiting
from tests.support.waiting import eventually

QUICK = ReconnectSpec(first_seconds=0.001, max_seconds=0.01)


@dataclass
class Heard:
    said: list[str] = field(default_factory=list)

    def connected(self) -> None:
        self.said.append("connected")

    def disconnected(self, reason: str) -> None:
        self.said.append(reason)

    def opened(self, stream: StreamRef) -> None:
        self.said.append(f"opened {stream.stream_id}")

    def closed(self, stream: StreamRef, reason: str) -> None:
        self.said.append(f"closed {stream.stream_id} {reason}")


@pytest.mark.parametrize("error", [Lost("the server is down"), ConnectionRefusedError("the server is down")])
async def test_a_lost_connection_is_retried_and_ends_its_streams(scene: Scene, error: Exception) -> None:
    runs: list[Stream] = []
    may_continue = asyncio.Event()

    async def run(host: Host) -> None:
        runs.append(await host.open_stream(f"connection {len(runs)}"))
        host.connected()
        await runs[-1].send(b"x")
        if len(runs) == 1:
            await may_continue.wait()
            raise error
        await host.draining()

    host = await scene.host(run, reconnect=QUICK)
    heard = host.contraflow = Heard()
    await eventually(lambda: host.status().state == "connected")
    may_continue.set()
    await eventually(lambda: len(runs) == 2 and host.status().state == "connected")
    assert heard.said == ["the server is down", "connected"]
    assert host.status().failures == 1
    assert host.status().streams == 1
    ended = [m.stream_id for m in await scene.marks() if m.kind is MarkKind.ENDED]
    assert ended == [runs[0].ref.stream_id]


async def test_an_unexpected_error_is_logged_and_retried_like_a_lost_connection(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    runs: list[int] = []

    async def run(host: Host) -> None:
        runs.append(1)
        if len(runs) == 1:
            raise ValueError("a mistake")
        host.connected()
        await host.draining()

    host = await scene.host(run, reconnect=QUICK)
    await eventually(lambda: host.status().state == "connected")
    assert any(record.exc_info is not None for record in caplog.records)


async def test_a_connector_that_has_used_all_its_attempts_stays_failed_and_reports_why(scene: Scene) -> None:
    runs: list[int] = []

    async def run(host: Host) -> None:
        runs.append(1)
        raise Lost("no route")

    host = await scene.host(run, reconnect=ReconnectSpec(first_seconds=0.001, max_seconds=0.01, tries=3))
    await eventually(lambda: host.status().state == "failed")
    assert len(runs) == 3
    assert host.status().reason == "no route"


async def test_a_connector_that_returns_has_ended(scene: Scene) -> None:
    async def run(host: Host) -> None:
        stream = await host.open_stream("all")
        await stream.send(b"all there is")
        host.finished()

    host = await scene.host(run, segments=2)
    await eventually(lambda: host.status().state == "ended")
    assert host.log.has_finished
    assert [m.kind for m in await scene.marks() if m.kind is not MarkKind.FINISHED] == [
        MarkKind.STARTED,
        MarkKind.ENDED,
    ]


def pauses(spec: ReconnectSpec, uniform: Callable[[float, float], float]) -> list[float]:
    supervision = Supervision("x", spec, lambda *_: None, uniform)
    found = []
    for _ in range(6):
        supervision.failures += 1
        found.append(supervision._pause(None))  # type: ignore[arg-type]
    return found


def test_back_off_grows_to_its_maximum_with_random_jitter() -> None:
    spec = ReconnectSpec(first_seconds=1, factor=3, max_seconds=20)
    assert pauses(spec, lambda low, high: high) == [1, 3, 9, 20, 20, 20]
    assert pauses(spec, lambda low, high: low) == [0.5, 1.5, 4.5, 10, 10, 10]


async def test_a_drain_stores_what_interceptors_buffer_and_what_was_read_for_a_closed_stream(scene: Scene) -> None:
    host = await scene.host(interceptors=SPLIT)
    one, other = await host.open_stream("one"), await host.open_stream("other")
    await one.send(b"a\nheld")
    scene.gate.set(other.ref, is_open=False)
    sending = asyncio.create_task(other.send(b"read before\n"))
    assert await is_waiting(sending)
    reading = asyncio.create_task(one.ready())
    drain = asyncio.create_task(host.drain())
    await sending
    await one.close()
    await other.close()
    await drain
    assert sorted(await scene.values()) == [b"a", b"held", b"read before"]
    await asyncio.gather(reading, return_exceptions=True)
    with pytest.raises(RequestError, match="is draining"):
        await host.open_stream("late")
    assert host.status().state == "ended"


async def test_a_drain_closes_streams_that_the_connector_leaves_open(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.ingest.out_ports.host.DRAIN_SECONDS", 0.05)
    host = await scene.host(interceptors=SPLIT)
    stream = await host.open_stream("peer")
    await stream.send(b"a\nheld")
    await host.drain()
    assert await scene.values() == [b"a", b"held"]
    assert not host.streams


async def test_after_a_drain_a_partly_read_record_of_a_resuming_stream_is_read_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.ingest.out_ports.host.DRAIN_SECONDS", 0.05)
    host = await scene.host(interceptors=SPLIT)
    stream = await host.open_stream("file", resume=True)
    await stream.send(b"line\nhalf a li")
    await host.drain()
    assert await scene.values() == [b"line"]
    assert [m.kind for m in await scene.marks()] == [MarkKind.STARTED]


async def test_a_stop_ends_streams_and_makes_a_dead_letter_of_an_incomplete_record(scene: Scene) -> None:
    host = await scene.host(interceptors=PREFIXED)
    stream = await host.open_stream("peer")
    await stream.send(b"\x00\x00\x00\x09half")
    blocked = await host.open_stream("closed")
    scene.gate.set(blocked.ref, is_open=False)
    sending = asyncio.create_task(blocked.send(b"\x00\x00\x00\x01x"))
    assert await is_waiting(sending)
    await host.stop()
    await host.stop()
    assert await sending == 1
    assert host.status().state == "stopped"
    assert len(await scene.events("source.err")) == 1
    assert [m.kind for m in await scene.marks()].count(MarkKind.ENDED) == 2


async def test_a_drain_stores_what_was_read_even_beyond_the_quota(scene: Scene) -> None:
    host = await scene.host(quota_bytes=2000, segments=1)
    stream = await host.open_stream("peer")
    await stream.send(bytes(2000))
    sending = asyncio.create_task(stream.send(b"read before"))
    assert await is_waiting(sending)
    drain = asyncio.create_task(host.drain())
    await sending
    await stream.close()
    await drain
    assert (await scene.values())[1:] == [b"read before"]


async def test_a_stream_whose_end_could_not_be_stored_ends_when_there_is_room(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.ingest.out_ports.port.STOP_SECONDS", 0.05)
    opened: asyncio.Queue[Stream] = asyncio.Queue()
    fails = asyncio.Event()

    async def run(host: Host) -> None:
        host.connected()
        await opened.put(await host.open_stream("peer"))
        await fails.wait()
        fails.clear()
        raise Lost("gone")

    await scene.host(run, reconnect=QUICK)
    first = await opened.get()
    with full_disk(scene.running.journal):
        fails.set()
        await eventually(lambda: first.ref.stream_id not in scene.hosts[0].streams)
    await opened.get()
    await eventually(lambda: scene.gate.of(first.ref) == ["started", "ended", "completed"])


async def test_a_connector_that_ignores_cancellation_is_abandoned(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("penstock.ingest.out_ports.host.END_SECONDS", 0.05)
    is_over = asyncio.Event()

    async def run(host: Host) -> None:
        host.connected()
        while not is_over.is_set():
            with suppress(asyncio.CancelledError):
                await is_over.wait()

    host = await scene.host(run)
    await host.stop()
    assert host.status().state == "stopped"
    assert "is abandoned" in caplog.text
    is_over.set()
