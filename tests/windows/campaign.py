"""Random streams of different speeds, with disorder, silences, epochs cut anywhere, and crashes; by seed."""

import random

from penstock.windows.kinds import LateRule, Session, Sliding, Tumbling, Window
from tests.windows.reference import Event
from tests.windows.scenario import Epoch, Scenario, check

KEYS = [("a", 0), ("a", 1), ("b", 0), (None, 0), ("b", None), ("", 7)]
VALUES = [None, *range(-8, 9)]
UNITS = [1, 10**7]
"""Microseconds. With the larger one, sessions are in several blobs of state."""


class Stream:
    """Its clock runs at its own speed, its events are out of order, and it is silent now and then."""

    def __init__(self, rng: random.Random, start: int) -> None:
        self.rng = rng
        self.time = start + rng.randrange(-50, 50)
        self.speed = rng.choice([1, 3, 10, 30])
        self.disorder = rng.choice([0, 0, 5, 40])
        self.silent = rng.choice([0.0, 0.1, 0.5])
        self.declared = self.disorder if rng.random() < 0.5 else self.disorder // 4
        """What the watermark allows for: too little makes late events."""
        self.highest: int | None = None

    def next(self) -> int | None:
        if self.rng.random() < self.silent:
            return None
        self.time += self.rng.randrange(self.speed + 1)
        time = self.time - self.rng.randrange(self.disorder + 1)
        self.highest = time if self.highest is None else max(self.highest, time)
        return time

    def watermark(self) -> int | None:
        return None if self.highest is None else self.highest - self.declared


def run(seed: int) -> None:
    """Raises AssertionError where engine and reference differ."""
    check(scenario_of(seed), seed)


def scenario_of(seed: int) -> Scenario:
    """Deterministic for a seed."""
    rng = random.Random(seed)
    rule: LateRule = rng.choice(["window", "window", "window", "strict"])
    lateness = 0 if rule == "strict" else rng.choice([0, 0, 1, 7, 30, 100])
    return Scenario(_window(rng), lateness, rule, tuple(_epochs(rng))).in_units(rng.choice(UNITS))


def _window(rng: random.Random) -> Window:
    kind = rng.choice(["tumbling", "sliding", "session"])
    if kind == "session":
        return Session(gap_us=rng.choice([1, 2, 5, 10, 40]))
    size, offset = rng.choice([1, 3, 10, 24, 60]), rng.choice([0, 0, 1, -7, 1000])
    if kind == "tumbling":
        return Tumbling(size_us=size, offset_us=offset)
    return Sliding(size_us=size, slide_us=rng.randint(max(1, size // 6), size), offset_us=offset)


def _epochs(rng: random.Random) -> list[Epoch]:
    start = rng.choice([-200, 0, 10**6, -(10**6)])
    streams = [Stream(rng, start) for _ in range(rng.randint(1, 4))]
    active = [True] * len(streams)
    keys, numbers, watermark = rng.sample(KEYS, rng.randint(1, len(KEYS))), iter(range(10**9)), None
    epochs = []
    for _ in range(rng.randint(1, 12)):
        events = []
        for _ in range(rng.choice([0, 1, 5, 30])):
            which = rng.randrange(len(streams))
            time = streams[which].next()
            if time is not None:
                active[which] = True
                events.append(Event(time, rng.choice(keys), rng.choice(VALUES), next(numbers)))
        if rng.random() < 0.1:
            active[rng.randrange(len(streams))] = False
        marks = [each.watermark() for each, counts in zip(streams, active, strict=True) if counts]
        watermark = _later(watermark, marks)
        crashes = rng.choice([0, 0, 0, 1, 2])
        epochs.append(Epoch(tuple(events), watermark, rng.randint(1, 4), crashes))
    end = 10**9 if watermark is None else watermark + rng.choice([0, 10, 10**6])
    return [*epochs, Epoch((), end)]


def _later(watermark: int | None, marks: list[int | None]) -> int | None:
    """That of the slowest active stream; unknown while one of them is unknown; it never goes back."""
    known = [mark for mark in marks if mark is not None]
    if not known or len(known) < len(marks):
        return watermark
    return min(known) if watermark is None else max(watermark, min(known))
