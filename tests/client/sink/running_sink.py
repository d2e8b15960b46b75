"""Sinks that run in a thread of the test."""

import asyncio
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from penstock.client import AsyncSink, Sink

SECONDS_MAX = 20.0


class Asynchronous(AsyncSink):
    """The asyncio sink with the other's interface."""

    def run(self, on_ready: Any = None) -> None:  # type: ignore[override]
        asyncio.run(super().run(on_ready))


KINDS: dict[str, Callable[..., Any]] = {"blocking": Sink, "asyncio": Asynchronous}


class RunningSink:
    """`address` is where it listens. `stop` raises what `run` raised."""

    def __init__(self, sink: Any) -> None:
        self._sink = sink
        self._said: queue.Queue[str | BaseException] = queue.Queue()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="sink under test")
        self._thread.start()
        said = self._said.get(timeout=SECONDS_MAX)
        if not isinstance(said, str):
            self._thread.join(SECONDS_MAX)
            raise said
        self.address = said

    def _run(self) -> None:
        try:
            self._sink.run(self._said.put)
        except BaseException as error:
            self._error = error
            self._said.put(error)

    def stop(self) -> None:
        self._sink.stop()
        self.join()

    def join(self) -> None:
        """Wait for an end that comes by itself."""
        self._thread.join(SECONDS_MAX)
        assert not self._thread.is_alive()
        if self._error is not None:
            raise self._error


Serve = Callable[..., Any]
"""`with serve(target, **options) as address`"""


def serve_with(kind: str, state: Any) -> Serve:
    @contextmanager
    def serve(target: Any, **options: Any) -> Iterator[str]:
        running = RunningSink(KINDS[kind]("127.0.0.1:0", target, **{"state": state} | options))
        try:
            yield running.address
        finally:
            running.stop()

    return serve
