"""Vote × where the connection is lost × which process is killed there, with real processes: the outcome is the table's.

Every cell has a sink program and a pipeline of its own, with three epochs; it happens in the second one.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from penstock.client.coordinator import CoordinatorClient, SinkSpec
from penstock.client.segments import SegmentClient
from penstock.protocol.connector import Phase1, Phase2, Reply, ReplyUncommitted
from tests.delivery.matrix.cells import TABLE, Answer, Attempt, Cell, Killed, Lost
from tests.delivery.matrix.journal import decisions
from tests.delivery.matrix.output import put_out
from tests.delivery.matrix.scripted_sink import ScriptedSinkProcess
from tests.delivery.matrix.tripping_proxy import TrippingProxy, Wire
from tests.support.waiting import SECONDS_MAX
from tests.support.worker_process import WorkerProcess

pytestmark = pytest.mark.process

EPOCHS = [[b"%d of epoch %d" % (number, epoch) for number in range(5)] for epoch in range(3)]
PAYLOADS = [payload.decode() for epoch in EPOCHS for payload in epoch]

_KINDS = {
    Lost.BEFORE_PHASE1: Phase1,
    Lost.AFTER_PHASE1: Phase1,
    Lost.BEFORE_REPLY: Reply,
    Lost.AFTER_REPLY: Reply,
    Lost.BEFORE_PHASE2: Phase2,
    Lost.AFTER_PHASE2: Phase2,
}


class Scene:
    """One cell: worker ↔ proxy ↔ sink."""

    def __init__(self, cell: Cell, worker: WorkerProcess, directory: Path) -> None:
        self.cell = cell
        self.pipeline = f"cell-{[*TABLE].index(cell)}"
        self.worker = worker
        self.sink = ScriptedSinkProcess(directory, "yn" if cell.answer is Answer.NO else "")
        if cell.lost is Lost.AFTER_PHASE1:
            self.sink.hold(f"{self.pipeline}:1:")
        self.proxy = TrippingProxy(self.sink.port, self._wire(), self._strike)
        self.coordinator = CoordinatorClient(f"127.0.0.1:{worker.http_port}", SECONDS_MAX)
        self.segments = SegmentClient(worker.address, retry_seconds=SECONDS_MAX)

    def _wire(self) -> Wire:
        passes = self.cell.lost in (Lost.AFTER_PHASE1, Lost.AFTER_REPLY, Lost.AFTER_PHASE2)
        return Wire(_KINDS[self.cell.lost], f"{self.pipeline}:1:".encode(), passes, self._has_arrived)

    def _has_arrived(self, txn: bytes) -> bool:
        match self.cell:
            case Cell(lost=Lost.AFTER_PHASE1):
                return f"asked {txn.decode()}" in self.sink.history
            case Cell(answer=Answer.YES, lost=Lost.AFTER_PHASE2):
                return f"commit {txn.decode()}" in self.sink.history
            case _:  # it is in the kernel of its receiver
                return True

    def _strike(self) -> None:
        if self.cell.killed is Killed.WORKER:
            self.worker.kill()
        elif self.cell.killed is Killed.SINK:
            self.sink.kill()

    def play(self) -> None:
        """Run until the sink has all epochs, and the worker has nothing more to do."""
        self.sink.start()
        self.coordinator.bind(self.pipeline, {"s": SinkSpec("out", f"connector://127.0.0.1:{self.proxy.port}")})
        for number, values in enumerate(EPOCHS):
            if number == len(EPOCHS) - 1:
                assert self.proxy.done.wait(SECONDS_MAX), "the wire was never touched"
                self._start_again()
            put_out(self.coordinator, self.segments, self.pipeline, number, values)
        self._wait(lambda: not self.coordinator.epochs(self.pipeline))
        self._wait(lambda: len(self.sink.committed) >= len(EPOCHS))

    def _start_again(self) -> None:
        self.sink.release()
        if self.cell.killed is Killed.WORKER:
            self.worker.start()
        elif self.cell.killed is Killed.SINK:
            self.sink.start()

    def _wait(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + SECONDS_MAX
        while not condition():
            if time.monotonic() > deadline:
                states = [sink for sink in self.coordinator.sinks() if sink.pipeline == self.pipeline]
                raise AssertionError(f"{self.cell}: {states}\n{self.sink.history}\n{self.proxy.seen}")
            time.sleep(0.005)

    def close(self) -> None:
        self.proxy.stop()
        self.sink.kill()
        self.segments.close()
        self.coordinator.close()


@pytest.fixture(scope="module")
def worker_of_all(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    with WorkerProcess(tmp_path_factory.mktemp("matrix") / "data") as worker:
        yield worker


@pytest.fixture
def worker(worker_of_all: WorkerProcess) -> WorkerProcess:
    """A running worker: a failed cell may have left it killed."""
    if not worker_of_all.is_running:
        worker_of_all.start()
    return worker_of_all


@pytest.mark.parametrize("cell", TABLE, ids=str)
def test_every_epoch_is_committed_once_and_in_order(cell: Cell, worker: WorkerProcess, tmp_path: Path) -> None:
    with closing(Scene(cell, worker, tmp_path / "sink")) as scene:
        scene.play()
        check_attempt(scene)
        check_settling(scene)
        check_agreement(scene)
        scene.coordinator.drop(scene.pipeline)


def check_attempt(scene: Scene) -> None:
    """Which attempt at the second epoch was committed."""
    assert scene.proxy.tripped is not None
    tripped, committed = scene.proxy.tripped.decode(), scene.sink.committed[1]
    match TABLE[scene.cell].committed:
        case Attempt.SAME:
            assert committed.id == tripped
        case Attempt.LATER:
            assert committed.attempt > int(tripped.split(":")[-1])
        case Attempt.EITHER:
            assert committed.attempt >= int(tripped.split(":")[-1])


def check_settling(scene: Scene) -> None:
    """Transactions in doubt are listed in the next session, and only the worker's journal decides on them."""
    tripped = scene.proxy.tripped
    listed = next(frame for frame in scene.proxy.seen if isinstance(frame, ReplyUncommitted))
    # The sink may be killed before it has read the decision on the first epoch, which is then in doubt as well.
    second = tuple(one for one in listed.txn_ids if one.startswith(f"{scene.pipeline}:1:".encode()))
    assert second == ((tripped,) if TABLE[scene.cell].in_doubt else ())
    settled = [frame.commit for frame in scene.proxy.seen if isinstance(frame, Phase2) and frame.txn_id == tripped]
    journalled = tripped is not None and tripped.decode() in decisions(scene.segments, scene.pipeline)
    assert settled == ([journalled] if TABLE[scene.cell].in_doubt else [])


def check_agreement(scene: Scene) -> None:
    """Sink and worker agree: every epoch once, in order, under the ids that were decided."""
    committed = scene.sink.committed
    assert [payload for each in committed for payload in each.payloads] == PAYLOADS
    assert [each.epoch for each in committed] == [0, 1, 2]
    assert [each.id for each in committed] == decisions(scene.segments, scene.pipeline)
    (status,) = [sink for sink in scene.coordinator.sinks() if sink.pipeline == scene.pipeline]
    assert status.sent == scene.sink.committed_offset == sum(map(len, PAYLOADS))
    assert scene.coordinator.epochs(scene.pipeline) == []
