"""The events that all contenders of `penstock bench pipeline` count, made from their numbers alone; and their count,
worked out here by other means than any of them uses.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.bench.contenders import connector_frames as frames
from penstock.bench.contenders.ingest import spread
from penstock.bench.events import EVENT_BYTES
from penstock.bench.messages import FRAME, KEY_BYTES

BEGAN_MS = 1_699_999_980_000
"""The first event time, and the beginning of a minute."""

MINUTE_MS = 60_000

SCRAMBLE, MODULUS = 48_271, 65_521
"""Number × SCRAMBLE mod MODULUS mod keys: an order of keys that SQL can work out as well as Python."""


@dataclass(frozen=True, slots=True)
class Events:
    """Events 0 to `count`, `per_ms` of them in a millisecond of event time."""

    count: int
    keys: int
    per_ms: int

    def key_numbers(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        return numbers * SCRAMBLE % MODULUS % self.keys

    def times_ms(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        return BEGAN_MS + numbers // self.per_ms

    @property
    def end_ms(self) -> int:
        """The end of the minute in which the last event lies."""
        last = BEGAN_MS + (self.count - 1) // self.per_ms
        return last - last % MINUTE_MS + MINUTE_MS

    def counts(self) -> NDArray[np.int64]:
        """By minute and key."""
        numbers = np.arange(self.count)
        cells = (self.times_ms(numbers) - BEGAN_MS) // MINUTE_MS * self.keys + self.key_numbers(numbers)
        minutes = (self.end_ms - BEGAN_MS) // MINUTE_MS
        return np.bincount(cells, minlength=minutes * self.keys).reshape(minutes, self.keys)

    def lines(self) -> list[bytes]:
        """The results as our pipeline writes them, sorted."""
        found = self.counts()
        return sorted(
            f"{BEGAN_MS + minute * MINUTE_MS},{key_name(key)},{found[minute, key]}".encode()
            for minute, key in np.argwhere(found).tolist()
        )


def key_name(number: int) -> str:
    return f"k{number:07d}"


@dataclass(frozen=True, slots=True)
class Part:
    """Events `first` to `end`, as MESSAGE frames; the payload is noise, the same in every batch."""

    events: Events
    first: int
    end: int

    def batches(self, size: int) -> Iterator[NDArray[np.void]]:
        """In order. Each goes to one stream, which the caller sets."""
        noise = np.random.default_rng(size).bytes(size * EVENT_BYTES)
        names = np.array([key_name(number) for number in range(self.events.keys)], f"S{KEY_BYTES}")
        whole = np.zeros(size, FRAME)
        whole["length"], whole["tag"], whole["key_length"] = FRAME.itemsize - 4, frames.MESSAGE, KEY_BYTES
        whole["payload"] = np.frombuffer(noise, f"V{EVENT_BYTES}")
        for start in range(self.first, self.end, size):
            numbers = np.arange(start, min(start + size, self.end))
            batch = whole[: len(numbers)].copy()
            batch["id"], batch["time"] = numbers, self.events.times_ms(numbers)
            batch["key"] = names[self.events.key_numbers(numbers)]
            yield batch


def last_of_all(events: Events, stream: int) -> bytes:
    """An event so late that every minute before it ends; its own never does."""
    end = np.zeros(1, FRAME)
    end["length"], end["tag"], end["key_length"] = FRAME.itemsize - 4, frames.MESSAGE, KEY_BYTES
    end["stream"], end["id"] = spread(stream), events.count
    end["time"], end["key"] = events.end_ms + 60 * MINUTE_MS, b"end"
    return end.tobytes()
