"""Two sink programs on one pipeline, one of which votes no every third time: they have the same epochs."""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from penstock.client.coordinator import CoordinatorClient, SinkSpec
from penstock.client.segments import SegmentClient
from tests.delivery.matrix.journal import attempts, decisions
from tests.delivery.matrix.output import put_out
from tests.delivery.matrix.scripted_sink import ScriptedSinkProcess
from tests.support.waiting import SECONDS_MAX
from tests.support.worker_process import WorkerProcess

pytestmark = pytest.mark.process

EPOCHS = 30
BURST = 6
"""Epochs that are output before all of them are awaited."""


def payloads(epoch: int) -> list[bytes]:
    return [b"%d of epoch %d" % (number, epoch) for number in range(epoch % 4 + 1)]


class Pair:
    """Both sinks: at any time, one is at most one epoch ahead, the one that was decided last."""

    def __init__(self, willing: ScriptedSinkProcess, moody: ScriptedSinkProcess) -> None:
        self.willing, self.moody = willing, moody
        self.looks = 0

    def look(self) -> None:
        """The first is read before and after the second, since it continues in the meantime."""
        before = self._ids(self.willing)
        other = self._ids(self.moody)
        after = self._ids(self.willing)
        shared = min(len(after), len(other))
        assert after[:shared] == other[:shared]
        assert len(before) - 1 <= len(other) <= len(after) + 1
        self.looks += 1

    def look_until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + SECONDS_MAX
        while not condition():
            self.look()
            assert time.monotonic() < deadline, (self.willing.history[-10:], self.moody.history[-10:])
            time.sleep(0.002)

    def has(self, epochs: int) -> bool:
        return len(self.willing.committed) == len(self.moody.committed) == epochs

    @staticmethod
    def _ids(sink: ScriptedSinkProcess) -> list[str]:
        return [each.id for each in sink.committed]


def held_when_asked(sink: ScriptedSinkProcess) -> dict[str, list[str]]:
    """For every transaction that the sink voted on: those that it had committed by then."""
    held: list[str] = []
    found: dict[str, list[str]] = {}
    for line in sink.history:
        what, _, txn = line.partition(" ")
        if what == "asked":
            found[txn] = [*held]
        elif what == "commit":
            held.append(txn)
    return found


def test_two_sinks_have_the_same_epochs_at_every_round_even_if_one_votes_no_every_third_time(
    tmp_path: Path,
) -> None:
    with (
        ScriptedSinkProcess(tmp_path / "willing") as willing,
        ScriptedSinkProcess(tmp_path / "moody", "yyn" * EPOCHS) as moody,
        WorkerProcess(tmp_path / "data") as worker,
        CoordinatorClient(f"127.0.0.1:{worker.http_port}") as coordinator,
        SegmentClient(worker.address) as segments,
    ):
        pair = Pair(willing, moody)
        for sink in (willing, moody):
            sink.start()
            coordinator.bind("p", {sink.directory.name: SinkSpec("out", f"connector://{sink.address}")})
        for epoch in range(EPOCHS):
            put_out(coordinator, segments, "p", epoch, payloads(epoch))
            if (epoch + 1) % BURST == 0:
                pair.look_until(lambda: not coordinator.epochs("p"))
                pair.look_until(partial(pair.has, epoch + 1))
                assert willing.committed == moody.committed
        assert [payload.encode() for each in willing.committed for payload in each.payloads] == [
            payload for epoch in range(EPOCHS) for payload in payloads(epoch)
        ]
        assert [each.id for each in moody.committed] == decisions(segments, "p")
        refused = attempts(segments, "p") - EPOCHS
    assert refused >= EPOCHS // 3
    check_what_they_held(willing, moody)
    assert pair.looks > EPOCHS


def check_what_they_held(willing: ScriptedSinkProcess, moody: ScriptedSinkProcess) -> None:
    """At each round both sinks agree: none is asked to vote while a decision is on its way to it."""
    ours, theirs = held_when_asked(willing), held_when_asked(moody)
    both = ours.keys() & theirs.keys()
    assert len(both) >= EPOCHS
    assert {txn: ours[txn] for txn in both} == {txn: theirs[txn] for txn in both}
