"""A worker that delivers epochs until all are committed, whatever happens to the sink or to the connection."""

import random
import time
from collections.abc import Sequence

from tests.client.scripted_peer import Cut
from tests.client.sink.scripted_worker import ScriptedWorker


class ModelWorker:
    """It keeps its decisions, as a journal would, and aborts a round now and then for no reason."""

    def __init__(self, address: str, epochs: Sequence[Sequence[bytes]], seed: int = 0) -> None:
        self._address = address
        self._epochs = epochs
        self._random = random.Random(seed)
        self._attempts = 0
        self._decided: dict[bytes, bool] = {}
        self.done = 0
        """Epochs that are decided, and known to have arrived."""

    def run(self, seconds: float = 60.0) -> None:
        """Until all epochs are delivered."""
        deadline = time.monotonic() + seconds
        while self.done < len(self._epochs):
            assert time.monotonic() < deadline, f"stuck at epoch {self.done} of {len(self._epochs)}"
            try:
                with ScriptedWorker(self._address) as worker:
                    self._serve(worker)
            except Cut:
                time.sleep(0.01)

    def _serve(self, worker: ScriptedWorker) -> None:
        for txn_id in worker.greet():
            worker.decide(txn_id, self._decided.get(txn_id, False))
        self._note_arrived()
        worker.offset = sum(len(payload) for epoch in self._epochs[: self.done] for payload in epoch)
        while self.done < len(self._epochs):
            self._attempt(worker)

    def _attempt(self, worker: ScriptedWorker) -> None:
        self._attempts += 1
        txn_id = b"p:%d:%d" % (self.done, self._attempts)
        start, end = worker.write(self._epochs[self.done])
        vote = worker.vote(txn_id, (start, end))
        self._decided[txn_id] = vote and self._random.random() < 0.8
        worker.decide(txn_id, self._decided[txn_id])
        self._note_arrived()
        if not self._decided[txn_id]:
            worker.offset = start

    def _note_arrived(self) -> None:
        self.done = sum(self._decided.values())
