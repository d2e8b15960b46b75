"""Where the next cut ends: on record ends, within limits, in every segment that has something new."""

from collections.abc import Mapping
from typing import NamedTuple

from penstock.coordinator.messages import Segments
from penstock.coordinator.reading.records import Records


class Allowance(NamedTuple):
    """What one cut may take, over all segments; rows None: as many as the bytes hold."""

    bytes: int
    rows: int | None = None


class Backlog(NamedTuple):
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


def backlogs(records: Records, positions: Segments, upto: Segments) -> dict[str, Backlog]:
    """What is durable and not read yet, of each segment; `upto` may say that it ends earlier."""
    found = {}
    for name, start in positions.items():
        end = min(records.end(name), upto.get(name, 1 << 63))
        if end > start:
            found[name] = Backlog(start, end)
    return found


async def ends(records: Records, waiting: Mapping[str, Backlog], allowed: Allowance) -> dict[str, int]:
    """Of each segment the end of its part, in proportion to what waits there, and one record at least."""
    total = sum(backlog.size for backlog in waiting.values())
    found = {}
    for name, backlog in waiting.items():
        share = min(backlog.size, allowed.bytes * backlog.size // total)
        end = records.boundary(name, backlog.start, backlog.start + share)
        if allowed.rows is not None:
            end = await _rows_end(records, name, Backlog(backlog.start, end), allowed.rows * backlog.size // total)
        found[name] = end
    return found


async def _rows_end(records: Records, name: str, part: Backlog, rows_max: int) -> int:
    """The end of the last record with which there are no more than `rows_max` rows; one record at least."""
    end, rows = part.start, 0
    async for found in records.walk(name, part.start, part.end):
        for record in found:
            rows += record.rows
            if rows > rows_max and end > part.start:
                return end
            end = record.end
    return part.end
