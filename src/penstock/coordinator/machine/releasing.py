"""What completed epochs set free: how far sources may be acknowledged, and what retention may give up."""

from collections.abc import Callable, Iterable
from dataclasses import replace

from penstock.coordinator.machine.delivering import delivered_output, ports_for_sinks
from penstock.coordinator.machine.effects import Effect, Release, Truncate
from penstock.coordinator.machine.state import Pipeline, State, source_of
from penstock.coordinator.messages import Segments
from penstock.protocol.stored.names import Form, Source, output_segment


def settled(old: State, new: State, sources: Iterable[str]) -> tuple[State, tuple[Effect, ...]]:
    """`new` with these sources released as far as its pipelines have completed them, and the effects of that."""
    sources = frozenset(sources)
    released = dict(new.released)
    least = _least(new, sources, lambda pipeline: pipeline.complete)
    effects: list[Effect] = []
    for source in sorted(sources):
        before = released.pop(source, None)
        after = _raised(before or {}, least[source]) if source in least else None
        if after is not None:
            released[source] = after
        if after != before:
            effects.append(Release(source, after))
    floors = _risen(truncatable(old, sources), truncatable(new, sources))
    if floors:
        effects.append(Truncate(floors))
    return replace(new, released=released), tuple(effects)


def _raised(before: Segments, least: Segments) -> Segments:
    """What was released once stays so."""
    return {name: max(before.get(name, 0), least.get(name, 0)) for name in sorted(before.keys() | least.keys())}


def truncatable(state: State, sources: Iterable[str] | None = None) -> dict[str, int]:
    """How far retention `complete` may truncate each segment of these sources, or of all: never past what a pipeline
    may still read, or a sink has not got. Segments that somebody else writes are left to him.
    """
    if state.retention.mode != "complete":
        return {}
    held, alone = _outputs(state)
    chosen = state.released.keys() | {source_of(name) for name in alone} if sources is None else sources
    ours = frozenset(source for source in chosen if Source.parse(source).form is not Form.SEGMENT)
    least = _least(state, ours, lambda pipeline: pipeline.floor)
    read = {name: offset for segments in least.values() for name, offset in segments.items()}
    free = {name: _read_floor(state, name, held[name]) for name in alone if source_of(name) in ours}
    return free | {name: min(offset, held.get(name, offset)) for name, offset in read.items()}


def _outputs(state: State) -> tuple[dict[str, int], list[str]]:
    """Of outputs with sinks: how far all of these are, and which are kept for them alone."""
    held: dict[str, int] = {}
    alone: list[str] = []
    for name, pipeline in state.pipelines.items():
        if pipeline.sinks:
            held |= {output_segment(name, port): at for port, at in delivered_output(pipeline).items()}
            alone += [output_segment(name, port) for port in ports_for_sinks(pipeline)]
    return held, alone


def _read_floor(state: State, name: str, at: int) -> int:
    """The least of `at` and of where the segment's readers are: also of those who have not seen it yet."""
    source = source_of(name)
    readers = (pipeline for pipeline in state.pipelines.values() if source in pipeline.sources)
    return min([at, *(pipeline.position(pipeline.floor, name) for pipeline in readers)])


def _least(state: State, sources: frozenset[str], epoch_of: Callable[[Pipeline], int]) -> dict[str, dict[str, int]]:
    """Of each of these sources that a pipeline reads: the lowest position of its readers, each at that epoch, in every
    segment that one of them knows. Every pipeline's segments are gone through once, however many sources there are.
    """
    readers: dict[str, list[tuple[Pipeline, int]]] = {}
    known: dict[str, str] = {}
    for pipeline in state.pipelines.values():
        read = pipeline.sources & sources
        if read:
            epoch = epoch_of(pipeline)
            known |= {name: source for name in pipeline.segments(epoch) if (source := source_of(name)) in read}
        for source in read:
            readers.setdefault(source, []).append((pipeline, epoch))
    least: dict[str, dict[str, int]] = {source: {} for source in readers}
    for name, source in known.items():
        least[source][name] = min(pipeline.position(epoch, name) for pipeline, epoch in readers[source])
    return least


def _risen(old: Segments, new: Segments) -> dict[str, int]:
    return {name: offset for name, offset in new.items() if offset > old.get(name, 0)}
