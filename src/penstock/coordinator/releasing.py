"""What completed epochs set free: how far sources may be acknowledged, and what retention may give up."""

from collections.abc import Iterable
from dataclasses import replace

from penstock.coordinator.effects import Effect, Release, Truncate
from penstock.coordinator.messages import Segments
from penstock.coordinator.state import Pipeline, State, source_of
from penstock.protocol.stored.names import Form, Source


def settled(old: State, new: State, sources: Iterable[str]) -> tuple[State, tuple[Effect, ...]]:
    """`new` with these sources released as far as its pipelines have completed them, and the effects of that."""
    released = dict(new.released)
    effects: list[Effect] = []
    for source in sorted(sources):
        before = released.pop(source, None)
        after = _released(new, source, before or {})
        if after is not None:
            released[source] = after
        if after != before:
            effects.append(Release(source, after))
    floors = _risen(truncatable(old, sources), truncatable(new, sources))
    if floors:
        effects.append(Truncate(floors))
    return replace(new, released=released), tuple(effects)


def _released(state: State, source: str, before: Segments) -> Segments | None:
    """The minimum over the pipelines that read it; what was released once stays so. None if there are none."""
    readers = state.readers(source)
    if not readers:
        return None
    least = _least(source, [(pipeline, pipeline.complete) for pipeline in readers])
    return {name: max(before.get(name, 0), least.get(name, 0)) for name in sorted(before.keys() | least.keys())}


def truncatable(state: State, sources: Iterable[str]) -> dict[str, int]:
    """How far retention `complete` may truncate each segment of these sources: never past what a pipeline may still
    read. Segments that somebody else writes are left to him.
    """
    found: dict[str, int] = {}
    if state.retention.mode != "complete":
        return found
    for source in sources:
        if Source.parse(source).form is not Form.SEGMENT and (readers := state.readers(source)):
            found |= _least(source, [(pipeline, pipeline.floor) for pipeline in readers])
    return found


def _least(source: str, places: list[tuple[Pipeline, int]]) -> dict[str, int]:
    """The lowest position of the pipelines at these epochs, in each segment that one of them knows."""
    names = {name for pipeline, epoch in places for name in pipeline.segments(epoch) if source_of(name) == source}
    return {name: min(pipeline.position(epoch, name) for pipeline, epoch in places) for name in names}


def _risen(old: Segments, new: Segments) -> dict[str, int]:
    return {name: offset for name, offset in new.items() if offset > old.get(name, 0)}
