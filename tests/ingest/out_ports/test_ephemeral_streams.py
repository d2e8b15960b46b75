"""Ephemeral streams, which cannot resume: their ids are never reused, and they are forgotten after their end."""

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from penstock.ingest.out_ports.host import SourceHost
from penstock.ingest.out_ports.storage import EphemeralIds
from penstock.protocol.stored.head import MarkKind
from penstock.store.file_journal import FileJournal
from tests.ingest.out_ports.life import Life
from tests.ingest.out_ports.scene import Scene
from tests.support.waiting import eventually

CONNECTIONS = 10_000
TABLE_MAX = 4200
"""Streams that a start may find: their marks weigh 16 KiB each until the next snapshot, which 64 MiB bring about."""


async def connections(host: SourceHost, count: int, at_once: int = 250) -> None:
    async def one(number: int) -> None:
        stream = await host.open_stream(f"peer {number}")
        await stream.send(b"hello")
        await stream.close()

    for first in range(0, count, at_once):
        await asyncio.gather(*(one(first + n) for n in range(at_once)))


async def test_stream_ids_are_not_reused_after_restarts(scene: Scene) -> None:
    seen: set[int] = set()
    for _ in range(4):
        host = await scene.host()
        for number in range(3):
            stream = await host.open_stream(f"peer {number}")
            assert stream.ref.stream_id not in seen
            seen.add(stream.ref.stream_id)
        await scene.crash()
    assert [stream_id >> 32 for stream_id in sorted(seen)] == [1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4]


async def test_a_host_recreated_in_the_same_process_uses_new_stream_ids(scene: Scene) -> None:
    host = await scene.host()
    first = await host.open_stream("peer")
    await scene.leave()
    host = await scene.host()
    second = await host.open_stream("peer")
    assert second.ref.stream_id >> 32 == (first.ref.stream_id >> 32) + 1


async def test_a_host_that_runs_out_of_stream_ids_begins_its_next_incarnation(scene: Scene) -> None:
    host = await scene.host()
    incarnation = EphemeralIds(host.log, scene.running.sources.durability, count_max=2)
    before = host.log.streams.incarnation
    ids = [await incarnation.next_id() for _ in range(5)]
    assert [(i >> 32) - before for i in ids] == [1, 1, 2, 2, 3]
    assert len(set(ids)) == 5


async def killed(folder: Path, what: str) -> int:
    """Start a process that prints the id of its stream, or the lower bound of its ids; then kill it."""
    program = [sys.executable, "-m", "tests.ingest.out_ports.life", str(folder), what]
    process = await asyncio.create_subprocess_exec(*program, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    said = int(await process.stdout.readline())
    process.send_signal(signal.SIGKILL)
    await process.wait()
    return said


@pytest.mark.process
async def test_stream_ids_are_not_reused_after_a_kill_even_before_the_first_stream(tmp_path: Path) -> None:
    said = [await killed(tmp_path / "journal", what) for what in ("nothing", "nothing", "stream", "nothing", "stream")]
    assert said == sorted(said)
    assert [number >> 32 for number in said] == [1, 2, 3, 4, 5]


@pytest.mark.slow
async def test_many_short_connections_leave_a_stream_table_of_bounded_size_also_after_a_restart(tmp_path: Path) -> None:
    life = Life(tmp_path, FileJournal)
    host = await life.host()
    await connections(host, CONNECTIONS)
    await eventually(lambda: not host.log.streams)
    await life.end()
    life = Life(tmp_path, FileJournal)
    recovered = life.sources.log("source")
    assert len(recovered.streams) <= TABLE_MAX
    host = await life.host()
    await eventually(lambda: not recovered.streams)
    recovered.snapshot()
    await life.sources.durability.caught_up()
    await life.end()
    life = Life(tmp_path, FileJournal)
    assert not life.sources.log("source").streams
    await life.end()


async def test_ephemeral_streams_of_a_crashed_process_have_ended_and_stay_ended(scene: Scene) -> None:
    host = await scene.host()
    stream = await host.open_stream("peer")
    resumed = await host.open_stream("file", resume=True)
    await stream.send(b"x")
    await scene.running.sources.durability.caught_up()
    await scene.crash()
    log = scene.running.sources.log("source")
    await eventually(lambda: stream.ref.stream_id not in log.streams)
    assert resumed.ref.stream_id in log.streams
    assert [m.stream_id for m in await scene.marks() if m.kind is MarkKind.ENDED] == [stream.ref.stream_id]
    assert ("completed", stream.ref) in scene.gate.reports


async def test_ephemeral_streams_are_kept_until_every_pipeline_has_completed_them_also_across_a_restart(
    tmp_path: Path,
) -> None:
    life = Life(tmp_path, FileJournal)
    life.sources.completion("source").hold({})
    host = await life.host(segments=1)
    stream = await host.open_stream("peer")
    await stream.send(b"x")
    await stream.close()
    await eventually(lambda: life.gate.of(stream.ref) == ["started", "ended"])
    await life.end()
    life = Life(tmp_path, FileJournal)
    life.sources.completion("source").hold({})
    await life.host(segments=1)
    await asyncio.sleep(0.1)
    assert "completed" not in life.gate.of(stream.ref)
    assert life.programs.view.stream_names("source", [stream.ref.stream_id]) == ["peer"]
    life.sources.completion("source").advance(life.ends())
    await eventually(lambda: life.gate.of(stream.ref)[-1:] == ["completed"])
    assert life.programs.view.stream_names("source", [stream.ref.stream_id]) == [""]
    await life.end()


async def test_streams_of_programs_are_never_mistaken_for_ephemeral_ones(scene: Scene) -> None:
    host = await scene.host()
    log = host.log
    log.find(7, "chosen by a program")
    log.find((host.log.streams.incarnation + 1) << 32 | 1, "larger than any")
    assert log.streams.ephemeral() == []
