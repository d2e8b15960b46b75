"""Cuts: which epoch ends where. Decided once by the input that leads, told again to whoever asks again."""

from dataclasses import replace

from penstock.coordinator.machine.commands import Ask, Plan, Read
from penstock.coordinator.machine.state import CUTS_MAX, Cut, Pipeline, source_of
from penstock.coordinator.messages import InputOffset
from penstock.core.errors import LimitExceeded, PipelineError

SEGMENTS_MAX = 1000
"""Segments of one cut: Spark writes them all into its log for every batch, and we keep a thousand cuts."""


def check_offset(pipeline: Pipeline, name: str, offset: InputOffset) -> int:
    """The epoch of an offset that we have handed out. Raises PipelineError for any other."""
    if name not in pipeline.inputs:
        raise PipelineError(f"there is no input {name!r}", f"It has: {', '.join(pipeline.inputs) or 'none'}.")
    if offset.epoch is None or offset.incarnation != pipeline.incarnation:
        raise PipelineError(
            f"the checkpoint is of incarnation {offset.incarnation}, the pipeline is in its {pipeline.incarnation}.",
            "The pipeline was reset: delete the checkpoint, so that the query begins anew.",
        )
    if offset.epoch not in pipeline.cuts:
        first = next(iter(pipeline.cuts))
        raise PipelineError(
            f"epoch {offset.epoch} is not among those that are kept: {first} to {pipeline.planned}",
            "The checkpoint is too old, or not of this worker's data: begin anew with penstock pipeline reset.",
        )
    told, spec = pipeline.offset(name, offset.epoch), pipeline.inputs[name]
    asked = {segment: spec.starting.get(segment, 0) for segment in told}  # those of a source that came later
    asked |= {segment: at for segment, at in offset.segments.items() if source_of(segment) in spec.sources}
    if asked != told:
        raise PipelineError(
            f"epoch {offset.epoch} of input {name!r} ends at {told}, not at {asked}",
            "The checkpoint is not of this pipeline's data: begin anew with penstock pipeline reset.",
        )
    return offset.epoch


def answer(pipeline: Pipeline, load: str, start: int) -> int | None:
    """The epoch that a load which asks from `start` is told; None if it is for the leader to decide a new one."""
    if pipeline.leader in (None, load):
        return start + 1 if start < pipeline.planned else None
    return max(start, pipeline.running[1])


def ask(pipeline: Pipeline, command: Ask) -> Pipeline:
    known = answer(pipeline, command.load, command.start)
    if command.end != (command.start if known is None else known):
        raise PipelineError(f"epoch {command.start} is followed by {known}, not by {command.end}")
    leader = pipeline.leader or command.load
    running = (command.start, command.end) if leader == command.load else pipeline.running
    asked = replace(pipeline, leader=leader, running=running)
    asked = asked.proven(max(command.start, pipeline.proved))
    return pipeline if asked == pipeline else asked


def attach(pipeline: Pipeline) -> Pipeline:
    return pipeline if pipeline.leader is None else replace(pipeline, leader=None)


def read(pipeline: Pipeline, command: Read) -> Pipeline:
    if not (command.start in pipeline.cuts and command.end in pipeline.cuts and command.start <= command.end):
        raise PipelineError(f"there are no epochs after {command.start} up to {command.end}")
    running = (command.start, command.end)
    return pipeline if running == pipeline.running else replace(pipeline, running=running)


def plan(pipeline: Pipeline, command: Plan) -> Pipeline:
    """The next cut. Nothing in it goes back."""
    epoch = pipeline.planned
    known = command.load.partition("/")[0] in pipeline.inputs
    if not known or answer(pipeline, command.load, epoch) is not None:
        raise PipelineError(f"input {command.load!r} does not lead: its asking decides no cut")
    _check_ends(pipeline, command)
    proven = replace(pipeline, leader=command.load).proven(epoch)
    if epoch - proven.complete >= CUTS_MAX:
        raise LimitExceeded(f"{CUTS_MAX} epochs wait for completion")
    sources = proven.sources
    before = {name: at for name, at in proven.cuts[epoch].segments.items() if source_of(name) in sources}
    cuts = {**proven.cuts, epoch + 1: Cut({**before, **command.ends}, command.watermark)}
    first = min(epoch + 2 - CUTS_MAX, proven.floor)
    for old in [*cuts]:
        if old >= first:
            break
        del cuts[old]
    return replace(proven, cuts=cuts, running=(epoch, epoch + 1))


def _check_ends(pipeline: Pipeline, command: Plan) -> None:
    epoch, sources = pipeline.planned, pipeline.sources
    before = pipeline.cuts[epoch].watermark
    rises = command.watermark is not None and (before is None or command.watermark > before)
    goes_on = all(pipeline.position(epoch, name) < end for name, end in command.ends.items())
    if not goes_on or not (command.ends or rises):
        raise PipelineError(f"the cut after epoch {epoch} does not go on in every segment it names")
    if any(source_of(name) not in sources for name in command.ends):
        raise PipelineError(f"the cut after epoch {epoch} names a segment that the pipeline does not read")
    if len(pipeline.cuts[epoch].segments.keys() | command.ends.keys()) > SEGMENTS_MAX:
        raise LimitExceeded(f"a pipeline that reads more than {SEGMENTS_MAX} segments", "Give some sources to another.")
    if before is not None and (command.watermark is None or command.watermark < before):
        raise PipelineError(f"the watermark after epoch {epoch} goes back from {before} to {command.watermark}")
