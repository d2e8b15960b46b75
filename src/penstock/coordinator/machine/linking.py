"""Sources that a pipeline reads no more, and perhaps again later: where it was in them is kept beside its cuts."""

from dataclasses import replace

from penstock.coordinator.machine.state import Input, Pipeline, source_of
from penstock.coordinator.messages import Segments


def unlinked(old: Pipeline, inputs: dict[str, Input]) -> dict[str, Input]:
    """The inputs, with where they are in sources that none of them reads any more: later cuts do not name those. Who
    reads one again goes on behind what was read.
    """
    sources = {source for spec in inputs.values() for source in spec.sources}
    last = old.cuts[old.planned]
    gone = {name: at for name, at in last.segments.items() if source_of(name) not in sources}
    if not gone:
        return inputs
    return {key: replace(spec, starting={**spec.starting, **gone}) for key, spec in inputs.items()}


def left(pipeline: Pipeline) -> dict[str, int]:
    """Where it was in sources that none of its inputs reads any more. After a reset it was nowhere."""
    sources, found = pipeline.sources, dict[str, int]()
    for spec in pipeline.inputs.values():
        gone = {name: at for name, at in spec.starting.items() if spec.resolved and source_of(name) not in sources}
        found |= {name: max(at, found.get(name, 0)) for name, at in gone.items()}
    return found


def relinked(old: Pipeline, key: str, starting: Segments) -> dict[str, int]:
    """Where an input begins in sources that it did not read until now. In one that was read before, by whichever input:
    where that was, or at the first event that is still there, for nothing was kept for it meanwhile.
    """
    before, known = left(old), old.inputs.get(key)
    kept = (
        {} if known is None else {name: at for name, at in known.starting.items() if source_of(name) in known.sources}
    )
    return {name: kept.get(name, max(at, before.get(name, 0))) for name, at in starting.items()}
