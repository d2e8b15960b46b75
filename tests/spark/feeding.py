"""A source whose streams stay open and send what a test wants: all of them count for the watermark."""

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Self

from penstock.client import Message, Source
from penstock.client.coordinator import CoordinatorClient
from penstock.client.source.message import Yielded
from tests.spark.asking import get
from tests.spark.stored_data import in_store
from tests.support.running_worker import RunningWorker
from tests.support.waiting import SECONDS_MAX

POLL_SECONDS = 0.02


class Feed:
    """One connection, in its own thread. `streams` are open from the start. Event times are in milliseconds; ids are
    assigned here.
    """

    def __init__(self, worker: RunningWorker, source: str, streams: Sequence[str]) -> None:
        self._worker = worker
        self._source = source
        self._said: dict[str, list[Message]] = {name: [] for name in streams}
        connector = f"127.0.0.1:{worker.ports['connector']}"
        self._program = Source(connector, source=source, poll_seconds=POLL_SECONDS)
        for name in streams:
            self._program.stream(name, lambda after, name=name: self._messages(name, after))  # type: ignore[misc]
        self._thread = threading.Thread(target=self._program.run, name=f"feed of {source}")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._program.stop()
        self._thread.join(SECONDS_MAX)

    def say(self, stream: str, *events: tuple[int, bytes], key: bytes = b"") -> None:
        """Send pairs of event time and payload. They are stored when it returns, but not necessarily complete."""
        self.say_all({stream: events}, key=key)

    def say_all(self, said: Mapping[str, Sequence[tuple[int, bytes]]], *, key: bytes = b"") -> None:
        """The same for several streams."""
        for stream, events in said.items():
            known = self._said[stream]
            known.extend([Message(len(known) + n, payload, ms, key) for n, (ms, payload) in enumerate(events, 1)])
        deadline = time.monotonic() + SECONDS_MAX
        while not self._is_stored():
            assert time.monotonic() < deadline, "it is not stored in time"
            time.sleep(POLL_SECONDS)

    def finish(self) -> None:
        """Declare the end of the source."""
        with CoordinatorClient(f"127.0.0.1:{self._worker.ports['http']}") as coordinator:
            coordinator.end_source(self._source)

    def _messages(self, stream: str, after: int | None) -> Iterator[Yielded]:
        at = after or 0
        while True:
            said = self._said[stream]
            if at < len(said):
                yield said[at]
                at += 1
            else:
                yield None

    def _is_stored(self) -> bool:
        sources = get(self._worker, "/status")["sources"]
        if sources.get(self._source, {"messages": 0})["messages"] < sum(map(len, self._said.values())):
            return False
        durable: bool = in_store(self._worker, lambda store: store.journal.durable == store.journal.end)
        return durable
