"""Epochs that a sink was given and that are not settled yet: what comes behind them is given to it meanwhile."""

from collections import deque
from dataclasses import dataclass, replace

from penstock.coordinator.machine.state import Pipeline
from penstock.delivery.epoch_data import EpochData
from penstock.delivery.sink import Settling

WINDOW_EPOCHS_MAX = 64
"""Epochs that are given again from the first one on when one of them fails, at most."""

WINDOW_BYTES_MAX = 64 << 20
"""Of these epochs' output: what a sink keeps of it is in memory. One epoch is let in, however large."""


@dataclass(frozen=True, slots=True)
class Unsettled:
    seen: Pipeline
    """As it is when all before this one is followed."""
    batch: int
    epoch: EpochData
    settling: Settling | None
    """None: it has left, and only waits for those before it."""

    @property
    def is_done(self) -> bool:
        return self.settling is None or self.settling.is_done


class Window:
    """Of one sink, in order."""

    def __init__(self, sink: str) -> None:
        self._sink = sink
        self._epochs: deque[Unsettled] = deque()

    def __len__(self) -> int:
        return len(self._epochs)

    @property
    def has_room(self) -> bool:
        size = sum(one.epoch.end - one.epoch.offset for one in self._epochs)
        return not self._epochs or (len(self._epochs) < WINDOW_EPOCHS_MAX and size < WINDOW_BYTES_MAX)

    def add(self, unsettled: Unsettled) -> None:
        self._epochs.append(unsettled)

    def fits(self, pipeline: Pipeline) -> bool:
        """Whether the pipeline is what the oldest one expects: else all that was given is void."""
        if not self._epochs:
            return True
        seen = self._epochs[0].seen
        return (pipeline.incarnation, pipeline.sinks.get(self._sink)) == (seen.incarnation, seen.sinks[self._sink])

    def ahead(self, pipeline: Pipeline) -> Pipeline:
        """The pipeline as it is when all of these are followed."""
        if not self._epochs:
            return pipeline
        last = self._epochs[-1].epoch
        sink = replace(pipeline.sinks[self._sink], at=last.end, sent=last.transaction.end)
        return replace(pipeline, sinks={**pipeline.sinks, self._sink: sink})

    def take_done(self) -> Unsettled | None:
        """The oldest one, if it is settled or has failed."""
        return self._epochs.popleft() if self._epochs and self._epochs[0].is_done else None

    def flush(self) -> None:
        for one in self._epochs:
            if one.settling is not None:
                one.settling.flush()

    def void(self) -> None:
        for one in self._epochs:
            if one.settling is not None:
                one.settling.cancel()
        self._epochs.clear()
