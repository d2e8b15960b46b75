"""Pumps move messages from an iterator into a supply: a task for an asynchronous one, a thread for any other, which may
wait for as long as it likes without holding up the loop.
"""

import asyncio
import threading
from collections.abc import AsyncIterable, Iterator
from contextlib import suppress

from penstock.client.source.iterator_feed import close_iterator
from penstock.client.source.message import Given, Intake
from penstock.client.source.supply import Supply


async def pump_async(supply: Supply, given: AsyncIterable[Given], poll_seconds: float) -> None:
    """Until the iterator ends, the supply is closed, or the task is cancelled."""
    room = asyncio.Event()
    supply.on_room = room.set
    iterator = aiter(given)
    try:
        await _pump_all(supply, iterator, poll_seconds, room)
        supply.complete()
    except Exception as error:
        supply.complete(error)
    finally:
        close = getattr(iterator, "aclose", None)
        if close is not None:
            await close()


async def _pump_all(supply: Supply, given: AsyncIterable[Given], poll_seconds: float, room: asyncio.Event) -> None:
    intake = Intake(supply.stream.name, supply.stream.stored)
    async for item in given:
        entry = None if item is None else intake.take(item)
        if entry is not None:
            supply.put(entry)
        elif item is None or intake.skipped % _SKIPS_MAX == 0:
            await asyncio.sleep(0 if item else poll_seconds)
        while not supply.has_room and not supply.is_closed:
            room.clear()
            await room.wait()


_SKIPS_MAX = 256
"""Messages skipped before the loop has its turn: an iterator that never waits would keep it."""


class PumpThread:
    """The thread of one stream, for as long as the source runs: never two iterators of a stream at the same time. One
    that waits for ever keeps its thread, which does not keep the process.
    """

    def __init__(self, stream_name: str, poll_seconds: float) -> None:
        self._poll_seconds = poll_seconds
        self._changed = threading.Condition()
        self._next: Supply | None = None
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name=f"source stream {stream_name}", daemon=True)
        self._thread.start()

    def fill(self, supply: Supply) -> None:
        """Fill this supply, once the iterator of the last one, which is closed, has let go."""
        supply.on_room = self._notify
        with self._changed:
            self._next = supply
            self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify()

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify()

    def _run(self) -> None:
        while (supply := self._wait_for_supply()) is not None:
            try:
                self._pump(supply)
            except BaseException as error:
                supply.complete(error)

    def _wait_for_supply(self) -> Supply | None:
        with self._changed:
            self._changed.wait_for(lambda: self._next is not None or self._is_closed)
            supply, self._next = self._next, None
            return None if self._is_closed else supply

    def _pump(self, supply: Supply) -> None:
        if supply.is_closed:
            return
        iterator = open_plain(supply)
        try:
            if self._pump_all(supply, iterator):
                supply.complete()
        finally:
            close_iterator(iterator)
