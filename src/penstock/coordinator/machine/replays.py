"""Replays of dead letters, as pure functions of a pipeline's state: each once, as one more source of the input that
read the original event.

What was replayed in order is one offset of each port. Dead letters that were chosen one by one are ranges beside it: a
replay in order passes over them.
"""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import replace
from operator import itemgetter

from penstock.coordinator.machine.commands import Effect, Merges, Replay, ReplayChosen
from penstock.coordinator.machine.state import Input, Pipeline
from penstock.core.errors import LimitExceeded, PipelineError
from penstock.protocol.api.pipelines import Segments
from penstock.protocol.stored.names import replay_source

CHOSEN_MAX = 1000
"""Ranges of one port: they are in the ledger's snapshots. Neighbours count as one."""

Ranges = tuple[tuple[int, int], ...]


def replay(pipeline: Pipeline, command: Replay) -> tuple[Pipeline, tuple[Effect, ...]]:
    """The inputs read the copies from now on, and the dead letters count as replayed. Those that were chosen before
    stay known until the next replay: the same request again has to pass over them, too.
    """
    check_replay(pipeline, command)
    replayed = {**pipeline.replayed, command.port: command.upto}
    chosen = _with_ranges(pipeline, command.port, (), command.after)
    new = replace(pipeline, inputs=_with_copies(pipeline, command), replayed=replayed, chosen=chosen)
    return new, (Merges(command.staged),) if command.staged else ()


def check_replay(pipeline: Pipeline, command: Replay) -> None:
    """Raises PipelineError unless the replay continues where the last one ended."""
    done = pipeline.replayed.get(command.port, 0)
    if command.after != done:
        raise PipelineError(
            f"the dead letters of port {command.port!r} are already replayed up to {done}, not up to {command.after}",
            f"See which are left: penstock dead-letters list {command.pipeline}",
        )
    if command.upto <= command.after:
        raise PipelineError(f"port {command.port!r} has nothing between {command.after} and {command.upto}")
    _check_inputs(pipeline, command)


def replay_chosen(pipeline: Pipeline, command: ReplayChosen) -> tuple[Pipeline, tuple[Effect, ...]]:
    """As `replay`, for single dead letters. Raises PipelineError if one of them was replayed before."""
    for start, end in command.ranges:
        if is_replayed(pipeline, command.port, start, end):
            raise PipelineError(
                f"dead letter {start} of {command.pipeline}/{command.port} has already been replayed",
                f"See which are left: penstock dead-letters list {command.pipeline}",
            )
    _check_inputs(pipeline, command)
    chosen = _with_ranges(pipeline, command.port, command.ranges, pipeline.replayed.get(command.port, 0))
    if len(chosen.get(command.port, ())) > CHOSEN_MAX:
        raise LimitExceeded(
            f"more than {CHOSEN_MAX} separate dead letters of {command.pipeline}/{command.port} would be replayed out "
            "of order",
            f"Replay those before them first: penstock dead-letters replay {command.pipeline} --upto OFFSET",
        )
    new = replace(pipeline, inputs=_with_copies(pipeline, command), chosen=chosen)
    return new, (Merges(command.staged),) if command.staged else ()


def is_replayed(pipeline: Pipeline, port: str, start: int, end: int) -> bool:
    """Whether the dead letter between two offsets of a port's output segment was replayed, in order or by choice."""
    return end <= pipeline.replayed.get(port, 0) or is_chosen(pipeline, port, start, end)


def is_chosen(pipeline: Pipeline, port: str, start: int, end: int) -> bool:
    """Whether it was replayed by choice. Of one that a later replay in order has passed, this is known for a while."""
    ranges = pipeline.chosen.get(port, ())
    at = bisect_right(ranges, start, key=itemgetter(0)) - 1
    return at >= 0 and end <= ranges[at][1]


def waiting_bytes(pipeline: Pipeline, port: str, start: int, end: int) -> int:
    """How much between two offsets of a port's output segment was not replayed yet."""
    start = max(start, pipeline.replayed.get(port, 0))
    chosen = (min(last, end) - max(first, start) for first, last in pipeline.chosen.get(port, ()))
    return max(0, end - start) - sum(max(0, size) for size in chosen)


def _with_ranges(pipeline: Pipeline, port: str, more: Iterable[tuple[int, int]], done: int) -> dict[str, Ranges]:
    """With these ranges of a port, without those before `done`. Neighbours become one."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted([*pipeline.chosen.get(port, ()), *more]):
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], end)
        elif end > done:
            joined.append((start, end))
    others = {name: ranges for name, ranges in pipeline.chosen.items() if name != port}
    return {**others, port: tuple(joined)} if joined else others


def _with_copies(pipeline: Pipeline, command: Replay | ReplayChosen) -> dict[str, Input]:
    """The inputs, which read the copies as one more source."""
    inputs = dict(pipeline.inputs)
    for key, start in command.starts.items():
        spec, source = inputs[key], replay_source(command.pipeline, key)
        if str(source) not in spec.sources:
            starting = {**spec.starting, str(source.segment): start}
            inputs[key] = replace(spec, sources=(*spec.sources, str(source)), starting=starting)
    return inputs


def _check_inputs(pipeline: Pipeline, command: Replay | ReplayChosen) -> None:
    unknown = sorted(command.starts.keys() - pipeline.inputs.keys())
    if unknown:
        raise PipelineError(
            f"pipeline {command.pipeline!r} has no input {unknown[0]!r}", f"It has: {', '.join(pipeline.inputs)}."
        )


def own_sources(name: str, key: str, spec: Input) -> tuple[str, ...]:
    """The sources that an input was declared with."""
    replays = str(replay_source(name, key))
    return tuple(source for source in spec.sources if source != replays)


def with_replays(
    name: str, key: str, old: Input | None, sources: tuple[str, ...], starting: Segments
) -> tuple[tuple[str, ...], Segments]:
    """The declared sources and starts of an input, with those of its replays."""
    source = replay_source(name, key)
    if old is None or str(source) not in old.sources:
        return sources, starting
    segment = str(source.segment)
    return tuple(dict.fromkeys((*sources, str(source)))), {**starting, segment: old.starting.get(segment, 0)}


def done_replays(name: str, key: str, pipeline: Pipeline) -> dict[str, int]:
    """Where a pipeline that was reset continues in its replays: after those that it has processed. It reads the
    original events again, so it must not read their copies again too.
    """
    source = replay_source(name, key)
    if str(source) not in pipeline.inputs[key].sources:
        return {}
    return {str(source.segment): pipeline.position(max(pipeline.merged, pipeline.complete), str(source.segment))}
