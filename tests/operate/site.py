"""A worker in this process, a program that sends numbers, and pipelines that copy them: one for each kind of sink."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from penstock.client import Message, Source
from penstock.client.coordinator import CoordinatorClient, SinkStatus
from penstock.client.segments import SegmentClient
from penstock.coordinator.settings import CoordinatorSettings
from penstock.core.retry import RetryPolicy
from penstock.core.sizes import KIB
from penstock.delivery import backoff
from penstock.store.files import Files
from penstock.store.settings import StoreSettings
from tests.coordinator.driver import Checkpoint
from tests.operate.driver import SOURCE, CopyDriver
from tests.support.http import ask
from tests.support.running_worker import RunningWorker, running_worker
from tests.support.waiting import SECONDS_MAX, until

STREAM = "s"
STORE = StoreSettings(chapter_bytes=64 * KIB, reserve_bytes=128 * KIB)

OFTEN = CoordinatorSettings(retention_seconds=0.02, sweep_seconds=0.02, truncate_seconds=0.0, watermark_seconds=0.0)
"""What every pipeline has completed is removed at once."""

RETAINS = replace(OFTEN, truncate_seconds=100_000.0)
"""Nothing is removed for the length of a run."""


def payload(number: int, padding: int = 0) -> bytes:
    """`padding` makes it so many characters longer."""
    return b'{"value": "%s%d"}' % (b" " * padding, number)


class Sender:
    """A program that has the numbers up to `upto`, which may grow, and sends those that the worker lacks."""

    def __init__(self, port: int, upto: int, padding: int = 0) -> None:
        self.acknowledged = 0
        self.upto = upto
        self._padding = padding
        self._failure: BaseException | None = None
        self._source = Source(
            f"127.0.0.1:{port}", source=SOURCE, on_ack=self._on_ack, poll_seconds=0.02, retry_seconds=SECONDS_MAX
        )
        self._source.stream(STREAM, self._messages)
        self._thread = threading.Thread(target=self._run, name="sender", daemon=True)
        self._thread.start()

    def _messages(self, after: int | None) -> Iterator[Message | None]:
        """The stream stays open."""
        number = (after or 0) + 1
        while True:
            if number <= self.upto:
                yield Message(number, payload(number, self._padding))
                number += 1
            else:
                yield None

    def _on_ack(self, _: str, number: int) -> None:
        self.acknowledged = number

    def _run(self) -> None:
        try:
            self._source.run()
        except BaseException as error:
            self._failure = error

    @property
    def is_done(self) -> bool:
        if self._failure is not None:
            raise self._failure
        return self.acknowledged >= self.upto

    def close(self) -> None:
        self._source.stop()
        self._thread.join(SECONDS_MAX)
        assert not self._thread.is_alive(), "the program does not end"


class Site:
    """The worker runs, and its pipelines have not started."""

    def __init__(
        self,
        worker: RunningWorker,
        client: CoordinatorClient,
        segments: SegmentClient,
        sinks: Mapping[str, str],
        checkpoints: Mapping[str, Checkpoint],
    ) -> None:
        self.worker = worker
        self.client = client
        self.drivers = {name: CopyDriver(client, segments, name, checkpoints[name], url) for name, url in sinks.items()}

    @contextmanager
    def sending(self, upto: int, padding: int = 0) -> Iterator[Sender]:
        sender = Sender(self.worker.ports["connector"], upto, padding)
        try:
            yield sender
        finally:
            sender.close()

    def run_until_complete(self, sender: Sender) -> None:
        """Every number is acknowledged, and every sink has committed everything."""
        until(lambda: self._step() and sender.is_done and self.is_delivered(), self.describe)

    def _step(self) -> bool:
        for driver in self.drivers.values():
            while driver.epoch():
                pass
        return True

    def is_delivered(self) -> bool:
        return all(one.lacking == 0 and one.state == "READY" for one in self.client.sinks())

    def sink(self, pipeline: str) -> SinkStatus:
        return next(one for one in self.client.sinks() if one.pipeline == pipeline)

    def health(self) -> tuple[int, str]:
        code, body = ask(self.worker.ports["http"], "GET", "/health")
        return code, body.decode()

    def describe(self) -> str:
        return f"{self.client.sinks()}\n{self.client.pipelines()}\n{self.health()}"


@contextmanager
def quick_retries() -> Iterator[None]:
    """Delivery tries again soon, so that a campaign does not wait."""
    before, backoff.RETRIES = backoff.RETRIES, RetryPolicy(0.01, 0.05)
    try:
        yield
    finally:
        backoff.RETRIES = before


@contextmanager
def running_site(
    data: Path,
    sinks: Mapping[str, str],
    checkpoints: Mapping[str, Checkpoint],
    coordinator: CoordinatorSettings = RETAINS,
    files: Files | None = None,
    store: StoreSettings = STORE,
    retry_seconds: float = 5.0,
) -> Iterator[Site]:
    with ExitStack() as stack:
        stack.enter_context(quick_retries())
        worker = stack.enter_context(running_worker(data, store=store, coordinator=coordinator, files=files))
        client = stack.enter_context(CoordinatorClient(f"127.0.0.1:{worker.ports['http']}", retry_seconds))
        segments = stack.enter_context(SegmentClient(worker.address, retry_seconds=retry_seconds))
        yield Site(worker, client, segments, sinks, checkpoints)
