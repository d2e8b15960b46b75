"""Pumps move messages from an iterator into a supply: a task for an asynchronous one, a thread for any other, which may
wait for as long as it likes without holding up the loop.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator

from penstock.client.source.iterator_feed import close_iterator
from penstock.client.source.message import Given, Intake
from penstock.client.source.supply import Supply

SKIPS_MAX = 256
"""Messages skipped before the loop has its turn: an iterator that never waits would keep it."""


async def pump(supply: Supply, iterator: AsyncIterator[Given], poll_seconds: float) -> None:
    """Until the iterator ends, or the task is cancelled."""
    try:
        await _pump_all(supply, iterator, poll_seconds)
        supply.complete()
    except Exception as error:
        supply.complete(error)
    finally:
        close = getattr(iterator, "aclose", None)
        if close is not None:
            await close()


async def _pump_all(supply: Supply, iterator: AsyncIterator[Given], poll_seconds: float) -> None:
    room = asyncio.Event()
    supply.on_room = room.set
    intake = Intake(supply.stream.name, supply.stream.stored)
    async for given in iterator:
        if given is None:
            await asyncio.sleep(poll_seconds)
        elif (entry := intake.take(given)) is not None:
            supply.put(entry)
        elif intake.skipped % SKIPS_MAX == 0:
            await asyncio.sleep(0)
        while not supply.has_room:
            room.clear()
            await room.wait()


class PumpThread:
    """The thread of one stream, for as long as the source runs: never two iterators of a stream at the same time. One
    that waits for ever keeps its thread, which does not keep the process.
    """

    def __init__(self, stream_name: str, poll_seconds: float) -> None:
        self._poll_seconds = poll_seconds
        self._changed = threading.Condition()
        self._next: tuple[Supply, Iterator[Given]] | None = None
        self._is_closed = False
        thread = threading.Thread(target=self._run, name=f"source stream {stream_name}", daemon=True)
        thread.start()

    def fill(self, supply: Supply, iterator: Iterator[Given]) -> None:
        """Fill this supply, once the iterator of the last one, which is closed, has let go."""
        supply.on_room = self._notify
        with self._changed:
            self._next = supply, iterator
            self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify()

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify()

    def _run(self) -> None:
        while (job := self._wait_for_job()) is not None:
            supply, iterator = job
            try:
                try:
                    if not supply.is_closed:
                        self._pump(supply, iterator)
                finally:
                    close_iterator(iterator)
                supply.complete()
            except BaseException as error:
                supply.complete(error)

    def _wait_for_job(self) -> tuple[Supply, Iterator[Given]] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._next is not None or self._is_closed)
            job, self._next = self._next, None
            return None if self._is_closed else job

    def _pump(self, supply: Supply, iterator: Iterator[Given]) -> None:
        """Until the iterator ends, or the supply is closed."""
        intake = Intake(supply.stream.name, supply.stream.stored)
        for given in iterator:
            if given is None:
                self._wait(lambda: supply.is_closed, self._poll_seconds)
            elif (entry := intake.take(given)) is not None:
                supply.put(entry)
            if not supply.has_room:
                self._wait(lambda: supply.has_room or supply.is_closed, None)
            if supply.is_closed:
                return

    def _wait(self, done: Callable[[], bool], seconds: float | None) -> None:
        with self._changed:
            self._changed.wait_for(done, seconds)
