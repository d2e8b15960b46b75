"""Letters sent through again: each once, in order, as one more source of the input that their events came by."""

from dataclasses import replace

from penstock.coordinator.machine.commands import Replay
from penstock.coordinator.machine.effects import Effect, Merges
from penstock.coordinator.machine.state import Input, Pipeline
from penstock.coordinator.messages import Segments
from penstock.core.errors import PipelineError
from penstock.protocol.stored.names import replay_source


def replay(pipeline: Pipeline, command: Replay) -> tuple[Pipeline, tuple[Effect, ...]]:
    """From now on their copies are among what the inputs read, and the letters are replayed."""
    check_replay(pipeline, command)
    inputs = dict(pipeline.inputs)
    for key, start in command.starts.items():
        spec, source = inputs[key], replay_source(command.pipeline, key)
        if str(source) not in spec.sources:
            starting = {**spec.starting, str(source.segment): start}
            inputs[key] = replace(spec, sources=(*spec.sources, str(source)), starting=starting)
    replayed = {**pipeline.replayed, command.port: command.upto}
    new = replace(pipeline, inputs=inputs, replayed=replayed)
    return new, (Merges(command.staged),) if command.staged else ()


def check_replay(pipeline: Pipeline, command: Replay) -> None:
    """Raises PipelineError unless it goes on where the last one ended."""
    done = pipeline.replayed.get(command.port, 0)
    if command.after != done:
        raise PipelineError(
            f"the letters of port {command.port!r} were replayed up to {done} meanwhile, not up to {command.after}",
            f"Look which are left: penstock letters list {command.pipeline}",
        )
    if command.upto <= command.after:
        raise PipelineError(f"nothing lies between {command.after} and {command.upto} in port {command.port!r}")
    unknown = sorted(command.starts.keys() - pipeline.inputs.keys())
    if unknown:
        raise PipelineError(
            f"pipeline {command.pipeline!r} has no input {unknown[0]!r}", f"It has: {', '.join(pipeline.inputs)}."
        )


def own_sources(name: str, key: str, spec: Input) -> tuple[str, ...]:
    """Those that an input was declared with."""
    replays = str(replay_source(name, key))
    return tuple(source for source in spec.sources if source != replays)


def with_replays(
    name: str, key: str, old: Input | None, sources: tuple[str, ...], starting: Segments
) -> tuple[tuple[str, ...], Segments]:
    """What an input is declared with, and what it has for letters that were replayed."""
    source = replay_source(name, key)
    if old is None or str(source) not in old.sources:
        return sources, starting
    segment = str(source.segment)
    return tuple(dict.fromkeys((*sources, str(source)))), {**starting, segment: old.starting.get(segment, 0)}


def done_replays(name: str, key: str, pipeline: Pipeline) -> dict[str, int]:
    """Where a pipeline that begins anew goes on in what was replayed: what it has put out of it is done. It begins anew
    with the events that these were copies of, so with them it would have all of that twice.
    """
    source = replay_source(name, key)
    if str(source) not in pipeline.inputs[key].sources:
        return {}
    return {str(source.segment): pipeline.position(max(pipeline.merged, pipeline.complete), str(source.segment))}
