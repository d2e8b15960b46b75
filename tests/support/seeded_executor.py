"""Threads for simulations: what they do happens in this thread, at moments and in an order that the seed decides."""

from collections.abc import Callable
from concurrent.futures import Executor, Future
from random import Random
from typing import Any


class _Task(Future[Any]):
    def __init__(self, executor: "SeededExecutor", run: Callable[[], object]) -> None:
        super().__init__()
        self._executor = executor
        self._run_it = run

    def perform(self) -> None:
        try:
            self.set_result(self._run_it())
        except BaseException as error:
            self.set_exception(error)

    def result(self, timeout: float | None = None) -> Any:
        self._executor.run_until(self)
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._executor.run_until(self)
        return super().exception(timeout)


class SeededExecutor(Executor):
    def __init__(self, random: Random) -> None:
        self._random = random
        self._waiting: list[_Task] = []
        self.done = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        task = _Task(self, lambda: fn(*args, **kwargs))
        self._waiting.append(task)
        while self._waiting and self._random.random() < 0.3:
            self._run_any()
        return task

    def run_until(self, task: Future[Any]) -> None:
        while not task.done():
            self._run_any()

    def _run_any(self) -> None:
        task = self._waiting.pop(self._random.randrange(len(self._waiting)))
        self.done += 1
        task.perform()
