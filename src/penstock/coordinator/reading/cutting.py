"""Where the next cut ends: on record ends, within limits."""

from collections.abc import Mapping
from typing import NamedTuple

from penstock.coordinator.messages import Segments
from penstock.coordinator.reading.in_order import Backlog, in_step, taken_in_order
from penstock.coordinator.reading.records import Records
from penstock.protocol.stored.names import CONNECTOR_PREFIX


class Allowance(NamedTuple):
    """What one cut may take, over all segments; rows None: as many as the bytes hold."""

    bytes: int
    rows: int | None = None


def backlogs(records: Records, positions: Segments, upto: Segments) -> dict[str, Backlog]:
    """What is durable and not read yet, of each segment; `upto` may say that it ends earlier."""
    found = {}
    for name, start in positions.items():
        end = min(records.end(name), upto.get(name, 1 << 63))
        if end > start:
            found[name] = Backlog(start, end)
    return found


async def ends(records: Records, waiting: Mapping[str, Backlog], allowed: Allowance) -> dict[str, int]:
    """Where the parts of segments end that the cut takes in, one record at least: those of connectors in the order in
    which they came, of each other segment a part in proportion to what waits there.
    """
    total = sum(backlog.size for backlog in waiting.values())
    connectors = {name: backlog for name, backlog in waiting.items() if name.startswith(CONNECTOR_PREFIX)}
    of_connectors = sum(backlog.size for backlog in connectors.values())
    found = taken_in_order(records, connectors, min(of_connectors, allowed.bytes * of_connectors // total))
    for name, (start, end) in waiting.items():
        if name not in connectors:
            share = min(end - start, allowed.bytes * (end - start) // total)
            found[name] = records.boundary(name, start, start + share)
    if allowed.rows is not None:
        for name, end in found.items():
            part = Backlog(waiting[name].start, end)
            found[name] = await _rows_end(records, name, part, allowed.rows * waiting[name].size // total)
        found |= in_step(records, connectors, {name: found[name] for name in connectors})
    return {name: end for name, end in found.items() if end > waiting[name].start}


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
