"""A worker that sleeps until another one has taken over (a zombie), with a source and a sink connected to it."""

import time
from contextlib import closing
from pathlib import Path

from penstock.client.coordinator import CoordinatorClient, SinkSpec
from penstock.client.segments import SegmentClient
from tests.delivery.matrix.journal import decisions
from tests.delivery.matrix.output import put_out
from tests.delivery.matrix.scripted_sink import ScriptedSinkProcess
from tests.support.bucket_worker import BucketWorker
from tests.support.http import get
from tests.support.open_stream import OpenStream, open_stream
from tests.support.waiting import SECONDS_MAX, until

PIPELINE = "p"
EPOCHS = [[b"%d of epoch %d" % (number, epoch) for number in range(5)] for epoch in range(3)]
MESSAGES = 50
"""Sent to the sleeping worker: they are in its kernel when it wakes up."""


def worker_id(worker: BucketWorker) -> str:
    """By which the bucket knows it."""
    name: str = get(worker.http_port, "/status")["store"]["bucket"]["worker"]
    return name


def wake_after_take_over(folder: Path, url: str, asleep_seconds: float = 0.0) -> None:
    """The worker falls asleep when a source is connected, and a sink is asked for its vote on an epoch. While it
    sleeps, messages and the vote arrive in its kernel, and another worker takes over. When it wakes up, it must neither
    store nor decide nor acknowledge anything.
    """
    second = BucketWorker(folder / "second", url)
    with BucketWorker(folder / "first", url) as first, ScriptedSinkProcess(folder / "sink") as sink, closing(second):
        with open_stream(first.connector_port, "letters", "one") as source:
            source.send(1, 1000)
            until(lambda: source.acked() == 1)
            _ask_for_vote(first, sink)
            first.pause()
            for number in range(2, MESSAGES + 2):
                source.send(number, 1000)
            sink.release()
            began = time.monotonic()
            second.start()
            until(lambda: len(sink.committed) == 2)
            time.sleep(max(0.0, asleep_seconds - (time.monotonic() - began)))
            first.resume()
            _check_end(first, second, source)
        _check_successor(second, sink)


def _ask_for_vote(worker: BucketWorker, sink: ScriptedSinkProcess) -> None:
    sink.start()
    sink.hold(f"{PIPELINE}:1:")
    with CoordinatorClient(f"127.0.0.1:{worker.http_port}", SECONDS_MAX) as coordinator:
        coordinator.bind(PIPELINE, {"s": SinkSpec("out", f"connector://{sink.address}")})
        _put_out(worker, coordinator, 0, 1)
    until(lambda: any(line.startswith(f"asked {PIPELINE}:1:") for line in sink.history), lambda: sink.history)


def _put_out(worker: BucketWorker, coordinator: CoordinatorClient, *epochs: int) -> None:
    with SegmentClient(worker.address, retry_seconds=SECONDS_MAX) as segments:
        for epoch in epochs:
            put_out(coordinator, segments, PIPELINE, epoch, EPOCHS[epoch])


def _check_end(first: BucketWorker, second: BucketWorker, source: OpenStream) -> None:
    winner = worker_id(second)
    assert first.ended() == 1
    assert f"worker {winner} has taken over" in first.said
    assert source.acked_until_closed() == 1, "what was sent to the zombie is not acknowledged"


def _check_successor(second: BucketWorker, sink: ScriptedSinkProcess) -> None:
    """It goes on from where the zombie fell asleep."""
    with (
        SegmentClient(second.address) as segments,
        CoordinatorClient(f"127.0.0.1:{second.http_port}", SECONDS_MAX) as coordinator,
        open_stream(second.connector_port, "letters", "one") as source,
    ):
        assert source.point_of_reference == 1, "what was sent to the zombie is not stored"
        source.send(2, 1000)
        until(lambda: source.acked() == 2)
        _put_out(second, coordinator, 2)
        until(lambda: len(sink.committed) >= len(EPOCHS) and not coordinator.epochs(PIPELINE))
        assert [each.epoch for each in sink.committed] == [0, 1, 2], "each epoch once"
        assert [each.id for each in sink.committed] == decisions(segments, PIPELINE)
