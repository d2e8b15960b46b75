"""What goes wrong inside a worker shows: in /health, in a metric and in the log. And the rest of it continues."""

import asyncio
import errno
import re
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.client.segments import AsyncSegmentClient
from penstock.coordinator.machine.state import Retention
from penstock.coordinator.settings import CoordinatorSettings
from penstock.core.errors import Damaged, WorkerFailed
from penstock.core.retry import RetryPolicy
from penstock.store.files import Files, RealFiles
from penstock.store.settings import StoreSettings
from penstock.testing.faulty_files import FaultyFiles
from penstock.worker import loop_watch
from penstock.worker.worker import Worker
from tests.support.supervised import task_named
from tests.support.waiting import eventually
from tests.worker.test_worker import SMALL, get, settings, started

TASKS = {
    "compaction",
    "free disk",
    "history",
    "rates",
    "retention",
    "sweep of staged segments",
    "lag of pipelines",
    "sweep of silent connections",
    "credits and marks of time",
    "bound sinks",
}
"""Those that a worker without pipelines has, except http."""


@asynccontextmanager
async def running(
    data: Path,
    files: Files | None = None,
    store: StoreSettings = SMALL,
    coordinator: CoordinatorSettings | None = None,
) -> AsyncIterator[Worker]:
    given = replace(settings(data), store=store, coordinator=coordinator or CoordinatorSettings())
    worker, ready = Worker(given, files), asyncio.Event()
    task = asyncio.create_task(worker.run(lambda _: ready.set()))
    await asyncio.wait_for(ready.wait(), 60)
    try:
        yield worker
    finally:
        worker.stop()
        await task


def metric(text: str, name: str) -> float:
    found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
    assert found is not None, text
    return float(found[1])


# Background tasks.


async def test_every_task_that_dies_is_reported_and_restarted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("penstock.core.supervisor.RESTARTS", RetryPolicy(0.01, 0.05))
    async with running(tmp_path) as worker:
        supervisor = worker.supervisor
        assert {one.name for one in supervisor.states()} == TASKS | {"http"}
        killed = {name: task_named(supervisor, name) for name in TASKS}
        for task in killed.values():
            task.cancel()
        await eventually(lambda: all(task_named(supervisor, name) is not killed[name] for name in TASKS))
        code, health = await get(worker, "/health")
        assert code == 503
        _, metrics = await get(worker, "/metrics")
        for name in TASKS:
            assert f"background task {name!r} has failed once: it was cancelled" in health
            assert metric(metrics, f'penstock_task_deaths_total{{task="{name}"}}') == 1
            assert metric(metrics, f'penstock_task_failing{{task="{name}"}}') == 1
            assert f"background task {name!r} failed" in caplog.text


async def test_the_worker_ends_with_its_http_server(tmp_path: Path) -> None:
    worker, task = await started(tmp_path)
    task_named(worker.supervisor, "http").cancel()
    with pytest.raises(WorkerFailed, match="background task 'http' failed: it was cancelled"):
        await asyncio.wait_for(task, 60)


# A disk that cannot read.


def fail_reads(files: FaultyFiles, name: str) -> None:
    """From now on, of one file."""

    def before(operation: str) -> None:
        if operation == f"read {name}":
            raise OSError(errno.EIO, "Input/output error")

    files.before_each = before


async def fill(worker: Worker, name: str, kilobytes: int) -> None:
    store = worker._store
    if not store.exists(name):
        store.create(name)
    for _ in range(kilobytes // 64):
        store.append(name, [bytes(64 << 10)])
    await asyncio.to_thread(worker._journal.wait, worker._journal.end)


async def test_a_read_error_is_damage_of_one_segment_and_everything_else_continues(tmp_path: Path) -> None:
    files = FaultyFiles()
    by_size = CoordinatorSettings(retention=Retention("size", 1 << 20), retention_seconds=0.01, truncate_bytes=1)
    async with running(tmp_path, files, coordinator=by_size) as worker:
        await fill(worker, "broken", 128)
        await fill(worker, "connector/s/0", 1024)
        first = worker._journal.chapters[0]
        fail_reads(files, f"{first:020d}.journal")
        async with AsyncSegmentClient(f"127.0.0.1:{worker.ports['segment']}") as client:
            with pytest.raises(Damaged, match="cannot be read"):
                await client.read("broken", 0, 100)
        # Compaction meets the same bytes, and retention those of its own segment.
        for _ in range(6):
            await fill(worker, "other", 1024)
            await fill(worker, "connector/s/0", 1024)
            worker._store.truncate("other", worker._store.length("other"))
        await eventually(lambda: worker._compactor.dropped_chapters, lambda: worker.problems())
        await eventually(lambda: worker._store.info("connector/s/0").start > 0, lambda: worker.problems())
        code, health = await get(worker, "/health")
        assert code == 503
        assert f"segment 'broken': {first:020d}.journal" in health
        assert "background task" not in health  # the error is the segment's, not the task's


# A disk that stands still.


async def test_the_event_loop_does_not_wait_while_files_are_removed(tmp_path: Path) -> None:
    """On a slow disk that takes most of a second for a file of 64 MiB."""
    removed_by: list[threading.Thread] = []

    class Watched(RealFiles):
        def remove(self, name: str) -> None:
            if name.endswith(".journal"):
                removed_by.append(threading.current_thread())
            super().remove(name)

    async with running(tmp_path, Watched(tmp_path / "journal")) as worker:
        for _ in range(6):
            await fill(worker, "other", 1024)
            worker._store.truncate("other", worker._store.length("other"))
        await eventually(lambda: removed_by)
        assert threading.current_thread() not in removed_by


async def test_health_names_a_write_that_waits_for_the_disk(tmp_path: Path) -> None:
    files, answers = FaultyFiles(), threading.Event()

    def before(operation: str) -> None:
        if operation.startswith("sync"):
            answers.wait()

    store = replace(SMALL, unsynced_seconds_max=0.2)
    answers.set()
    async with running(tmp_path, files, store) as worker:
        await fill(worker, "s", 64)
        assert (await get(worker, "/health"))[0] == 200
        answers.clear()
        files.before_each = before
        try:
            worker._store.append("s", [b"late"])
            await eventually(lambda: worker._journal.oldest_unsynced_seconds > 0.5)
            code, health = await get(worker, "/health")
            assert code == 503
            assert "the oldest unsynced write has waited" in health
            _, metrics = await get(worker, "/metrics")
            assert metric(metrics, "penstock_store_oldest_unsynced_seconds") > 0.5
        finally:
            answers.set()
        await eventually(lambda: worker._journal.oldest_unsynced_seconds == 0)
        assert (await get(worker, "/health"))[0] == 200


async def test_the_worker_answers_while_the_disk_removes_a_dropped_chapter(tmp_path: Path) -> None:
    files, removing, answers = FaultyFiles(), threading.Event(), threading.Event()

    def before(operation: str) -> None:
        if operation.startswith("remove 0"):
            removing.set()
            answers.wait()

    async with running(tmp_path, files) as worker:
        files.before_each = before
        try:
            for _ in range(6):
                await fill(worker, "s", 1024)
                worker._store.truncate("s", worker._store.length("s"))
            await eventually(removing.is_set)
            assert (await get(worker, "/health"))[0] == 200
            await fill(worker, "s", 64)
            chapters = [name for name in files.list() if name.endswith(".journal")]
            assert len(worker._journal.chapters) < len(chapters)
        finally:
            answers.set()
        await eventually(lambda: not worker._journal.has_dropped)


# An event loop that stands still.


def nap_in_the_loop(seconds: float) -> None:
    time.sleep(seconds)


async def test_a_stall_of_the_loop_is_logged_with_what_it_was_in(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path) as worker:
        before = worker._loop_watch.stalls
        worker._loop_watch._limit.logged_at = -loop_watch.LOG_SECONDS  # a busy machine may have stalled it before
        nap_in_the_loop(0.6)
        await eventually(lambda: worker._loop_watch.stalls > before)
        nap_in_the_loop(0.6)
        await eventually(lambda: worker._loop_watch.stalls > before + 1)
        lines = [record.getMessage() for record in caplog.records if "the event loop stalled" in record.getMessage()]
        assert len([line for line in lines if "nap_in_the_loop" in line]) == 1, lines  # the second is left out
        _, metrics = await get(worker, "/metrics")
        assert metric(metrics, "penstock_loop_stalls_total") >= 2
        assert metric(metrics, "penstock_loop_longest_stall_seconds") > 0.25


async def test_a_stall_that_is_not_over_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_watch, "_UNFINISHED_SECONDS", 0.3)
    async with running(tmp_path):
        await asyncio.sleep(0)
        nap_in_the_loop(1.0)
        assert "has been stalled for" in caplog.text
        assert "nap_in_the_loop" in caplog.text
