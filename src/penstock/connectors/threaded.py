"""Blocking sinks, each in its own thread: databases and files must be called from one thread only."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import NamedTuple, ParamSpec, Protocol, TypeVar

from penstock.connectors.sink_api import Block, CheckReport, Epoch, Transaction, Vote, accept_any

# Blocking calls, one after the other, in a thread that does not delay the end of the process.

_P = ParamSpec("_P")
_T = TypeVar("_T")


class OneThread:
    """The first call starts the thread. It is a daemon: the process would wait for an executor's threads, and a call of
    third-party code may never return.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: SimpleQueue[Callable[[], None] | None] | None = None

    async def call(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Make a call. If it is cancelled after it has started, it still finishes before the next one."""
        future: Future[_T] = Future()

        def run() -> None:
            if future.set_running_or_notify_cancel():
                _fulfil(future, lambda: function(*args, **kwargs))

        self._started().put(run)
        return await asyncio.wrap_future(future)

    async def call_surely(self, function: Callable[[], None]) -> None:
        """Make a call after all earlier ones, even if this is cancelled."""
        future: Future[None] = Future()
        future.set_running_or_notify_cancel()
        self._started().put(lambda: _fulfil(future, function))
        await asyncio.wrap_future(future)

    def stop(self, last: Callable[[], None]) -> None:
        """Returns immediately. `last` is called when all calls are finished, and the thread ends; a new call starts
        another thread. Nothing happens if there was no call.
        """
        if self._calls is not None:
            self._calls.put(last)
            self._calls.put(None)
            self._calls = None

    def __del__(self) -> None:
        """No more calls are possible: end the thread."""
        if self._calls is not None:
            self._calls.put(None)

    def _started(self) -> SimpleQueue[Callable[[], None] | None]:
        if self._calls is None:
            self._calls = SimpleQueue()
            threading.Thread(target=_run, args=(self._calls,), name=f"sink {self._name}", daemon=True).start()
        return self._calls


def _fulfil(future: "Future[_T]", call: Callable[[], _T]) -> None:
    try:
        future.set_result(call())
    except BaseException as error:
        future.set_exception(error)


def _run(calls: SimpleQueue[Callable[[], None] | None]) -> None:
    while (call := calls.get()) is not None:
        call()


class BlockingSink(Protocol):
    """Like `VotingSink`, but blocking; one call at a time. Each call raises SinkLost when it cannot work now; `close`
    and `open` follow.
    """

    def open(self, decided: bytes, check: CheckReport = accept_any) -> None:
        """Call `check`, then settle what is in doubt: commit it if it is the transaction `decided`, abort any other."""

    def write(self, block: Block) -> None:
        """The next messages of the transaction."""

    def prepare(self, transaction: Transaction) -> Vote:
        """Vote; everything was written. Yes: it is durable, and `commit` will succeed. After a no, nothing of it
        remains.
        """

    def commit(self, transaction: Transaction) -> None:
        """Commit after a yes vote. Idempotent."""

    def abort(self) -> None:
        """Void everything that is not committed."""

    def close(self) -> None:
        """Close, in any state, without raising."""


class Threaded:
    """A blocking sink as a VotingSink. Its thread finishes a cancelled call before the next one."""

    def __init__(self, sink: BlockingSink, name: str) -> None:
        self._sink = sink
        self._thread = OneThread(name)
        self.is_open = False

    async def open(self, decided: bytes, check: CheckReport = accept_any) -> None:
        await self._thread.call(self._sink.open, decided, check)
        self.is_open = True

    async def prepare(self, epoch: Epoch) -> Vote:
        async for block in epoch.blocks():
            await self._thread.call(self._sink.write, block)
        await epoch.journalled()
        return await self._thread.call(self._sink.prepare, epoch.transaction)

    async def commit(self, transaction: Transaction) -> None:
        await self._thread.call(self._sink.commit, transaction)

    async def abort(self, transaction_id: bytes) -> None:  # noqa: ARG002
        await self._thread.call(self._sink.abort)

    async def end(self) -> None:
        """Do nothing: blocking sinks need no notification."""

    async def close(self) -> None:
        self.is_open = False
        await self._thread.call_surely(self._sink.close)


# Sinks that do not vote accept an epoch block by block.


class Taker(Protocol):
    """Takes one block at a time, in one thread, and may block."""

    def take(self, name: str, block: Block) -> None:
        """`name` is `pipeline:incarnation:epoch/number`. Raises SinkLost to receive the block again."""

    def interrupt(self) -> None:
        """Called from another thread: a waiting `take` should end soon."""

    def close(self) -> None:
        """After the last `take`, in its thread. Another `take` may follow."""


class _Span(NamedTuple):
    first_id: int
    end_id: int
    events: int


Take = Callable[[str, Block], Awaitable[None]]
"""Takes a block under its name, `pipeline:incarnation:epoch/number`, which is the same when it is delivered again."""


class Blocks:
    """An epoch block by block, at least once: a block that was accepted is not delivered again when a later one of its
    epoch fails. After a restart of the worker all blocks of the epoch are.
    """

    def __init__(self) -> None:
        self._epoch = ""
        self._taken: list[_Span] = []

    async def deliver(self, epoch: Epoch, take: Take) -> None:
        if epoch.name != self._epoch:
            self._epoch, self._taken = epoch.name, []
        number = 0
        async for block in epoch.blocks():
            span = _Span(block.first_id, block.end_id, len(block))
            if self._taken[number : number + 1] != [span]:
                del self._taken[number:]
                await take(f"{epoch.name}/{number}", block)
                self._taken.append(span)
            number += 1


class BlockByBlock:
    """A Taker as a NonVotingSink."""

    def __init__(self, taker: Taker, name: str) -> None:
        self._taker = taker
        self._thread = OneThread(name)
        self._blocks = Blocks()

    async def deliver(self, epoch: Epoch) -> None:
        await self._blocks.deliver(epoch, self._take)

    async def _take(self, name: str, block: Block) -> None:
        await self._thread.call(self._taker.take, name, block)

    async def close(self) -> None:
        """Returns immediately, even while a block is being taken: that call is interrupted, or abandoned."""
        self._taker.interrupt()
        self._thread.stop(self._taker.close)
