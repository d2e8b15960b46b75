"""One host, without shards."""

import asyncio
from pathlib import Path
from threading import Event
from uuid import uuid4

import pytest

from penstock.access.file import Open
from penstock.bucket.stores import open_bucket
from penstock.cluster.records import WORKERS, WorkerRecord, read_records
from penstock.core.errors import RequestError
from penstock.ingest.settings import ProgramServerSettings
from penstock.segment_server.settings import ServerSettings
from penstock.worker.host import Host
from penstock.worker.settings import BucketOptions, WorkerSettings
from tests.support.waiting import SECONDS_MAX, eventually


async def test_a_directory_with_a_journal_of_its_own_is_refused(tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir()
    (tmp_path / "journal" / "0.journal").touch()
    host = Host(WorkerSettings(data=tmp_path), BucketOptions("memory://b", tmp_path / "cache", 1 << 20), 0, [])
    with pytest.raises(RequestError, match="has a journal of its own") as raised:
        await host.run(lambda _: None, lambda _: None)
    assert "penstock store copy" in raised.value.hint


async def test_a_host_renews_its_record_while_all_threads_are_busy_for_programs(tmp_path: Path) -> None:
    url = f"memory://{uuid4().hex}"
    settings = WorkerSettings(
        data=tmp_path,
        programs=ProgramServerSettings(port=0),
        segment=ServerSettings(port=0),
        http_port=0,
        access=Open(),
    )
    host = Host(settings, BucketOptions(url, tmp_path / "cache", 1 << 20), 0, [])
    is_ready, is_over = asyncio.Event(), Event()
    running = asyncio.create_task(host.run(lambda _: is_ready.set(), lambda _: None))

    def revision() -> int:
        return sum(one.revision for one in read_records(open_bucket(url), WORKERS, WorkerRecord))

    try:
        await asyncio.wait_for(is_ready.wait(), SECONDS_MAX)
        busy = [asyncio.create_task(asyncio.to_thread(is_over.wait)) for _ in range(64)]
        await eventually(lambda: revision() > 0)
        before = revision()
        await eventually(lambda: revision() > before + 1)
        is_over.set()
        await asyncio.gather(*busy)
    finally:
        is_over.set()
        host.stop()
        await running
