"""Which of many events were there before: found in bounded memory, however many there are.

Identities are divided into partitions by a hash and compared one partition at a time. Each needs a few times
`EVENTS_AT_ONCE` · 32 bytes. Of more events than that, the partitions are in scratch segments meanwhile.
"""

import asyncio
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from penstock.protocol.stored.dead_letter_identities import Identified

EVENTS_AT_ONCE = 1 << 18
"""Identities that are in memory at once: 8 MiB, and some copies of them to sort. An epoch seldom rejects more."""

_COLUMNS = 4
"""The three numbers of an identity, and the number of the event."""

_ODD = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F), np.uint64(0x165667B19E3779F9))
"""Multipliers that spread the numbers of an identity over 64 bits."""


class Scratch(Protocol):
    """Bytes by name, which are only appended to. What was never appended to is empty."""

    async def append(self, name: str, data: bytes) -> None: ...

    async def read(self, name: str) -> bytes: ...


class MemoryScratch:
    def __init__(self) -> None:
        self._data: dict[str, bytearray] = {}

    async def append(self, name: str, data: bytes) -> None:
        self._data.setdefault(name, bytearray()).extend(data)

    async def read(self, name: str) -> bytes:
        return bytes(self._data.get(name, b""))


class RepeatedEvents:
    """Events are numbered from 0 in the order in which they are added. One whose identity an earlier one has is
    repeated; one without an identity never is. `add` them all, then `find`.
    """

    def __init__(self, scratch: Scratch, events: int) -> None:
        """`events`: how many there will be, for the number of partitions."""
        self._scratch = scratch
        self._partitions = max(1, -(-events // EVENTS_AT_ONCE))
        self._count = 0
        self._buffered: list[NDArray[np.int64]] = []
        self._range: tuple[int, NDArray[np.bool_]] | None = None
        """The range of numbers that was looked at last, and which of them are repeated."""

    async def add(self, found: Identified) -> None:
        numbers = np.arange(self._count, self._count + len(found))
        self._count += len(found)
        rows = np.column_stack((found.identities, numbers))
        self._buffered.append(rows if found.is_known.all() else rows[found.is_known])
        if sum(map(len, self._buffered)) >= EVENTS_AT_ONCE:
            await self._flush()

    async def _flush(self) -> None:
        rows = np.concatenate([np.empty((0, _COLUMNS), np.int64), *self._buffered])
        self._buffered = []
        if len(rows):
            await self._append("identities", rows, partitions_of(rows, self._partitions))

    async def _append(self, name: str, rows: NDArray[np.int64], parts: NDArray[np.int64]) -> None:
        """The rows of each part to the end of that part."""
        order = np.argsort(parts, kind="stable")
        ordered = parts[order]
        starts = np.flatnonzero(np.diff(ordered, prepend=-1))
        for part, piece in zip(ordered[starts].tolist(), np.split(rows[order], starts[1:]), strict=True):
            await self._scratch.append(f"{name}-{part}", piece.tobytes())

    async def find(self) -> None:
        await self._flush()
        for part in range(self._partitions):
            data = await self._scratch.read(f"identities-{part}")
            repeated = await asyncio.to_thread(_repeated, np.frombuffer(data, np.int64).reshape(-1, _COLUMNS))
            if len(repeated):
                await self._append("repeated", repeated, repeated // EVENTS_AT_ONCE)

    async def among(self, first: int, count: int) -> NDArray[np.bool_]:
        """Which of the events with these numbers are repeated. Cheap if numbers are asked for in order."""
        found = np.empty(count, bool)
        at = first
        while at < first + count:
            number = at // EVENTS_AT_ONCE
            end = min(first + count, (number + 1) * EVENTS_AT_ONCE)
            start = number * EVENTS_AT_ONCE
            found[at - first : end - first] = (await self._flags(number))[at - start : end - start]
            at = end
        return found

    async def _flags(self, number: int) -> NDArray[np.bool_]:
        if self._range is None or self._range[0] != number:
            repeated = np.frombuffer(await self._scratch.read(f"repeated-{number}"), np.int64)
            flags = np.zeros(EVENTS_AT_ONCE, bool)
            flags[repeated - number * EVENTS_AT_ONCE] = True
            self._range = number, flags
        return self._range[1]


def partitions_of(rows: NDArray[np.int64], partitions: int) -> NDArray[np.int64]:
    """The partition of each identity: equal ones are in the same."""
    numbers = rows.view(np.uint64)
    mixed = np.zeros(len(rows), np.uint64)
    for column, odd in enumerate(_ODD):
        mixed = (mixed ^ numbers[:, column]) * odd
        mixed ^= mixed >> np.uint64(32)
    return (mixed % np.uint64(partitions)).astype(np.int64)


def _repeated(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """The numbers of all events but the first of each identity."""
    ordered = rows[np.lexsort(rows.T[::-1])]
    same = (ordered[1:, :-1] == ordered[:-1, :-1]).all(axis=1)
    numbers: NDArray[np.int64] = ordered[1:, -1][same]
    return numbers
