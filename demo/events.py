"""The demo's events: the same for the same (program, stream, number), so that anybody can work out the right result."""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from typing import NamedTuple

PROGRAMS = ("north", "south")
STREAMS = ("meter-1", "meter-2", "meter-3")
KEYS = ("bus", "car", "lorry", "tram", "van")
WINDOW_MS = 2_500
STEP_MS = 5
START_MS = 1_700_000_000_000
DISORDER_MS = 4_000
"""How far an event of a stream may lie behind one that came before it."""


class Event(NamedTuple):
    key: str
    amount: int
    time_ms: int


class Cell(NamedTuple):
    """A result's place: the start of the window, and the key."""

    window_ms: int
    key: str


@dataclass(frozen=True, slots=True)
class Total:
    count: int
    amount: int


def event(program: str, stream: str, number: int) -> Event:
    """The event of this number: its time grows with the number, give or take half of the disorder."""
    digest = blake2b(f"{program}/{stream}/{number}".encode(), digest_size=8).digest()
    disorder = int.from_bytes(digest[:2], "big") % DISORDER_MS - DISORDER_MS // 2
    return Event(KEYS[digest[2] % len(KEYS)], digest[3], START_MS + number * STEP_MS + disorder)


def all_events(per_stream: int) -> Iterator[Event]:
    for program in PROGRAMS:
        for stream in STREAMS:
            yield from (event(program, stream, number) for number in range(1, per_stream + 1))


def expected(per_stream: int) -> dict[Cell, Total]:
    """The right result, worked out without Penstock and without Spark."""
    counts: Counter[Cell] = Counter()
    amounts: Counter[Cell] = Counter()
    for each in all_events(per_stream):
        cell = Cell(each.time_ms - each.time_ms % WINDOW_MS, each.key)
        counts[cell] += 1
        amounts[cell] += each.amount
    return {cell: Total(counts[cell], amounts[cell]) for cell in counts}


def line(cell: Cell, total: Total) -> bytes:
    """What the sink writes for a result, byte for byte."""
    row: dict[str, str | int] = {"vehicle": cell.key, "window_start": _time(cell.window_ms)}
    row |= {"window_end": _time(cell.window_ms + WINDOW_MS), "pane": "on_time", "revision": 0}
    row |= {"count": total.count, "amount": total.amount, "event_time": _time(cell.window_ms + WINDOW_MS - 1)}
    return json.dumps(row, separators=(",", ":")).encode() + b"\n"


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
