"""The worker as a whole, in the test's own loop: its HTTP side, its ports, its end."""

import asyncio
import errno
import json
import os
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from penstock.application.deployments import Application, DeploymentFile, Phase
from penstock.core.errors import DiskFull, StoreFailed, StoreInUse
from penstock.ingest.settings import ProgramServerSettings
from penstock.protocol.api.codec import decode_reply
from penstock.protocol.api.status import WorkerStatus
from penstock.protocol.segment import DOCUMENT, ReadSegment
from penstock.segment_server.settings import ServerSettings
from penstock.store.files import RealFile, RealFiles
from penstock.store.settings import StoreSettings
from penstock.worker.ports_file import PortsFile
from penstock.worker.settings import WorkerSettings
from penstock.worker.worker import Worker
from tests.support.waiting import SECONDS_MAX, eventually

SMALL = StoreSettings(chapter_bytes=1 << 20, reserve_bytes=1 << 20)


FREE_PORTS: dict[str, Any] = {"segment": ServerSettings(port=0), "programs": ProgramServerSettings(port=0)}


def settings(data: Path) -> WorkerSettings:
    return WorkerSettings(data=data, http_port=0, store=SMALL, **FREE_PORTS)


async def started(data: Path) -> tuple[Worker, "asyncio.Task[None]"]:
    worker = Worker(settings(data))
    ready = asyncio.Event()
    task = asyncio.create_task(worker.run(lambda _: ready.set()))
    waiting = asyncio.create_task(ready.wait())
    await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        waiting.cancel()
        await task
    return worker, task


@pytest.fixture
async def worker(tmp_path: Path) -> AsyncIterator[Worker]:
    worker, task = await started(tmp_path)
    yield worker
    worker.stop()
    await task


def no_room(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


async def get(worker: Worker, path: str) -> tuple[int, str]:
    def ask() -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{worker.ports['http']}{path}") as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    return await asyncio.to_thread(ask)


async def test_the_chosen_ports_are_in_a_file_while_the_worker_runs(tmp_path: Path) -> None:
    worker, task = await started(tmp_path)
    expected = {"format": 1, **worker.ports, "id": worker.id, "host": "127.0.0.1"}
    assert json.loads((tmp_path / "ports.json").read_text()) == expected
    assert set(worker.ports) == {"connector", "segment", "http"}
    worker.stop()
    await task
    assert not (tmp_path / "ports.json").exists()


async def test_health_is_ok(worker: Worker) -> None:
    for probe in ("/live", "/ready", "/health"):
        assert await get(worker, probe) == (200, '{"ok":true,"problems":[]}\n')


async def test_status_reports_every_part(worker: Worker) -> None:
    worker._store.create("s")
    code, body = await get(worker, "/status")
    status = decode_reply(body.encode(), WorkerStatus)
    assert code == 200
    assert set(json.loads(body)) == set(WorkerStatus.__struct_fields__)
    assert status.ports == worker.ports
    assert status.store.segments == 1
    assert status.segment_server.open_connections == 0
    assert (status.sources, status.source_totals.count, status.session_totals.open) == ({}, 0, 0)


async def test_metrics_are_prometheus_text(worker: Worker) -> None:
    worker._store.create("s")
    _, body = await get(worker, "/metrics")
    assert "penstock_store_segments 1.0" in body
    assert "penstock_segment_appends_total 0.0" in body
    for gauge in ("sources_count", "sources_idle_streams", "sessions_open", "sessions_ack_lag_seconds"):
        assert f"# TYPE penstock_{gauge} gauge" in body
    for counter in ("store_chapters_dropped", "sources_messages", "sources_streams_ended", "sessions_closed_for_room"):
        assert f"# TYPE penstock_{counter}_total counter" in body
    assert "process_resident_memory_bytes" in body


async def test_segments_come_in_pages(worker: Worker) -> None:
    for number in range(1100):
        worker._store.create(f"s{number:04d}")
    first = json.loads((await get(worker, "/segments"))[1])
    assert (len(first["segments"]), first["more"]) == (1000, True)
    rest = json.loads((await get(worker, "/segments?after=s0999"))[1])
    assert (len(rest["segments"]), rest["more"]) == (100, False)
    some = json.loads((await get(worker, "/segments?prefix=s00"))[1])
    assert len(some["segments"]) == 100


async def test_a_second_worker_on_the_same_data_names_the_first(worker: Worker) -> None:
    with pytest.raises(StoreInUse, match="in use by"):
        await started(worker.settings.data)


async def test_a_port_that_is_taken_leaves_the_data_free(worker: Worker, tmp_path: Path) -> None:
    other = WorkerSettings(data=tmp_path / "other", http_port=worker.ports["http"], store=SMALL, **FREE_PORTS)
    with pytest.raises(OSError, match="in use"):
        await Worker(other).run()
    _, task = (again := await started(tmp_path / "other"))
    again[0].stop()
    await task


async def test_a_ledger_that_cannot_be_read_refuses_pipelines_and_nothing_else(tmp_path: Path) -> None:
    worker, task = await started(tmp_path)
    worker._store.create("coordinator/ledger")
    worker._store.append("coordinator/ledger", [b"nonsense"])
    worker._store.create("connector/sensors/0")
    worker.stop()
    await task
    worker, task = await started(tmp_path)
    assert worker._sources.completion("sensors").has_pipelines  # nobody knows what may be acknowledged
    code, text = await get(worker, "/health")
    assert (code, "pipelines are refused" in text) == (503, True)
    code, text = await get(worker, "/pipelines")
    assert (code, json.loads(text)["kind"]) == (503, "Damaged")
    worker._store.append("coordinator/ledger", [b"more"])
    worker.stop()
    await task


async def test_a_failed_fsync_ends_the_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker, task = await started(tmp_path)

    def fail(_: RealFile) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(RealFile, "sync", fail)
    worker._store.create("s")
    with pytest.raises(StoreFailed, match="fsync"):
        await asyncio.wait_for(task, SECONDS_MAX)


async def test_what_was_taken_before_a_stop_is_there_after_it(tmp_path: Path) -> None:
    worker, task = await started(tmp_path)
    worker._store.create("s")
    worker._store.append("s", [b"last words"])
    worker.stop()
    await task
    worker, task = await started(tmp_path)
    assert worker._store.read("s", 0, 100) == b"last words"
    worker.stop()
    await task


async def test_on_a_full_disk_a_worker_is_alive_and_not_ready(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RealFiles, "free_bytes", lambda _: 0)
    worker._store.create("s")
    for _ in range(100):
        with suppress(DiskFull):
            worker._store.append("s", [bytes(100_000)])
    for probe in ("/ready", "/health"):
        code, text = await get(worker, probe)
        assert code == 503
        (problem,) = json.loads(text)["problems"]
        assert "room" in problem
    assert (await get(worker, "/live"))[0] == 200, "a restart would not help"


async def test_a_worker_whose_ports_file_cannot_be_written_starts_and_writes_it_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as full:
        full.setattr(PortsFile, "publish", no_room)
        worker, task = await started(tmp_path)
        code, text = await get(worker, "/health")
        assert code == 503
        assert f"--worker 127.0.0.1:{worker.ports['http']}" in text
    await eventually((tmp_path / "ports.json").exists)
    assert (await get(worker, "/health"))[0] == 200
    worker.stop()
    await task


async def test_a_worker_whose_programs_were_drained_starts_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await DeploymentFile(tmp_path).save(Application(phase=Phase.DRAINED))
    monkeypatch.setattr("penstock.application.deployments.write_private", no_room)
    worker, task = await started(tmp_path)
    assert worker.runtime().application.phase is Phase.RUNNING
    worker.stop()
    await task


async def test_a_full_disk_and_its_end_are_logged_once(
    worker: Worker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    worker._store.create("s")
    with monkeypatch.context() as full:
        full.setattr(RealFiles, "free_bytes", lambda _: 0)
        for _ in range(100):
            with suppress(DiskFull):
                worker._store.append("s", [bytes(100_000)])
        await eventually(
            lambda: (
                "sources and new epochs wait; reads, delivery and truncation continue: the disk has no room"
                in caplog.text
            )
        )
    await eventually(lambda: "the disk has room again" in caplog.text)
    assert caplog.text.count("new epochs wait") == 1


async def test_health_names_damage_that_a_reader_has_found(worker: Worker) -> None:
    worker._store.create("s")
    for _ in range(30):
        worker._store.append("s", [b"needle" * 20_000])
    await asyncio.to_thread(worker._journal.wait, worker._journal.end)
    file = worker.settings.data / "journal" / f"{0:020d}.journal"
    data = file.read_bytes()
    with file.open("r+b") as journal:
        journal.seek(data.index(b"needle"))
        journal.write(b"N")
    reader, writer = await asyncio.open_connection("127.0.0.1", worker.ports["segment"])
    writer.write(DOCUMENT.encode(ReadSegment("s", 0, 100)))
    assert b"checksum" in await reader.read(1000)
    writer.close()
    await writer.wait_closed()
    code, text = await get(worker, "/health")
    assert code == 503
    assert file.name in text
