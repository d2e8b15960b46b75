"""Messages for Spark to read: noise that no two of them share, put in over the connector protocol."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.bench.contenders import connector_frames as frames
from penstock.bench.contenders.connector_frames import Answers
from penstock.bench.contenders.ingest import WINDOW, open_streams, receive, spread
from penstock.bench.drive import SILENCE_SECONDS_MAX
from penstock.bench.events import EVENT_BYTES
from penstock.bench.process import connect

KEY_BYTES = 8
KEYS = 10_000
STREAMS = 10
BEGAN_MS = 1_700_000_000_000
"""The first event time; they go up by a millisecond with every message, unless it is said otherwise."""

FRAME = np.dtype(
    [
        ("length", ">u4"),
        ("tag", "u1"),
        ("stream", ">u8"),
        ("id", ">u8"),
        ("time", ">i8"),
        ("key_length", ">u2"),
        ("key", f"S{KEY_BYTES}"),
        ("payload", f"V{EVENT_BYTES}"),
    ]
)


@dataclass(frozen=True, slots=True)
class Messages:
    """`count` messages of one source. `together` are sent at once, then their acknowledgement is awaited; None: as
    many as the worker takes.
    """

    source: str
    count: int
    streams: int = STREAMS
    together: int | None = None
    keys: int = KEYS
    per_ms: int = 1
    """Messages to a millisecond of event time."""

    def send(self, port: int) -> None:
        """All of them are durable when it returns."""
        answers, opened = Answers(), [spread(number) for number in range(self.streams)]
        with connect(port) as sock:
            sock.settimeout(SILENCE_SECONDS_MAX)
            sock.sendall(frames.hello(self.source))
            while not answers.credits:
                receive(sock, answers)
            open_streams(sock, answers, opened)
            spent, granted = len(opened), answers.credits - len(opened)
            run = self.together or max(1, granted // WINDOW)
            in_flight_max = run if self.together else granted
            for batch in self.batches(run):
                while granted - (answers.credits - spent) + len(batch) > in_flight_max:
                    receive(sock, answers)
                sock.sendall(batch.data)
                spent += len(batch)
            while answers.credits - spent < granted:
                receive(sock, answers)

    def batches(self, size: int) -> Iterator[NDArray[np.void]]:
        """MESSAGE frames; the streams take turns, ids and event times go up."""
        noise = np.random.default_rng(self.count)
        streams = np.array([spread(number) for number in range(self.streams)], np.uint64)
        keys = np.array([f"k{number:07d}" for number in range(self.keys)], f"S{KEY_BYTES}")
        for start in range(0, self.count, size):
            numbers = np.arange(start, min(start + size, self.count))
            batch = np.zeros(len(numbers), FRAME)
            batch["length"], batch["tag"], batch["key_length"] = FRAME.itemsize - 4, frames.MESSAGE, KEY_BYTES
            batch["stream"], batch["id"] = streams[numbers % self.streams], numbers
            batch["time"] = BEGAN_MS + numbers // self.per_ms
            batch["key"] = keys[noise.integers(self.keys, size=len(numbers))]
            batch["payload"] = np.frombuffer(noise.bytes(len(numbers) * EVENT_BYTES), f"V{EVENT_BYTES}")
            yield batch
