"""Watches over the background tasks of a process: none of them ends unnoticed.

    supervisor = Supervisor(end_the_process)
    sweeping = supervisor.every("sweep", 1.0, sweep)        # a function, called again and again
    serving = supervisor.run("http", serve, OnDeath.END)    # a coroutine function that may return when it is done
    await sweeping.stop()

A task dies if it raises, or if anyone other than its owner cancels it. Then it is restarted after a back-off, or the
process ends, as the task's owner has declared. Each death is logged and counted, and is a problem until the task has
run well for a while.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum

from penstock.core.errors import PenstockError, StoreFailed
from penstock.core.retry import RetryPolicy

log = logging.getLogger(__name__)

RESTARTS = RetryPolicy(first_seconds=0.5, max_seconds=30.0)

STEADY_SECONDS = 10.0
"""A task that has run for so long since its last death is well again."""


class OnDeath(Enum):
    RESTART = "restart"
    """For work that can be repeated: what it missed is done later."""
    END = "end"
    """For work that the process is useless without."""


@dataclass(frozen=True, slots=True)
class TaskState:
    name: str
    deaths: int
    """Since the process started."""
    is_failing: bool


def _nothing() -> None:
    pass


class Supervised:
    """One background task. Only a Supervisor creates it."""

    def __init__(
        self,
        supervisor: "Supervisor",
        name: str,
        work: Callable[[], Awaitable[None]],
        on_death: OnDeath,
        steady_seconds: float,
        ended: Callable[[], None],
    ) -> None:
        self.name = name
        self.reason = ""
        self._supervisor = supervisor
        self._work = work
        self._on_death = on_death
        self._steady_seconds = steady_seconds
        self._ended = ended
        self._failures = 0
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._is_stopped = False
        self.finished = asyncio.Event()
        """Set when it has ended for good: it has returned, or was stopped."""
        self._start()

    @property
    def is_failing(self) -> bool:
        """Whether it is dead now, or has died a short while ago."""
        return self._failures > 0 and (self._timer is not None or not self._is_steady())

    @property
    def is_waiting(self) -> bool:
        """Whether it has died and is not restarted yet."""
        return self._timer is not None

    @property
    def has_returned(self) -> bool:
        """Whether its work is done. `finished` is set a moment later, and also if it was stopped."""
        task = self._task
        return task.done() and not task.cancelled() and task.exception() is None

    def cancel(self) -> None:
        """End it for good, soon."""
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._finish()
        else:
            self._task.cancel()

    async def stop(self) -> None:
        """End it for good; returns when it has ended."""
        if not self.finished.is_set():
            self.cancel()
            await self.finished.wait()

    def _start(self) -> None:
        self._timer = None
        self._started_at = self._loop.time()
        self._task = self._loop.create_task(self._run(), name=self.name)
        self._task.add_done_callback(self._done)

    async def _run(self) -> None:
        await self._work()

    def _is_steady(self) -> bool:
        return self._loop.time() - self._started_at >= self._steady_seconds

    def _done(self, task: "asyncio.Task[None]") -> None:
        error = None if task.cancelled() else task.exception()
        over = not task.cancelled() and error is None
        if over or self._is_stopped:
            self._finish()
        elif isinstance(error, StoreFailed):  # the store itself ends the process
            self._forget()
        else:
            self._died(error)

    def _died(self, error: BaseException | None) -> None:
        if self._is_steady():
            self._failures = 0
        self._failures += 1
        self._supervisor.deaths[self.name] += 1
        self.reason = "it was cancelled" if error is None else str(error) or type(error).__name__
        if self._on_death is OnDeath.END:
            self._give_up(error)
        else:
            self._restart_later(error)

    def _restart_later(self, error: BaseException | None) -> None:
        pause = RESTARTS.pause(self._failures)
        _log(error, "background task %r failed: %s; it is restarted in %.1f s", self.name, self.reason, pause)
        self._timer = self._loop.call_later(pause, self._start)

    def _give_up(self, error: BaseException | None) -> None:
        _log(error, "background task %r failed: %s; the worker cannot run without it, and ends", self.name, self.reason)
        self._supervisor.end(self)
        self._finish()

    def _finish(self) -> None:
        self._forget()
        self._ended()

    def _forget(self) -> None:
        self._timer = None
        self.finished.set()
        self._supervisor.forget(self)


def _log(error: BaseException | None, text: str, *values: object) -> None:
    """With a traceback, unless the error is one that explains itself."""
    explained = error is None or isinstance(error, PenstockError | OSError)
    log.error(text, *values, exc_info=None if explained else error)


class Supervisor:
    """The background tasks of one process, in one event loop."""

    def __init__(self, end_process: Callable[[], None] = _nothing) -> None:
        """`end_process` is called when a task dies that the process cannot run without."""
        self._end_process = end_process
        self._tasks: dict[Supervised, None] = {}
        """Several may have the same name: one that failed and waits is still known when the next one starts."""
        self.deaths: Counter[str] = Counter()
        """By the task's name, also of tasks that have ended for good."""
        self.fatal = ""
        """Why the process has to end."""

    def run(
        self,
        name: str,
        work: Callable[[], Awaitable[None]],
        on_death: OnDeath = OnDeath.RESTART,
        *,
        ended: Callable[[], None] = _nothing,
    ) -> Supervised:
        """Start it. It may return when it is done; `ended` is called when it has ended for good."""
        return self._add(Supervised(self, name, work, on_death, STEADY_SECONDS, ended))

    def every(self, name: str, seconds: float, work: Callable[[], object]) -> Supervised:
        """Call `work` again and again, with pauses of so many seconds."""

        async def repeat() -> None:
            while True:
                await asyncio.sleep(seconds)
                work()

        return self._add(Supervised(self, name, repeat, OnDeath.RESTART, STEADY_SECONDS + seconds, _nothing))

    def _add(self, task: Supervised) -> Supervised:
        self._tasks[task] = None
        return task

    async def stop(self) -> None:
        """End all that still run; returns when they have ended."""
        for task in list(self._tasks):
            await task.stop()

    def forget(self, task: Supervised) -> None:
        self._tasks.pop(task, None)

    def end(self, task: Supervised) -> None:
        self.fatal = f"background task {task.name!r} failed: {task.reason}"
        self._end_process()

    def states(self) -> list[TaskState]:
        """Of all tasks that run, or have died."""
        failing = {one.name for one in self._failing()}
        names = {*(one.name for one in self._tasks), *self.deaths}
        return [TaskState(name, self.deaths[name], name in failing) for name in sorted(names)]

    def problems(self) -> list[str]:
        problems = [self.fatal] if self.fatal else []
        times = {one: _times(self.deaths[one.name]) for one in self._failing()}
        return problems + [f"background task {one.name!r} has failed {n}: {one.reason}" for one, n in times.items()]

    def _failing(self) -> list[Supervised]:
        return [one for one in self._tasks if one.is_failing]


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
