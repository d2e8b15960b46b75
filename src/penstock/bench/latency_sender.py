"""A program that sends at a steady rate, and puts the time into every message."""

import select
import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.bench.contenders import connector_frames as frames
from penstock.bench.contenders.ingest import spread
from penstock.bench.events import EVENT_BYTES
from penstock.bench.messages import FRAME
from penstock.bench.pipeline_sender import Session, open_session

TICK_SECONDS = 0.001
"""Between two sends: what is due by then leaves together."""

STAMP = np.dtype([("stamp", ">u8"), ("noise", f"V{EVENT_BYTES - 8}")])
"""A payload: when it was due, in nanoseconds of the monotonic clock, which all processes of a machine share."""


@dataclass(frozen=True, slots=True)
class Paced:
    """The first message's number and time; how late the latest one left, which counts as latency."""

    first: int
    count: int
    began_ns: int
    behind_ms_max: float
    rate: int

    def stamps(self) -> NDArray[np.int64]:
        """Of all its messages, in order."""
        return due_ns(self.began_ns, self.rate, np.arange(self.count))


def due_ns(began_ns: int, rate: int, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    return began_ns + numbers * 1_000_000_000 // rate


@dataclass(frozen=True, slots=True)
class PacedJob:
    """A generator's job: `count` messages on one stream, `rate` in a second, numbered from `first` on. The stamp of a
    message is the time when it was due: a send that has to wait makes a message old, and not young.
    """

    port: int
    source: str
    rate: int
    first: int
    count: int

    def __call__(self) -> Paced:
        session = open_session(self.port, self.source, 0)
        began_ns, sent, behind_ns = time.monotonic_ns(), 0, 0
        try:
            while sent < self.count:
                now_ns = time.monotonic_ns() - began_ns
                due = min(
                    self.count, now_ns * self.rate // 1_000_000_000 + 1, sent + session.granted - session.in_flight
                )
                if due > sent:
                    behind_ns = max(behind_ns, now_ns - sent * 1_000_000_000 // self.rate)
                    session.send(self._batch(began_ns, np.arange(sent, due)).tobytes(), due - sent)
                    sent = due
                _rest(session)
            while session.in_flight > 0:
                session.receive()
        finally:
            session.sock.close()
        return Paced(self.first, self.count, began_ns, behind_ns / 1e6, self.rate)

    def _batch(self, began_ns: int, numbers: NDArray[np.int64]) -> NDArray[np.void]:
        payload = np.zeros(len(numbers), STAMP)
        payload["stamp"] = due_ns(began_ns, self.rate, numbers)
        batch = np.zeros(len(numbers), FRAME)
        batch["length"], batch["tag"], batch["key_length"] = FRAME.itemsize - 4, frames.MESSAGE, batch["key"].itemsize
        batch["stream"], batch["id"] = spread(0), self.first + numbers
        batch["payload"] = payload.view(f"V{EVENT_BYTES}")
        return batch


def _rest(session: Session) -> None:
    """For a tick, or until the worker says something."""
    began = time.monotonic()
    if select.select([session.sock], [], [], TICK_SECONDS)[0]:
        session.receive()
        time.sleep(max(0.0, began + TICK_SECONDS - time.monotonic()))
