"""A worker inside this process."""

import asyncio
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from penstock.bucket.objects import Bucket
from penstock.store.files import Files
from penstock.worker.settings import WorkerSettings
from penstock.worker.worker import Worker

T = TypeVar("T")

SECONDS_MAX = 60.0
"""For its start, its stop, and a call in its thread. The first start of an installation also compiles its kernels."""


class RunningWorker:
    """A worker in a thread of its own."""

    def __init__(self, settings: WorkerSettings, files: Files | None = None, bucket: Bucket | None = None) -> None:
        """`files`: where the journal is, instead of on the disk. `bucket`: where drivers mirror their checkpoints."""
        self.ports: dict[str, int] = {}
        self._settings = settings
        self._files = files
        self._bucket = bucket
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="worker")

    @property
    def address(self) -> str:
        """Of its segment port."""
        return f"127.0.0.1:{self.ports['segment']}"

    @property
    def http(self) -> str:
        return f"127.0.0.1:{self.ports['http']}"

    @property
    def worker(self) -> Worker:
        """For what runs in its thread: see `call`."""
        return self._worker

    def start(self) -> None:
        self._thread.start()
        assert self._ready.wait(SECONDS_MAX), "the worker does not start"
        if self._error is not None:
            raise self._error

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs it in the worker's event loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(SECONDS_MAX)

    def stop(self) -> None:
        with suppress(RuntimeError):  # its loop is closed: it has failed by itself
            self._loop.call_soon_threadsafe(self._worker.stop)
        self._thread.join(SECONDS_MAX)
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
        self._worker = Worker(self._settings, self._files, self._bucket)
        await self._worker.run(self._on_ready)

    def _on_ready(self, ports: dict[str, int]) -> None:
        self.ports = ports
        self._ready.set()
