"""A coordinator on a store in memory, in the test's own event loop, that can be stopped and reopened."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from penstock.bucket.objects import Bucket
from penstock.coordinator.service import Coordinator
from penstock.coordinator.settings import NO_CONNECTORS, Connectors, CoordinatorSettings
from penstock.coordinator.shards import ShardDirectory, ShardWire
from penstock.coordinator.traces import Traces
from penstock.core.errors import StoreFailed, Unavailable
from penstock.core.sizes import KIB
from penstock.core.types import Buffer, Position
from penstock.protocol.api.pipelines import (
    Cut,
    InputOffset,
    InputSpec,
    Limits,
    PipelineStatus,
    Staged,
    Started,
    Starting,
)
from penstock.protocol.stored.event import HEAD, LENGTH_MIN
from penstock.protocol.stored.head import Mark, StreamColumns, encode_head
from penstock.store.file_journal import FileJournal
from penstock.store.files import Files
from penstock.store.journal import Durability
from penstock.store.settings import StoreSettings
from penstock.store.store import SegmentStore
from penstock.testing.faulty_files import FaultyFiles, SimulatedCrash
from penstock.testing.memory_files import MemoryFiles
from tests.support.waiting import SECONDS_MAX, eventually

STORE = StoreSettings(chapter_bytes=64 * KIB, reserve_bytes=128 * KIB)
SETTINGS = CoordinatorSettings(
    retention_seconds=0.01,
    sweep_seconds=0.01,
    truncate_seconds=0.0,
    heartbeat_lapse_seconds=1000.0,
    watermark_seconds=0.0,
)
NO_LIMITS = Limits()
TURNS = 50
"""Of the loop: more than anything takes that waits for neither a timer nor the journal."""


def u64s(values: Sequence[int]) -> bytes:
    return b"".join((value % 2**64).to_bytes(8, "little") for value in values)


def raw(*values: bytes) -> bytes:
    """Events as the segment protocol stores them."""
    return b"".join(bytes(4) + len(value).to_bytes(4, "big") + value for value in values)


def stored(stream_id: int, event_id: int, time_us: int, value: bytes = b"v") -> bytes:
    """A stored event with neither key nor metadata."""
    return HEAD.pack(0, LENGTH_MIN + len(value), stream_id, event_id, time_us, 0) + bytes(2) + value


@dataclass
class FakeCompletion:
    """Records its calls."""

    calls: list[tuple[str, dict[str, int]]] = field(default_factory=list)

    def hold(self, start: Mapping[str, int]) -> None:
        self.calls.append(("hold", dict(start)))

    def advance(self, ends: Mapping[str, int]) -> None:
        self.calls.append(("advance", dict(ends)))

    def let_go(self) -> None:
        self.calls.append(("let go", {}))


class SceneJournal(FileJournal):
    """Tells the event loop that there is something to commit: nothing has to look for it all the time."""

    def __init__(self, files: Files, settings: StoreSettings) -> None:
        self.queued = asyncio.Event()
        super().__init__(files, settings)

    def _queue(self, buffers: list[Buffer], end: Position) -> None:
        super()._queue(buffers, end)
        self.queued.set()


class Scene:
    """`open` and `close` may alternate, on the same files. The journal commits by itself unless `paused`."""

    def __init__(
        self,
        files: Files | None = None,
        settings: CoordinatorSettings = SETTINGS,
        connectors: Connectors = NO_CONNECTORS,
        traces: Callable[[], Traces | None] = lambda: None,
        bucket: Bucket | None = None,
        directory: ShardDirectory | None = None,
        wire: ShardWire | None = None,
    ) -> None:
        """`traces` is called at each `open`."""
        self.directory = directory
        self.wire = wire
        self.connectors = connectors
        self.traces = traces
        self.bucket = bucket
        self.files = files or MemoryFiles()
        self.settings = settings
        self.completions: dict[str, FakeCompletion] = {}
        self.paused = False
        self.now_us = 1_000_000_000
        self._started = 0

    async def open(self) -> None:
        self.completions = {}
        self.journal = SceneJournal(self.files, STORE)
        self.store = SegmentStore(self.journal, STORE)
        durability = Durability(self.journal, asyncio.get_running_loop(), lambda: None)
        self._committing = asyncio.create_task(self._commit())
        self.coordinator = Coordinator(
            self.store,
            durability,
            self.settings,
            lambda name: self.completions.setdefault(name, FakeCompletion()),
            lambda: (7101, False),
            now_us=lambda: self.now_us,
            connectors=self.connectors,
            traces=self.traces(),
            bucket=self.bucket,
            directory=self.directory,
            wire=self.wire,
        )
        await self.coordinator.start()

    async def close(self) -> None:
        self.paused = False
        await self.coordinator.stop()
        await self.durable()
        self._committing.cancel()
        with suppress(asyncio.CancelledError):
            await self._committing
        self.journal.close()

    async def crash(self, files: FaultyFiles, random: Random, task: "asyncio.Task[Any]") -> Files:
        """Crash somewhere in the write that the task waits for. Returns the files as the next process finds them."""
        with suppress(SimulatedCrash):
            files.crash_at(files.operations + random.randint(1, 6))
            self.journal.commit()
        self._committing.cancel()
        await self.coordinator.stop()
        with suppress(Unavailable, SimulatedCrash):
            await task
        return files.crash()

    async def reopen(self, **changes: Any) -> None:
        await self.close()
        self.settings = replace(self.settings, **changes)
        await self.open()

    async def _commit(self) -> None:
        with suppress(StoreFailed):
            while True:
                await self.journal.queued.wait()
                self.journal.queued.clear()
                while self.journal.end > self.journal.durable:
                    if not self.paused:
                        self.journal.commit()
                    await asyncio.sleep(0)

    async def durable(self) -> None:
        """Wait until everything is durable, and everything that depends on it is done."""
        while self.journal.end > self.journal.durable:  # noqa: ASYNC110
            await asyncio.sleep(0)
        for _ in range(TURNS):
            await asyncio.sleep(0)

    async def until(self, condition: Any, seconds: float = SECONDS_MAX) -> None:
        await eventually(condition, seconds=seconds)

    # Data.

    def create(self, *names: str) -> None:
        for name in names:
            self.store.create(name)

    async def append(self, name: str, data: bytes, head: bytes = b"") -> int:
        """Append one record. Returns where it ends."""
        if not self.store.exists(name):
            self.store.create(name)
        end = self.store.append(name, [data], head=head).end
        await self.durable()
        return end

    async def ingest(
        self,
        name: str,
        times: Mapping[int, int],
        marks: Sequence[Mark] = (),
        count: int | None = None,
        arrival_us: int = 0,
    ) -> int:
        """A record as a connector writes it, with one event per stream, of the given time."""
        ids = [*times]
        columns = StreamColumns(u64s(ids), u64s([1] * len(ids)), u64s([times[i] for i in ids]))
        head = encode_head(columns, marks, len(ids) if count is None else count, arrival_us)
        data = b"".join(stored(i, 1, times[i]) for i in ids) or bytes(8)
        return await self.append(name, data, head)

    # Calls, as the routes make them.

    async def start(
        self,
        name: str = "p",
        source: str | Sequence[str] = "s",
        outputs: Sequence[str] | None = ("out",),
        *,
        starting: Starting = "earliest",
        limits: Limits = NO_LIMITS,
        fresh: bool | None = None,
        request: str = "",
        inputs: Mapping[str, InputSpec] | None = None,
    ) -> Started:
        sources = [source] if isinstance(source, str) else list(source)
        given = inputs or {"in": InputSpec(sources, starting)}
        self._requests = getattr(self, "_requests", 0) + 1
        request = request or f"request {self._requests}"
        started = await self.coordinator.lifecycle.start(name, given, outputs, limits, fresh=fresh, request=request)
        self._started = started.generation
        return started

    async def start_as(self, generation: int, **more: Any) -> Started:
        """As this generation: generations are numbered across all pipelines."""
        while self._started < generation - 1:
            await self.start("another", outputs=())
        started = await self.start(**more)
        assert started.generation == generation
        return started

    async def initial(self, name: str = "p", key: str = "in") -> InputOffset:
        return await self.coordinator.lifecycle.initial(name, self.generation(name), key)

    async def attach(self, load: str, key: str = "in", source: str = "s", **more: Any) -> None:
        await self.coordinator.cuts.attach("p", self.generation(), key, load, [source], **more)

    async def cut(self, start: InputOffset, name: str = "p", key: str = "in", **more: Any) -> Cut:
        generation = more.pop("generation", None) or self.generation(name)
        return await self.coordinator.cuts.cut(name, generation, key, start, **more)

    async def stage(self, data: bytes, batch: int, name: str = "p", port: str = "out", part: str = "0-0") -> Staged:
        segment = f"staging/{name}/{self.generation(name)}/{batch}/{part}/{port}"
        return Staged(port, segment, await self.append(segment, data))

    async def merge(
        self, batch: int, *staged: Staged, name: str = "p", generation: int | None = None, manifest: str = ""
    ) -> Any:
        merger = self.coordinator.merger
        return await merger.merge(name, generation or self.generation(name), batch, staged, manifest)

    async def epoch(self, start: InputOffset, batch: int, data: bytes = b"", name: str = "p") -> InputOffset:
        """Cut and merged."""
        cut = await self.cut(start, name)
        staged = [await self.stage(data, batch, name)] if data else []
        await self.merge(batch, *staged, name=name)
        return cut.offset

    def generation(self, name: str = "p") -> int:
        return self.status(name).generation

    def status(self, name: str = "p") -> PipelineStatus:
        return next(one for one in self.coordinator.pipelines() if one.name == name)

    def output(self, name: str = "p", port: str = "out") -> bytes:
        info = self.store.info(f"pipeline/{name}/{port}")
        found, at = [], info.start
        while at < info.length:
            found.append(self.store.read(info.name, at, 1 << 20))
            at += len(found[-1])
        return b"".join(found)

    def names(self, prefix: str) -> list[str]:
        return [info.name for info in self.store.segments(prefix)]


@asynccontextmanager
async def opened(**changes: Any) -> AsyncIterator[Scene]:
    scene = Scene(settings=replace(SETTINGS, **changes))
    await scene.open()
    try:
        yield scene
    finally:
        await scene.close()
