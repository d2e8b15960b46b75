"""What a batch does to a bucket: decided first, done by `advance` when nothing can go wrong any more."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa

from penstock.windows.engine.index import Held
from penstock.windows.engine.watermark import reached


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A blob, and what the index says of it."""

    data: bytes
    held: Held


@dataclass(frozen=True, slots=True)
class Waiting:
    """Windows that have not fired, one for each key and window; and when the first of them ends, if there is one."""

    count: int = 0
    first_end: int | None = None

    def __add__(self, other: "Waiting") -> "Waiting":
        ends = [end for end in (self.first_end, other.first_end) if end is not None]
        return Waiting(self.count + other.count, min(ends, default=None))


def waiting_in(held: Iterable[Held], watermark: int | None) -> Waiting:
    """Of blobs whose windows have all fired at this watermark, or none of them."""
    open_ones = [each for each in held if not reached(each.first_end, watermark)]
    return Waiting(sum(each.rows for each in open_ones), min((each.first_end for each in open_ones), default=None))


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """Panes as the plan's schema has them; rows that are late after all (t, carried); blobs to put and to remove; what
    waits to be fired afterwards.
    """

    panes: list[pa.Table]
    late: list[pa.Table]
    puts: Mapping[int, Written]
    removed: frozenset[int]
    waiting: Waiting
