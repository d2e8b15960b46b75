"""How far a source may be acknowledged: what is durable, or, while pipelines read it, what they have completed.

    AT_ONCE ──hold──▶ WAITING ──let_go──▶ CATCHING_UP ──everything that waited is acknowledged──▶ AT_ONCE

While acknowledgements wait for pipelines, they are read from the heads of the records that `advance` has released, and
sent to the stream's owner at that time. So a session only has to remember the time of the oldest message that it stored
(`sessions.acks.AckLag`).
"""

import asyncio
from array import array
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import NamedTuple, Protocol

from penstock.core.errors import Damaged, PenstockError, SegmentTruncated
from penstock.core.supervisor import Supervised, Supervisor
from penstock.core.types import Buffer, Offset
from penstock.ingest.owners import StreamKey, StreamOwner, StreamRegistry
from penstock.ingest.settings import AckMode
from penstock.ingest.source_log import SourceLog
from penstock.protocol.stored.head import HeadFold, fold_heads
from penstock.store.reader import Piece
from penstock.store.store import SegmentStore

# Heads per step: they are located in the event loop, at about 3 µs each, and read and folded in another thread.
_ROWS_PER_STEP = 500
_BYTES_PER_STEP = 1 << 20
# Streams to look up before yielding to the loop, at about 1 µs each; also the most in one ACK.
_STREAMS_PER_TURN = 2000


class Mode(Enum):
    AT_ONCE = "at once"
    WAITING = "waiting"
    CATCHING_UP = "catching up"


class Waiter(Protocol):
    """Streams of one session, some of which wait until a segment is released up to an offset."""

    def release(self, route: int, passed: float) -> bool:
        """Handle everything that waited for `passed` or less. False if only part of it was done: call it again."""
        ...


@dataclass(frozen=True, slots=True)
class CompletionStatus:
    """For /status: `released` by the coordinator, `acknowledged` to the sources."""

    awaits_pipelines: bool
    released: dict[str, int]
    acknowledged: dict[str, int]
    waiting_bytes: int


class Completion:
    """The completion of one source; it exists before the source's log. The coordinator calls `hold`, `advance` and
    `let_go` in the worker's loop. After a start, it must call `hold` before sources can connect. With `ack: durable`,
    acknowledgements do not wait.

    An acknowledgement is never revoked: what was acknowledged before a `hold` stays acknowledged, whatever its `start`.
    """

    def __init__(self, name: str, store: SegmentStore, registry: StreamRegistry, supervisor: Supervisor) -> None:
        self.name = name
        self._store = store
        self._registry = registry
        self._supervisor = supervisor
        self.has_pipelines = False
        self._mode = Mode.AT_ONCE
        self._released: dict[str, int] = {}
        self._log: SourceLog | None = None
        self._segments: list[str] = []
        self._durable: list[int] = []
        self._cursors: list[int] = []
        """For each segment, up to where it was acknowledged, or there was no session to acknowledge it to."""
        self._looked: list[int] = []
        """Up to here there is no whole record after the cursor, because the last release ended inside one."""
        self._waiters: set[Waiter] = set()
        self._task: Supervised | None = None
        self._again = self._is_stopped = False
        self._watchers: list[Callable[[], None]] = []
        self.has_sessions = True
        """Whether there are sessions to acknowledge to; otherwise no head is read."""

    # For the coordinator.

    def hold(self, start: Mapping[str, int]) -> None:
        """From now on acknowledgements wait for `advance`; these offsets are released already."""
        self.has_pipelines = True
        self._released = dict(start)
        if self._log is not None:
            self._begin(self._log)
        self._moved()

    def advance(self, ends: Mapping[str, int]) -> None:
        """Every pipeline has completed the segments up to these offsets: acknowledge that. Never goes back."""
        for name, end in ends.items():
            self._released[name] = max(end, self._released.get(name, 0))
        self._wake()
        self._moved()

    def let_go(self) -> None:
        """No pipeline reads the source any more: acknowledge what is durable."""
        self.has_pipelines = False
        self._catch_up()
        self._moved()

    def _catch_up(self) -> None:
        if self._mode is Mode.WAITING:
            self._mode = Mode.CATCHING_UP
            self._wake()

    def _moved(self) -> None:
        for moved in self._watchers:
            moved()

    # For callers that wait until pipelines are done.

    def completed(self, route: int) -> float:
        """Up to where every pipeline has completed the segment, under any `ack`; infinite if no pipeline reads it."""
        return self._released.get(self._segments[route], 0) if self.has_pipelines else inf

    def watch(self, moved: Callable[[], None]) -> None:
        """Register a function to call whenever `completed` has changed."""
        self._watchers.append(moved)

    def unwatch(self, moved: Callable[[], None]) -> None:
        self._watchers.remove(moved)

    # For the catalog.

    def attach(self, log: SourceLog) -> None:
        """The log was created or opened: everything in it is durable, and there are no sessions yet."""
        self._log = log
        self._segments = log.segments
        self._durable = [self._store.length(name) for name in self._segments]
        self._cursors = list(self._durable)
        self._looked = list(self._durable)
        if self.has_pipelines:
            self._begin(log)

    def grown(self) -> None:
        """The source has more segments than before; they are empty."""
        more = [self._store.length(name) for name in self._segments[len(self._durable) :]]
        for column in (self._durable, self._cursors, self._looked):
            column.extend(more)

    def reconfigured(self) -> None:
        """The log's settings may have changed, and with them whether acknowledgements wait for pipelines."""
        if self._log is None or not self.has_pipelines:
            return
        if self._log.settings.ack is AckMode.DURABLE:
            self._catch_up()
        elif self._mode is not Mode.WAITING:
            self._begin(self._log)

    def _begin(self, log: SourceLog) -> None:
        if log.settings.ack is AckMode.DURABLE:
            return
        if self._mode is Mode.AT_ONCE:
            self._cursors = list(self._durable)
        self._mode = Mode.WAITING
        self._wake()

    def stop(self) -> None:
        """Stop, without acknowledging what still waits."""
        self._is_stopped = True
        if self._task is not None:
            self._task.cancel()

    def status(self) -> CompletionStatus:
        if not self.has_sessions:
            self._look()
        acknowledged = self._durable if self._mode is Mode.AT_ONCE else self._cursors
        waiting = sum(d - min(d, self.passed(r)) for r, d in enumerate(self._durable))
        return CompletionStatus(
            self.waits and self.has_pipelines,
            dict(sorted(self._released.items())) if self.has_pipelines else {},
            dict(zip(self._segments, acknowledged, strict=True)),
            int(waiting),
        )

    def _look(self) -> None:
        """Bring the cursors up to date: without sessions `durable` is not called, and they do not move."""
        store = self._store
        self._durable = [store.info(name).length if store.exists(name) else 0 for name in self._segments]
        self._cursors = [self._target(route) for route in range(len(self._segments))]

    # For sessions.

    @property
    def waits(self) -> bool:
        """Whether acknowledgements of what has become durable have to wait."""
        return self._mode is not Mode.AT_ONCE

    def passed(self, route: int) -> float:
        """Up to where the segment is acknowledged."""
        match self._mode:
            case Mode.AT_ONCE:
                return inf
            case Mode.CATCHING_UP:
                return self._cursors[route]
            case Mode.WAITING:
                return min(self._cursors[route], self._released.get(self._segments[route], 0))

    def durable(self, route: int, end: Offset) -> None:
        """The record that ends at this offset is durable."""
        self._durable[route] = max(end, self._durable[route])
        if self._mode is Mode.CATCHING_UP or (
            self._mode is Mode.WAITING and self._released.get(self._segments[route], 0) > self._cursors[route]
        ):
            self._wake()

    def wait(self, waiter: Waiter) -> None:
        """Call the waiter's `release` whenever segments are released further, until `forget`."""
        self._waiters.add(waiter)

    def forget(self, waiter: Waiter) -> None:
        self._waiters.discard(waiter)

    # Acknowledging.

    def _wake(self) -> None:
        self._again = True
        is_wanted = self._mode is not Mode.AT_ONCE and self.has_sessions
        if is_wanted and self._task is None and not self._is_stopped:
            self._task = self._supervisor.run(f"acknowledgements of {self.name}", self._work, ended=self._worked)

    def _worked(self) -> None:
        self._task = None
        if self._again:  # requested while it was about to end
            self._wake()

    async def _work(self) -> None:
        """Run until everything that is released is acknowledged, in short steps that yield to the loop."""
        routes = range(len(self._segments))
        self._again = True  # also after a failure
        while self._again:
            self._again = False
            while (route := self._behind()) is not None:
                await self._step(route)
                await self._release([route])
            await self._release(routes)
            if self._mode is Mode.CATCHING_UP and self._behind() is None:
                self._mode = Mode.AT_ONCE
                await self._release(routes)

    def _target(self, route: int) -> int:
        if self._mode is Mode.CATCHING_UP:
            return self._durable[route]
        return min(self._durable[route], self._released.get(self._segments[route], 0))

    def _behind(self) -> int | None:
        routes = range(len(self._segments))
        return next((r for r in routes if self._target(r) > max(self._cursors[r], self._looked[r])), None)

    async def _step(self, route: int) -> None:
        """Acknowledge the messages in the next heads of this segment."""
        name, target = self._segments[route], self._target(route)
        try:
            read = await read_heads(self._store, name, self._cursors[route], target)
        except SegmentTruncated as error:
            self._skip(route, min(error.start, target))
            return
        except (PenstockError, OSError) as error:
            self._skip(route, target, error)
            return
        if read.end is None:
            self._looked[route] = target
            return
        await self._acknowledge(read.fold)
        self._cursors[route] = max(read.end, self._cursors[route])
        for damage in read.damage:
            self._skip(route, read.end, damage)

    async def _acknowledge(self, fold: HeadFold) -> None:
        """Acknowledge to each owner the streams that it has now."""
        for first in range(0, len(fold.stream_ids), _STREAMS_PER_TURN):
            part = slice(first, first + _STREAMS_PER_TURN)
            for owner, (ids, last) in self._by_owner(fold.stream_ids[part], fold.last_ids[part]).items():
                owner.acknowledge(ids, last)
            await asyncio.sleep(0)

    def _by_owner(
        self, stream_ids: "array[int]", last_ids: "array[int]"
    ) -> dict[StreamOwner, tuple["array[int]", "array[int]"]]:
        found: dict[StreamOwner, tuple[array[int], array[int]]] = {}
        for stream_id, last_id in zip(stream_ids, last_ids, strict=True):
            owner = self._registry.owner(StreamKey(self.name, stream_id))
            if owner is not None:
                ids, last = found.setdefault(owner, (array("Q"), array("Q")))
                ids.append(stream_id)
                last.append(last_id)
        return found

    def _skip(self, route: int, end: int, error: Exception | None = None) -> None:
        """Heads up to `end` are lost, so their messages are unknown. Everything stored now is acknowledged once all of
        it is released, so that no source waits forever.
        """
        name, store = self._segments[route], self._store
        if isinstance(error, Damaged):
            store.note_damage(name, error)
        self._cursors[route] = max(end, self._cursors[route])
        assert self._log is not None
        for session in self._log.sessions:
            session.resync(route, store.length(name) if store.exists(name) else Offset(end))

    async def _release(self, routes: Iterable[int]) -> None:
        for route in routes:
            for waiter in list(self._waiters):
                while not waiter.release(route, self.passed(route)):  # noqa: ASYNC110  each call does a part
                    await asyncio.sleep(0)


class HeadsRead(NamedTuple):
    """The fold of some heads. `end` is where the last record ends; None: there was no whole record."""

    fold: HeadFold
    end: int | None
    damage: list[Damaged]
    """Heads that could not be read, and were skipped."""


async def read_heads(store: SegmentStore, segment: str, start: int, end: int) -> HeadsRead:
    """The next heads of records that end in (start, end]. Raises what `store.locate_heads` does."""
    loop = asyncio.get_running_loop()
    while True:
        limits = {"rows_max": _ROWS_PER_STEP, "bytes_max": _BYTES_PER_STEP}
        pieces = [piece for piece in store.locate_heads(segment, start, end, **limits) if _end(piece) <= end]
        try:
            return await loop.run_in_executor(None, _read, store, segment, pieces)
        except LookupError:  # moved or truncated in the meantime
            await asyncio.sleep(0)


def _end(piece: Piece) -> int:
    return piece.offset + piece.row.length


def _read(store: SegmentStore, segment: str, pieces: list[Piece]) -> HeadsRead:
    """Runs in another thread."""
    end = _end(pieces[-1]) if pieces else None
    try:
        return HeadsRead(fold_heads(segment, store.fetch_heads(pieces)), end, [])
    except Damaged:
        heads: list[tuple[int, Buffer]] = []
        damage: list[Damaged] = []
        for piece in pieces:
            try:
                (head,) = store.fetch_heads([piece])
                fold_heads(segment, [head])
                heads.append(head)
            except Damaged as error:
                damage.append(error)
        return HeadsRead(fold_heads(segment, heads), end, damage)
