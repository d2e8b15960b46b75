"""The index of a bucket's state: which blobs there are, and how far the bucket has come."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgpack

from penstock.core.errors import RequestError
from penstock.windows.engine.bucket import BucketState
from penstock.windows.engine.plan import Plan

_VERSION = 1
_RESET = "Begin anew: penstock pipeline reset NAME"


@dataclass(frozen=True, slots=True)
class Held:
    """A blob of the state: its rows, its size, and the bounds of the windows in it."""

    rows: int
    size: int
    first_start: int
    first_end: int
    last_end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """Blobs by number; the watermark that the last batch ended with; late rows since the state began."""

    held: Mapping[int, Held] = field(default_factory=dict)
    watermark: int | None = None
    late_kept: int = 0
    late_dropped: int = 0

    @property
    def rows(self) -> int:
        """Of all blobs."""
        return sum(each.rows for each in self.held.values())

    @property
    def size(self) -> int:
        """Of all blobs, in bytes."""
        return sum(each.size for each in self.held.values())


def load(plan: Plan, state: BucketState, before: int | None) -> Index:
    """Raises RequestError if the state was made by another plan, or does not end where the batch begins."""
    data = state.index()
    if data is None:
        return Index(watermark=before)
    version, fingerprint, watermark, kept, dropped, held = msgpack.unpackb(data, strict_map_key=False)
    if (version, fingerprint) != (_VERSION, plan.fingerprint):
        raise RequestError("the state of these windows was made by other windows, keys or aggregates", _RESET)
    if watermark != before:
        raise RequestError(f"the windows' state ends at watermark {watermark}, the batch begins at {before}", _RESET)
    entries = {int(number): Held(*each) for number, each in held.items()}
    return Index(held=entries, watermark=watermark, late_kept=kept, late_dropped=dropped)


def dump(plan: Plan, index: Index) -> bytes:
    """As `load` reads it."""
    held = {number: (e.rows, e.size, e.first_start, e.first_end, e.last_end) for number, e in index.held.items()}
    fields = (_VERSION, plan.fingerprint, index.watermark, index.late_kept, index.late_dropped, held)
    data: bytes = msgpack.packb(fields)
    return data
