"""Each event of an operator once: of several partitions that have staged the same event, the first counts, and of one
partition that has staged it several times.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from penstock.coordinator.ledger import NO_QUOTA
from penstock.coordinator.repeated_events import EVENTS_AT_ONCE, MemoryScratch, RepeatedEvents
from penstock.coordinator.shared import Shared
from penstock.core.errors import PipelineError
from penstock.protocol.api.pipelines import Staged
from penstock.protocol.api.side_outputs import Registration
from penstock.protocol.segment.frame import HEADER_SIZE
from penstock.protocol.stored.dead_letter_identities import Identified, identified_in
from penstock.protocol.stored.event import LENGTH_MIN
from penstock.protocol.stored.side_outputs import REMEMBERED_MAX, copy_prefix

_STEP_BYTES = 4 << 20
"""Bytes of staged events that are compared and copied in one step."""

_UNWRITTEN_BYTES_MAX = 16 << 20
"""Limit for what a merge has written and is not durable yet: it is in memory."""


class Writer:
    """Appends to segments in the course of a merge. Waits for the journal when it has written too much to keep."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._unwritten = 0

    def create(self, segment: str) -> None:
        self._shared.store.create(segment, NO_QUOTA, draining=True)

    async def append(self, segment: str, data: bytes) -> None:
        if not data:
            return
        self._shared.store.append(segment, [data], draining=True)
        self._unwritten += len(data)
        if self._unwritten >= _UNWRITTEN_BYTES_MAX:
            await self.settle()

    async def settle(self) -> None:
        """Until everything is durable."""
        if self._unwritten:
            self._shared.keeper.cover()
            await self._shared.keeper.settled()
            self._unwritten = 0


class SegmentScratch:
    """In segments below a prefix."""

    def __init__(self, shared: Shared, writer: Writer, prefix: str) -> None:
        self._shared = shared
        self._writer = writer
        self._prefix = prefix

    async def append(self, name: str, data: bytes) -> None:
        segment = self._prefix + name
        if not self._shared.store.exists(segment):
            self._writer.create(segment)
        await self._writer.append(segment, data)

    async def read(self, name: str) -> bytes:
        segment, records = self._prefix + name, self._shared.records
        if not self._shared.store.exists(segment):
            return b""
        if records.end(segment) < self._shared.store.length(segment):
            await self._writer.settle()
        found = bytearray()
        while len(found) < records.end(segment):
            found += await records.data(segment, len(found), records.end(segment) - len(found))
        return bytes(found)


class DistinctEvents:
    """Runs under the pipeline's lock."""

    def __init__(self, shared: Shared, sweep: Callable[[str], int]) -> None:
        """`sweep` deletes all staged segments with a prefix."""
        self._shared = shared
        self._sweep = sweep

    async def of(self, prefix: str, operators: Sequence[Sequence[Registration]]) -> list[tuple[Staged, str | None]]:
        """The staged segments to merge, in order; where events were left out, a copy and the name of the original.
        `prefix` is that of the epoch. An operator's registrations are in the order of its partitions.
        """
        found: list[tuple[Staged, str | None]] = []
        for registrations in operators:
            pieces = [piece for one in registrations for piece in one.staged]
            if len(registrations) == 1 and _is_distinct(registrations[0]):
                found += [(piece, None) for piece in pieces]
                continue
            for port in dict.fromkeys(piece.port for piece in pieces):
                found += await self._first_of_each(prefix, [piece for piece in pieces if piece.port == port])
        return found

    async def _first_of_each(self, prefix: str, pieces: Sequence[Staged]) -> list[tuple[Staged, str | None]]:
        """The same for the segments of one port: neither the events nor their identities are in memory at once."""
        scratch_prefix = f"{copy_prefix(prefix)}/"
        writer, expected = Writer(self._shared), sum(map(_events_in, pieces))
        is_small = expected <= EVENTS_AT_ONCE
        scratch = MemoryScratch() if is_small else SegmentScratch(self._shared, writer, scratch_prefix)
        repeated = RepeatedEvents(scratch, expected)
        rows = [await self._add(repeated, piece) for piece in pieces]
        await repeated.find()
        found: list[tuple[Staged, str | None]] = []
        first = 0
        for piece, count in zip(pieces, rows, strict=True):
            if await _any_of(repeated, first, count):
                copy = f"{copy_prefix(prefix)}/{piece.port}"
                found.append((await self._copied(writer, copy, piece, repeated, first), piece.segment))
            else:
                found.append((piece, None))
            first += count
        self._sweep(scratch_prefix)
        return found

    async def _add(self, repeated: RepeatedEvents, piece: Staged) -> int:
        """How many events it has."""
        count = 0
        async for _, found in self._identified(piece):
            await repeated.add(found)
            count += len(found)
        return count

    async def _copied(
        self, writer: Writer, segment: str, piece: Staged, repeated: RepeatedEvents, first: int
    ) -> Staged:
        """The events of the piece that are not repeated. `first` is the number of its first event."""
        writer.create(segment)
        length = rows = 0
        async for data, found in self._identified(piece):
            is_kept = ~await repeated.among(first, len(found))
            kept = b"".join(data[start:end] for start, end in _runs(is_kept, found.starts - found.starts[0]))
            await writer.append(segment, kept)
            first, length, rows = first + len(found), length + len(kept), rows + int(np.count_nonzero(is_kept))
        return Staged(piece.port, segment, length, rows)

    async def _identified(self, piece: Staged) -> AsyncIterator[tuple[memoryview, Identified]]:
        """The events of a staged segment, in steps of bounded size, each with the bytes that they start in."""
        at = 0
        while at < piece.length:
            record = self._shared.store.record(piece.segment, at)
            data = await self._shared.records.data(piece.segment, at, max(_STEP_BYTES, record.end - at))
            found = await asyncio.to_thread(identified_in, data, at)
            if not len(found):
                raise PipelineError(f"segment {piece.segment!r} has no events at {at}")
            yield memoryview(data), found
            at = int(found.starts[-1])


def _is_distinct(given: Registration) -> bool:
    """Whether its task has certainly staged each event once."""
    return not given.key.is_operator or all(_events_in(piece) <= REMEMBERED_MAX for piece in given.staged)


def _events_in(piece: Staged) -> int:
    """How many there are; at most, if its task has not counted them."""
    return piece.length // (HEADER_SIZE + LENGTH_MIN) if piece.rows is None else piece.rows


async def _any_of(repeated: RepeatedEvents, first: int, count: int) -> bool:
    for start in range(first, first + count, EVENTS_AT_ONCE):
        if (await repeated.among(start, min(EVENTS_AT_ONCE, first + count - start))).any():
            return True
    return False


def _runs(is_kept: NDArray[np.bool_], starts: NDArray[np.int64]) -> list[tuple[int, int]]:
    """From where to where events lie that are all kept."""
    edges = np.flatnonzero(np.diff(is_kept.astype(np.int8), prepend=0, append=0))
    return list(zip(starts[edges[::2]].tolist(), starts[edges[1::2]].tolist(), strict=True))
