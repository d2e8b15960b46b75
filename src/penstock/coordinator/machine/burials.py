"""Events that an operator has buried, as pure functions of a pipeline's state: its tasks leave them out.

What a batch leaves out is the same for all its loads, and for a task that is run again: an event of the running batch
that is buried, or no longer is, stays as it was for the running query. That batch cannot be merged any more, so it is
run again by the next query, for which the change has taken effect.
"""

from dataclasses import replace

from penstock.coordinator.machine.commands import Bury
from penstock.coordinator.machine.state import Buried, Pipeline, source_of
from penstock.core.errors import LimitExceeded, Outdated, PipelineError
from penstock.protocol.api.pipelines import Range

BURIED_MAX = 1000
"""Of one pipeline. Each is in the ledger's snapshots and splits what a task reads in two: who has more of them keeps
them as dead letters in the pipeline itself."""


def bury(pipeline: Pipeline, command: Bury) -> Pipeline:
    """Raises PipelineError for an event that the pipeline does not read, or whose epoch is committed. One that is
    buried already, or for an undo is not, stays as it is.
    """
    buried = dict(pipeline.buried)
    for segment, offset, end in command.events:
        known = buried.get((segment, offset))
        if known is None and command.undo:
            continue
        if known is None or not known.is_wanted or command.undo:
            check_open(pipeline, command.pipeline, segment, offset, undo=command.undo)
            buried[segment, offset] = _changed(pipeline, known, segment, offset, end, command)
    kept = {place: one for place, one in buried.items() if one.is_left_out or one.is_wanted}
    if len(kept) > max(BURIED_MAX, len(pipeline.buried)):
        raise LimitExceeded(
            f"pipeline {command.pipeline!r} would have more than {BURIED_MAX} buried events",
            "Keep such events as dead letters in the pipeline: penstock.dead_letters.apply",
        )
    return pipeline if kept == pipeline.buried else replace(pipeline, buried=kept)


def check_open(pipeline: Pipeline, name: str, segment: str, offset: int, *, undo: bool = False) -> None:
    """Raises PipelineError unless the pipeline reads the event, and its epoch is not committed."""
    if source_of(segment) not in pipeline.sources:
        raise PipelineError(
            f"segment {segment!r} is not an input of pipeline {name!r}",
            f"See what its epoch reads: penstock pipeline bisect {name}",
        )
    if pipeline.is_committed(segment, offset) and undo:
        raise PipelineError(
            f"{segment}@{offset} is committed: it is a dead letter of pipeline {name!r}",
            f"Let the pipeline process it again: penstock dead-letters replay {name}",
        )
    if pipeline.is_committed(segment, offset):
        raise PipelineError(
            f"{segment}@{offset} is committed: pipeline {name!r} has processed it, or begins after it",
            "Only events of epochs that are not committed can be buried.",
        )


def _changed(pipeline: Pipeline, known: Buried | None, segment: str, offset: int, end: int, command: Bury) -> Buried:
    wanted = not command.undo
    is_running = is_read_now(pipeline, segment, offset)
    before = known is not None and known.is_left_out
    reason = known.reason if known is not None and known.is_wanted else command.reason
    return Buried(end, reason, before if is_running else wanted, wanted)


def is_read_now(pipeline: Pipeline, segment: str, offset: int) -> bool:
    """Whether the event belongs to the batch that the running query has planned."""
    start, end = pipeline.running
    if start not in pipeline.cuts or end not in pipeline.cuts:
        return True
    return pipeline.position(start, segment) <= offset < pipeline.position(end, segment)


def in_effect(pipeline: Pipeline) -> Pipeline:
    """For a query that is about to plan its first batch: what was changed meanwhile takes effect."""
    if all(one.is_left_out == one.is_wanted for one in pipeline.buried.values()):
        return pipeline
    buried = {place: one._replace(is_left_out=True) for place, one in pipeline.buried.items() if one.is_wanted}
    return replace(pipeline, buried=buried)


def left_out(pipeline: Pipeline, start: int, end: int) -> list[tuple[Range, str]]:
    """What the running query leaves out between two cuts, with the reasons, in order."""
    found = [
        (Range(segment, offset, one.end), one.reason)
        for (segment, offset), one in pipeline.buried.items()
        if one.is_left_out and pipeline.position(start, segment) <= offset < pipeline.position(end, segment)
    ]
    return sorted(found, key=lambda each: (each[0].segment, each[0].start))


def check_effective(pipeline: Pipeline, epoch: int) -> None:
    """Raises Outdated if an event of the running batch was buried, or no longer is, since it was planned."""
    for place, one in pipeline.buried.items():
        if one.is_left_out != one.is_wanted and is_read_now(pipeline, *place):
            how = "was buried" if one.is_wanted else "is no longer buried, which has changed"
            raise Outdated(
                f"epoch {epoch} is not committed: its event {place[0]}@{place[1]} {how} while it was running"
            )
