"""A worker inside the test process, with small files."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from ssl import SSLContext

from penstock.access.file import AccessControl, Open
from penstock.bucket.objects import Bucket
from penstock.coordinator.settings import CoordinatorSettings
from penstock.core.sizes import MIB
from penstock.ingest.settings import ProgramServerSettings, SourceSettings
from penstock.segment_server.settings import ServerSettings
from penstock.store.files import Files
from penstock.store.settings import StoreSettings
from penstock.testing.running_worker import RunningWorker
from penstock.worker.settings import WorkerSettings

__all__ = ["SMALL_STORE", "RunningWorker", "running_worker"]

SMALL_STORE = StoreSettings(chapter_bytes=MIB, reserve_bytes=2 * MIB)


@contextmanager
def running_worker(
    data: Path,
    *,
    ssl: SSLContext | None = None,
    store: StoreSettings = SMALL_STORE,
    connector: SourceSettings | None = None,
    access: AccessControl | None = None,
    cookie: bytes = b"",
    coordinator: CoordinatorSettings | None = None,
    files: Files | None = None,
    bucket: Bucket | None = None,
    short_circuit: bool = True,
) -> Iterator[RunningWorker]:
    settings = WorkerSettings(
        data=data,
        access=access or Open(),
        http_port=0,
        store=store,
        coordinator=coordinator or CoordinatorSettings(),
        segment=ServerSettings(port=0, ssl=ssl, short_circuit=short_circuit),
        programs=ProgramServerSettings(port=0, ssl=ssl, cookie=cookie, source=connector or SourceSettings()),
    )
    worker = RunningWorker(settings, files, bucket)
    worker.start()
    try:
        yield worker
    finally:
        worker.stop()
