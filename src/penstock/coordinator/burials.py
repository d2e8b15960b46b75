"""Buries single events of a pipeline's input: they leave through `err`, and no task reads them."""

from collections.abc import Sequence

from penstock.coordinator.machine.apply import known
from penstock.coordinator.machine.burials import BURIED_MAX, check_open
from penstock.coordinator.machine.commands import Bury
from penstock.coordinator.machine.state import source_of
from penstock.coordinator.shared import Shared
from penstock.core.errors import PipelineError, RequestError
from penstock.protocol.api.dead_letters import BuriedEvent, BuryDone, EventPlace
from penstock.protocol.segment.frame import HEADER, HEADER_SIZE
from penstock.protocol.stored.names import Kind, kind_of

REASON_CHARACTERS_MAX = 500
"""Of an operator's own words: all that is buried is in the ledger."""

_BY = "buried by an operator"


class Burials:
    def __init__(self, shared: Shared) -> None:
        self._shared = shared

    async def bury(self, name: str, places: Sequence[EventPlace], reason: str, *, undo: bool) -> BuryDone:
        """All of them, or none. Raises PipelineError for a place where no event of the pipeline's input starts, and for
        an event whose epoch is committed. The same call again changes nothing.
        """
        _check(places, reason)
        shared = self._shared
        async with shared.lock(name):
            pipeline = known(shared.state, name)
            events = []
            for place in dict.fromkeys(places):
                buried = pipeline.buried.get((place.segment, place.offset))
                if buried is None:
                    check_open(pipeline, name, place.segment, place.offset)
                end = await self._end(place) if buried is None else buried.end
                events.append((place.segment, place.offset, end))
            text = f"{_BY}: {reason}" if reason else _BY
            shared.keeper.commit(Bury(name, tuple(events), text, undo))
            after = shared.state.pipelines[name]
            await shared.keeper.settled()
        places_after = [(segment, offset) for segment, offset, _ in events]
        changed = sum(pipeline.buried.get(place) != after.buried.get(place) for place in places_after)
        waits = any(one.is_left_out != one.is_wanted for one in map(after.buried.get, places_after) if one is not None)
        return BuryDone(changed, waits)

    async def _end(self, place: EventPlace) -> int:
        """Where the event ends. Raises PipelineError if none starts there."""
        if source_of(place.segment) in self._shared.remote.shards:
            return await self._shared.remote.event_end(place.segment, place.offset)
        return await self.event_end(place.segment, place.offset)

    async def event_end(self, segment: str, offset: int) -> int:
        """Where the event ends, in a segment of this shard. Raises PipelineError if none starts there."""
        records = self._shared.records
        if not self._shared.store.exists(segment):
            raise PipelineError(f"segment {segment!r} not found", "List them: penstock segment list")
        begin, end = records.begin(segment), records.end(segment)
        if not begin <= offset < end:
            raise PipelineError(f"segment {segment!r} has no event at {offset}: it has bytes from {begin} to {end}")
        if records.begins_an_event(segment, offset):
            data = await records.data(segment, offset, HEADER_SIZE)
            length = int(HEADER.unpack_from(data)[1]) if len(data) >= HEADER_SIZE else -1
            is_event = length > 0 or (not length and kind_of(segment).kind is Kind.RAW)  # others have only marks
            if is_event and offset + HEADER_SIZE + length <= end:
                return offset + HEADER_SIZE + length
        raise PipelineError(
            f"no event starts at offset {offset} of segment {segment!r}",
            "Use an offset from penstock pipeline bisect, or from the offset column of a row.",
        )

    def listed(self, name: str) -> list[BuriedEvent]:
        """Those that the pipeline may still read, in order."""
        pipeline = known(self._shared.state, name)
        return [
            BuriedEvent(
                segment=segment,
                offset=offset,
                end=one.end,
                reason=one.reason,
                is_committed=pipeline.is_committed(segment, offset),
                waits=one.is_left_out != one.is_wanted,
                is_undone=not one.is_wanted,
            )
            for (segment, offset), one in sorted(pipeline.buried.items())
            if source_of(segment) in pipeline.sources
        ]


def _check(places: Sequence[EventPlace], reason: str) -> None:
    if not 1 <= len(places) <= BURIED_MAX:
        raise RequestError(f"{len(places)} events cannot be buried at once", f"Name 1 to {BURIED_MAX}.")
    if len(reason) > REASON_CHARACTERS_MAX:
        raise RequestError(f"the reason has more than {REASON_CHARACTERS_MAX} characters", "Shorten it.")
