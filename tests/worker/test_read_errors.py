"""A disk that cannot read (EIO): whoever asks for the bytes gets Damaged, and everything else continues.

tests/worker/test_faults.py has the segment port and compaction, tests/ingest/test_completion_lost_heads.py the
acknowledgements of sources.
"""

import asyncio
import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.client.segments.range_reader import read_range
from penstock.coordinator.machine.state import Retention
from penstock.coordinator.settings import CoordinatorSettings
from penstock.core.address import Address
from penstock.core.errors import Damaged
from penstock.core.retry import RetryPolicy
from penstock.delivery import backoff, service
from penstock.spark.sink.staging import Link
from penstock.testing.faulty_files import FaultyFiles
from tests.coordinator.scene import SETTINGS, Scene
from tests.delivery.stage import Stage, values
from tests.support.waiting import eventually
from tests.worker.test_faults import fill, running
from tests.worker.test_worker import SMALL, get


def fail_all_reads(files: FaultyFiles) -> None:
    def before(operation: str) -> None:
        if operation.startswith("read"):
            raise OSError(errno.EIO, "Input/output error")

    files.before_each = before


def mend(files: FaultyFiles) -> None:
    files.before_each = lambda _: None


@asynccontextmanager
async def opened(files: FaultyFiles) -> AsyncIterator[Scene]:
    scene = Scene(files, SETTINGS)
    await scene.open()
    try:
        yield scene
    finally:
        mend(files)
        await scene.close()


async def test_a_task_of_spark_that_reads_its_range_gets_damaged(tmp_path: Path) -> None:
    files = FaultyFiles()
    async with running(tmp_path, files) as worker:
        await fill(worker, "connector/s/0", 64)
        fail_all_reads(files)
        link = Link(lambda: Address("127.0.0.1", worker.ports["segment"]))

        def read() -> int:
            return sum(len(piece.data) for piece in read_range(link, "connector/s/0", 0, 64 << 10))

        with pytest.raises(Damaged, match="cannot be read"):
            await asyncio.to_thread(read)
        mend(files)
        assert await asyncio.to_thread(read) == 64 << 10
        link.drop()


async def test_a_pipeline_that_plans_its_next_epoch_gets_damaged() -> None:
    files = FaultyFiles()
    async with opened(files) as scene:
        await scene.ingest("connector/s/0", {1: 1_000_000})
        await scene.start()
        start = await scene.initial()
        fail_all_reads(files)
        with pytest.raises(Damaged, match="cannot be read"):
            await scene.cut(start)
        assert scene.store.is_damaged("connector/s/0")
        mend(files)
        assert (await scene.cut(start)).offset.segments


@pytest.mark.parametrize("kind", ["voting", "following"])
async def test_a_sink_is_blocked_by_what_cannot_be_read_and_gets_it_later(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, stage = FaultyFiles(), Stage()
    stage.scene = Scene(files)
    monkeypatch.setattr(service.Delivery, "_make", staticmethod(stage.make))
    monkeypatch.setattr(backoff, "RETRIES", RetryPolicy(0.01, 0.05))
    await stage.open()
    try:
        delivery = stage.delivery
        assert delivery is not None
        await stage.bind(**{kind: "a"})
        fail_all_reads(files)
        await stage.put_out()
        await eventually(lambda: any("cannot be read" in one.reason for one in delivery.sinks()), delivery.sinks)
        assert stage.scene.store.is_damaged("pipeline/p/out")
        mend(files)
        await stage.delivered()
        assert (stage.disks["a"].values if kind == "voting" else stage.taken["a"][0][1]) == values(0)
    finally:
        mend(files)
        await stage.close()


async def test_sweep_and_retention_continue_without_the_indexes_that_cannot_be_read(tmp_path: Path) -> None:
    """Almost nothing is cached, so that retention must read the index of the chapter where it is to truncate."""
    files, name, staged = FaultyFiles(), "connector/broken/0", "staging/nobody/1/1/0-0/out"
    often = CoordinatorSettings(
        retention=Retention("size", 4 << 20),
        retention_seconds=0.01,
        sweep_seconds=0.01,
        truncate_bytes=1,
        orphan_seconds=0.01,
    )
    async with running(tmp_path, files, replace(SMALL, index_cache_bytes=1), often) as worker:
        fail_all_reads(files)
        await fill(worker, name, 12 << 10)
        # When the next chapter is closed, the indexes of those that are durable leave the cache.
        await fill(worker, name, 3 << 9)
        await eventually(lambda: worker._store.is_damaged(name), worker.problems)
        worker._store.create(staged)
        await eventually(lambda: not worker._store.exists(staged), worker.problems)
        code, health = await get(worker, "/health")
        assert code == 503
        assert f"segment {name!r}" in health
        assert "background task" not in health
        start = worker._store.info(name).start
        mend(files)
        await eventually(lambda: worker._store.info(name).start > start, worker.problems)
