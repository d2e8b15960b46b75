"""A worker inside the test process."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from ssl import SSLContext

from penstock.access.file import AccessControl, Open
from penstock.coordinator.settings import CoordinatorSettings
from penstock.ingest.settings import GatewaySettings, SourceSettings
from penstock.segment_server.settings import ServerSettings
from penstock.store.files import Files
from penstock.store.settings import MIB, StoreSettings
from penstock.worker.settings import WorkerSettings
from penstock.worker.worker import Worker

SMALL_STORE = StoreSettings(chapter_bytes=MIB, reserve_bytes=2 * MIB)


class RunningWorker:
    """A worker in a thread of its own, on free ports."""

    def __init__(self, settings: WorkerSettings, files: Files | None = None) -> None:
        """`files`: where the journal is, instead of on the disk."""
        self.ports: dict[str, int] = {}
        self._settings = settings
        self._files = files
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="worker")

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.ports['segment']}"

    def start(self) -> None:
        self._thread.start()
        assert self._ready.wait(60), "the worker does not start"
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        with suppress(RuntimeError):  # its loop is closed: it has failed by itself
            self._loop.call_soon_threadsafe(self._worker.stop)
        self._thread.join(60)
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._error = error
        self._ready.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._worker = Worker(self._settings, self._files)
        await self._worker.run(self._on_ready)

    def _on_ready(self, ports: dict[str, int]) -> None:
        self.ports = ports
        self._ready.set()


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
) -> Iterator[RunningWorker]:
    settings = WorkerSettings(
        data=data,
        access=access or Open(),
        http_port=0,
        store=store,
        coordinator=coordinator or CoordinatorSettings(),
        segment=ServerSettings(port=0, ssl=ssl),
        gateway=GatewaySettings(port=0, ssl=ssl, cookie=cookie, source=connector or SourceSettings()),
    )
    worker = RunningWorker(settings, files)
    worker.start()
    try:
        yield worker
    finally:
        worker.stop()
