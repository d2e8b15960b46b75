"""The rows of the next snapshot, encoded a few at a time before it is due.

A snapshot of 300,000 segments takes seconds to encode. The rows of all segments are encoded little by little while the
chapter fills up, those that change after that are encoded again, and when the chapter turns only the last changes are
left. Each write does its part, and between writes a background task does more, so that one large write need not do much
at once. The bytes are the same as if everything were encoded at the turn.
"""

from collections.abc import Callable, Iterable
from math import ceil

import msgpack

from penstock.core.types import SegmentId

BEGIN_AT = 0.5
"""The share of a chapter that is filled when encoding begins: before that, rows would change again."""
DONE_AT = 0.9
"""The share at which all rows are encoded, except for the last changes."""
STEP_ROWS = 1000
"""Rows per step in the background: about 5 ms."""
WRITE_ROWS_MAX = 5000
"""Rows per write, however large the write is: about 25 ms."""


class EncodedRows:
    """`row` returns what to encode for a segment; None if it no longer exists."""

    def __init__(self, ids: Iterable[SegmentId], next_id: SegmentId, row: Callable[[SegmentId], object | None]) -> None:
        """For these segments, and for those that are created later, numbered from `next_id` on."""
        self._to_do = [*ids][::-1]
        self._first_new = next_id
        self._row = row
        self._rows: dict[SegmentId, bytes] = {}
        self._changed: dict[SegmentId, None] = {}
        self._pack: Callable[[object], bytes] = msgpack.Packer().pack
        self._filled = BEGIN_AT

    def change(self, segment: SegmentId) -> None:
        """The segment is new, or has changed."""
        if segment in self._rows or segment >= self._first_new:
            self._changed[segment] = None

    def remove(self, segment: SegmentId) -> None:
        self._rows.pop(segment, None)
        self._changed.pop(segment, None)

    def step(self, filled: float, left_max: int) -> None:
        """The chapter is filled to this share: encode enough rows for all but `left_max` to be done in time, up to the
        limit per write.
        """
        before, self._filled = self._filled, max(filled, self._filled)
        share = 1.0 if self._filled >= DONE_AT else (self._filled - before) / (DONE_AT - before)
        self._encode(min(ceil(self._due(left_max) * share), WRITE_ROWS_MAX))

    def step_ahead(self, left_max: int) -> bool:
        """Encode some rows, however full the chapter is; False if all but `left_max` are done."""
        rows = min(self._due(left_max), STEP_ROWS)
        self._encode(rows)
        return rows > 0

    def _due(self, left_max: int) -> int:
        return len(self._to_do) + max(0, len(self._changed) - left_max)

    def finish(self) -> list[bytes]:
        """All rows as they are now, in the order in which the segments were created."""
        self._encode(len(self._to_do) + len(self._changed))
        return [*self._rows.values()]

    def _encode(self, count: int) -> None:
        for _ in range(count):
            # New segments come after all others, as in the table.
            segment = self._to_do.pop() if self._to_do else next(iter(self._changed))
            self._changed.pop(segment, None)
            row = self._row(segment)
            if row is not None:
                self._rows[segment] = self._pack(row)
