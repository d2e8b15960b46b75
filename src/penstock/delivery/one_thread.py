"""Calls that block, one after the other in a thread that holds up nobody: not even the end of the process."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")


class OneThread:
    """The thread is made for the first call. It is a daemon: an executor's threads are waited for when the process
    ends, and a call of somebody else's code may never return.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: SimpleQueue[Callable[[], None] | None] | None = None

    async def call(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """When it is cancelled, the call is still finished before the next one, if it has begun."""
        future: Future[_T] = Future()

        def run() -> None:
            if future.set_running_or_notify_cancel():
                _fulfil(future, lambda: function(*args, **kwargs))

        self._started().put(run)
        return await asyncio.wrap_future(future)

    async def call_surely(self, function: Callable[[], None]) -> None:
        """It is called, when those before it are finished, also if this is cancelled."""
        future: Future[None] = Future()
        future.set_running_or_notify_cancel()
        self._started().put(lambda: _fulfil(future, function))
        await asyncio.wrap_future(future)

    def stop(self, last: Callable[[], None]) -> None:
        """Returns at once. `last` is called when all calls are finished, and the thread ends; a new call makes another
        thread. Nothing happens if there was no call.
        """
        if self._calls is not None:
            self._calls.put(last)
            self._calls.put(None)
            self._calls = None

    def __del__(self) -> None:
        """Nobody will call any more: the thread ends."""
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
