"""A source declares how far its streams are, and that it has ended."""

import asyncio
import inspect
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.client import Message
from penstock.client.coordinator import CoordinatorClient, InputOffset, InputSpec
from penstock.core.errors import RequestError
from penstock.protocol.stored.event import END_OF_TIME
from tests.client.source.test_real_worker import connector
from tests.client.source.test_streams import MakeSource
from tests.support.running_worker import RunningWorker
from tests.support.waiting import until


def http(worker: RunningWorker) -> str:
    return f"127.0.0.1:{worker.ports['http']}"


def done(result: Any) -> None:
    """What the asyncio source gives is awaited."""
    if inspect.isawaitable(result):
        asyncio.run(_awaited(result))


async def _awaited(result: Any) -> None:
    await result


class Reader:
    """A pipeline that reads the source from its beginning."""

    def __init__(self, client: CoordinatorClient) -> None:
        self._client = client
        self._run = client.start("p", {"in": InputSpec(["numbers"])}, [])
        self._at = client.initial("p", self._run.generation, "in")

    def watermark(self) -> int | None:
        """After all that is there."""
        while (found := self._cut()) != self._at:
            self._at = found
        return self._at.watermark

    def _cut(self) -> InputOffset:
        return self._client.cut("p", self._run.generation, "in", self._at).offset


def test_a_source_that_has_finished_is_reported_to_its_readers(make_source: MakeSource, worker: RunningWorker) -> None:
    source = make_source(connector(worker), source="numbers", http=http(worker))
    source.stream("s", lambda _: [Message(1, b"one", 7)])
    source.run()
    with CoordinatorClient(http(worker), 5) as client:
        reader = Reader(client)
        assert reader.watermark() == 7_000
        done(source.finish())
        assert reader.watermark() == END_OF_TIME
        client.drop("p")


def test_a_source_declares_watermarks_behind_its_messages(make_source: MakeSource, worker: RunningWorker) -> None:
    source = make_source(connector(worker), source="numbers", http=http(worker))
    ends = threading.Event()

    def factory(_: int | None) -> Iterator[Message | None]:
        yield Message(1, b"one", 7)
        while not ends.is_set():
            yield None

    stream = source.stream("s", factory)
    running = threading.Thread(target=source.run)
    running.start()
    try:
        until(lambda: stream.sent > 0)
        done(source.declare_watermark(50_000, "s", after=1))
        with CoordinatorClient(http(worker), 5) as client:
            reader = Reader(client)
            assert reader.watermark() == 50_000
            done(source.declare_watermark(60_000))
            assert reader.watermark() == 60_000
            client.drop("p")
        with pytest.raises(RequestError, match="stream 'other' of source 'numbers' not found"):
            done(source.declare_watermark(60_000, "other"))
    finally:
        ends.set()
        running.join()
