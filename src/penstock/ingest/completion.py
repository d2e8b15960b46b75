"""What of a connector may be acknowledged: what is durable, or, while pipelines hold it, what they have completed.

    AT_ONCE ──hold──▶ HELD ──let_go──▶ CATCHING_UP ──all that waited is acknowledged──▶ AT_ONCE

While it is held, acknowledgements come from the heads of the records that `advance` has released (`head_reader.py`)
and go to whichever session has the stream then, without a next message or batch. So all that a session has to remember
of what it stored is the time of the oldest (`ack_lag.py`).
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import TYPE_CHECKING, Protocol

from penstock.core.errors import Damaged, PenstockError, SegmentTruncated
from penstock.core.types import Offset
from penstock.ingest.connector import Connector
from penstock.ingest.head_reader import HeadReader
from penstock.ingest.settings import AckMode

if TYPE_CHECKING:
    from penstock.ingest.gateway import Gateway


class Mode(Enum):
    AT_ONCE = "at once"
    HELD = "held"
    CATCHING_UP = "catching up"


class Waiter(Protocol):
    """Streams of one session, some of which wait for a segment to be released up to an offset."""

    def release(self, route: int, passed: float) -> bool:
        """Do what has waited for `passed` or less; False when only a part of it was done: call it again."""
        ...

    def resync(self, route: int, end: Offset) -> None:
        """Heads could not be read: what is stored now of this route's streams is to be acknowledged at `end`."""
        ...


@dataclass(frozen=True, slots=True)
class CompletionStatus:
    """What /status shows: `released` as the coordinator has said, `acknowledged` as far as sources were told."""

    held: bool
    released: dict[str, int]
    acknowledged: dict[str, int]
    waiting_bytes: int


class Completion:
    """Of one connector. The coordinator calls `hold`, `advance` and `let_go`, in the worker's loop; a `hold` that is to
    cover what sources send after a start must come before the gateway listens. Under `ack: durable` they do nothing.

    An acknowledgement never goes back: what was acknowledged before a `hold` stays so, whatever its `start`.
    """

    def __init__(self, gateway: "Gateway", name: str) -> None:
        self._gateway = gateway
        self.name = name
        self.is_held = False
        self._mode = Mode.AT_ONCE
        self._released: dict[str, int] = {}
        self._connector: Connector | None = None
        self._segments: list[str] = []
        self._durable: list[int] = []
        self._cursors: list[int] = []
        """Of each segment, up to where it was acknowledged, or nobody was there who could be told."""
        self._looked: list[int] = []
        """Up to where there is no whole record behind the cursor: the last release ended inside of one."""
        self._waiters: set[Waiter] = set()
        self._task: asyncio.Task[None] | None = None
        self._again = self._is_stopped = False
        self._watchers: list[Callable[[], None]] = []
        self.has_sessions = True
        """Whether there are sources that are told; else no head is read."""

    # The coordinator calls these.

    def hold(self, start: Mapping[str, int]) -> None:
        """From now on acknowledgements wait for `advance`; these offsets are released already."""
        self.is_held = True
        self._released = dict(start)
        if self._connector is not None:
            self._begin()
        self._moved()

    def advance(self, ends: Mapping[str, int]) -> None:
        """Every pipeline has completed the segments up to these offsets: acknowledge it. Smaller ones do nothing."""
        for name, end in ends.items():
            self._released[name] = max(end, self._released.get(name, 0))
        self._wake()
        self._moved()

    def let_go(self) -> None:
        """No pipeline holds the connector any more: what is durable is acknowledged."""
        self.is_held = False
        if self._mode is Mode.HELD:
            self._mode = Mode.CATCHING_UP
            self._wake()
        self._moved()

    def _moved(self) -> None:
        for moved in self._watchers:
            moved()

    # Hosts of connectors call these.

    def completed(self, route: int) -> float:
        """Up to where every pipeline has completed the segment, whatever `ack` says: all of it if none reads it."""
        return self._released.get(self._segments[route], 0) if self.is_held else inf

    def watch(self, moved: Callable[[], None]) -> None:
        """Call it whenever `completed` has changed, from now on."""
        self._watchers.append(moved)

    def unwatch(self, moved: Callable[[], None]) -> None:
        self._watchers.remove(moved)

    # The gateway calls these.

    def attach(self, connector: Connector) -> None:
        """The connector has been made, or opened again: what it has stored is durable, and no session is there yet."""
        self._connector = connector
        self._segments = connector.segments
        self._durable = [self._gateway.store.length(name) for name in self._segments]
        self._cursors = list(self._durable)
        self._looked = list(self._durable)
        if self.is_held:
            self._begin()

    def grown(self) -> None:
        """The connector has more segments than before: they are empty."""
        more = [self._gateway.store.length(name) for name in self._segments[len(self._durable) :]]
        for column in (self._durable, self._cursors, self._looked):
            column.extend(more)

    def _begin(self) -> None:
        assert self._connector is not None
        if self._connector.settings.ack is AckMode.DURABLE:
            return
        if self._mode is Mode.AT_ONCE:
            self._cursors = list(self._durable)
        self._mode = Mode.HELD
        self._wake()

    @property
    def waits(self) -> bool:
        """Whether what has become durable is not acknowledged yet."""
        return self._mode is not Mode.AT_ONCE

    def passed(self, route: int) -> float:
        """Up to where the segment is acknowledged."""
        match self._mode:
            case Mode.AT_ONCE:
                return inf
            case Mode.CATCHING_UP:
                return self._cursors[route]
            case Mode.HELD:
                return min(self._cursors[route], self._released.get(self._segments[route], 0))

    def durable(self, route: int, end: Offset) -> None:
        """A record that ends there is durable."""
        self._durable[route] = max(end, self._durable[route])
        if self._mode is Mode.CATCHING_UP or (
            self._mode is Mode.HELD and self._released.get(self._segments[route], 0) > self._cursors[route]
        ):
            self._wake()

    def wait(self, waiter: Waiter) -> None:
        """Call its `release` when segments are released further, until `forget`."""
        self._waiters.add(waiter)

    def forget(self, waiter: Waiter) -> None:
        self._waiters.discard(waiter)

    def stop(self) -> None:
        """Nothing more is acknowledged that has waited."""
        self._is_stopped = True
        if self._task is not None:
            self._task.cancel()

    def status(self) -> CompletionStatus:
        if not self.has_sessions:
            self._look()
        acknowledged = self._durable if self._mode is Mode.AT_ONCE else self._cursors
        waiting = sum(d - min(d, self.passed(r)) for r, d in enumerate(self._durable))
        return CompletionStatus(
            self.waits and self.is_held,
            dict(sorted(self._released.items())) if self.is_held else {},
            dict(zip(self._segments, acknowledged, strict=True)),
            int(waiting),
        )

    def _look(self) -> None:
        """Where nobody tells of what has become durable, and nobody is to be told."""
        store = self._gateway.store
        self._durable = [store.info(name).length if store.exists(name) else 0 for name in self._segments]
        self._cursors = [self._target(route) for route in range(len(self._segments))]

    # Acknowledging.

    def _wake(self) -> None:
        self._again = True
        is_wanted = self._mode is not Mode.AT_ONCE and self.has_sessions
        if is_wanted and self._task is None and not self._is_stopped:
            self._task = self._gateway.loop.create_task(self._work())
            self._task.add_done_callback(self._worked)

    def _worked(self, task: "asyncio.Task[None]") -> None:
        self._task = None
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            self._gateway.loop.call_exception_handler({"message": f"acks of {self.name!r}", "exception": error})
        elif self._again:  # asked for while it was about to end
            self._wake()

    async def _work(self) -> None:
        """Until all that is released is acknowledged. Each step is short, and leaves the loop its turn."""
        reader = HeadReader(self._gateway, self.name)
        routes = range(len(self._segments))
        while self._again:
            self._again = False
            while (route := self._behind()) is not None:
                await self._step(reader, route)
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

    async def _step(self, reader: HeadReader, route: int) -> None:
        """Acknowledge what the next heads of this segment tell of."""
        name, target = self._segments[route], self._target(route)
        try:
            read = await reader.read(name, self._cursors[route], target)
        except SegmentTruncated as error:
            self._pass_over(route, min(error.start, target))
            return
        except (PenstockError, OSError) as error:
            self._pass_over(route, target, error)
            return
        if read.end is None:
            self._looked[route] = target
            return
        await reader.tell(read.fold)
        self._cursors[route] = max(read.end, self._cursors[route])
        for damage in read.damage:
            self._pass_over(route, read.end, damage)

    def _pass_over(self, route: int, end: int, error: Exception | None = None) -> None:
        """Heads up to `end` are gone: nobody can say any more which messages they told of. What is stored now will be
        acknowledged when all of it is released, so that no source waits for ever.
        """
        name = self._segments[route]
        if isinstance(error, Damaged):
            self._gateway.store.note_damage(name, error)
        self._cursors[route] = max(end, self._cursors[route])
        store = self._gateway.store
        for streams in self._gateway.streams_of(self.name):
            streams.resync(route, store.length(name) if store.exists(name) else Offset(end))

    async def _release(self, routes: Iterable[int]) -> None:
        for route in routes:
            for waiter in list(self._waiters):
                await self._release_to(waiter, route)

    async def _release_to(self, waiter: Waiter, route: int) -> None:
        while True:
            if waiter.release(route, self.passed(route)):
                return
            await asyncio.sleep(0)
