"""For readers without a pipeline, and for all readers the ranges that their tasks read. Nothing is written down."""

import asyncio
from collections.abc import Sequence

from penstock.coordinator.messages import Limits, Range, Segments, Splits, Starting
from penstock.coordinator.reading import cutting, splitting
from penstock.coordinator.reading.cutting import Allowance
from penstock.coordinator.reading.sources import normalised
from penstock.coordinator.shared import Shared


class Readers:
    def __init__(self, shared: Shared) -> None:
        self._shared = shared

    async def resolve(self, sources: Sequence[str], position: Starting) -> dict[str, int]:
        return await self._shared.sources.resolve(normalised(sources), position)

    async def cut(
        self,
        sources: Sequence[str],
        start: Segments,
        *,
        upto: Segments | None = None,
        limits: Limits | None = None,
        wait_seconds: float = 0.0,
    ) -> dict[str, int]:
        """Where to read to from `start`; the start itself if there is nothing new, after waiting for it."""
        shared, loop = self._shared, asyncio.get_running_loop()
        deadline = loop.time() + min(wait_seconds, shared.settings.wait_seconds_max)
        names = normalised(sources)
        while True:
            seen = shared.news.count
            segments = shared.sources.all_segments(names)
            positions = {**dict.fromkeys(segments, 0), **start}
            bounds = {} if upto is None else {**dict.fromkeys(segments, 0), **upto}
            waiting = cutting.backlogs(shared.records, positions, bounds)
            if waiting:
                limits = limits or Limits()
                bytes_max = shared.settings.epoch_bytes if limits.bytes is None else limits.bytes
                ends = await cutting.ends(shared.records, waiting, Allowance(bytes_max, limits.rows))
                return dict(sorted({**start, **ends}.items()))
            if loop.time() >= deadline or shared.news.is_over:
                return dict(start)
            await shared.news.wait(seen, deadline - loop.time())

    def splits(self, ranges: Sequence[Range], parts: int, bytes_min: int, *, skip_lost: bool) -> Splits:
        return splitting.split(self._shared.records, ranges, parts, bytes_min, skip_lost=skip_lost)
